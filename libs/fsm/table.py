"""A lifecycle as a table of transitions with time limits and named ways out.

A table refuses at construction what could strand an entity: an unreachable state, a state without a way
out, a state with neither a time limit, a human task nor the word that it may rest. It holds no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)


class IllegalTransition(ValueError):
    """The event is not listed for the state. The message says which events are."""

    def __init__(self, table: str, state: str, event: str, allowed: Iterable[str]) -> None:
        self.table, self.state, self.event = table, state, event
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"a {table} that is {state} can't {event}; it can: {', '.join(self.allowed) or 'nothing'}")


@dataclass(frozen=True)
class Transition(Generic[S]):
    """`event` moves any of `sources` to `target`. `why` is the label people read."""

    event: str
    sources: tuple[S, ...]
    target: S
    why: str = ""


@dataclass(frozen=True)
class Repeat(Generic[S]):
    """`event` comes again, or late, in any of `states` and moves nothing; `why` says what it is answered."""

    event: str
    states: tuple[S, ...]
    why: str


@dataclass(frozen=True)
class Limit:
    """How long a state may last, and the event that fires then."""

    seconds: int
    then: str


@dataclass(frozen=True)
class Table(Generic[S]):
    """`restful` states may last for ever; `human` names what a person does about a state without a limit."""

    name: str
    states: type[S]
    initial: tuple[S, ...]
    final: tuple[S, ...]
    transitions: Sequence[Transition[S]]
    limits: Mapping[S, Limit] = field(default_factory=dict)
    human: Mapping[S, str] = field(default_factory=dict)
    restful: tuple[S, ...] = ()
    repeats: Sequence[Repeat[S]] = ()

    def __post_init__(self) -> None:
        seen: set[tuple[S, str]] = set()
        for transition in self.transitions:
            for source in transition.sources:
                if (source, transition.event) in seen:
                    raise ValueError(f"{self.name}: {source} lists {transition.event} twice")
                seen.add((source, transition.event))
        for repeat in self.repeats:
            for state in repeat.states:
                if (state, repeat.event) in seen:
                    raise ValueError(f"{self.name}: {repeat.event} moves {state}, so it can't be a repeat there")
                seen.add((state, repeat.event))
        self._check_reachable()
        self._check_ways_out()

    def _check_reachable(self) -> None:
        reached = set(self.initial)
        while True:
            more = {t.target for t in self.transitions if reached.intersection(t.sources)} - reached
            if not more:
                break
            reached |= more
        lost = set(self.states) - reached
        if lost:
            raise ValueError(f"{self.name}: never reached: {sorted(lost)}")

    def _check_ways_out(self) -> None:
        for state in self.states:
            if state in self.final:
                continue
            if not self.events(state):
                raise ValueError(f"{self.name}: no way out of {state}")
            if state not in self.limits and state not in self.human and state not in self.restful:
                raise ValueError(f"{self.name}: {state} has no time limit, no human task and may not rest")
        for state, limit in self.limits.items():
            if limit.then not in self.events(state):
                raise ValueError(f"{self.name}: the limit of {state} fires {limit.then}, which {state} does not list")

    def events(self, state: S) -> tuple[str, ...]:
        """The events that `state` lists."""
        return tuple(t.event for t in self.transitions if state in t.sources)

    def target(self, state: S, event: str) -> S:
        """Where `event` leads from `state`. Raises IllegalTransition."""
        for transition in self.transitions:
            if transition.event == event and state in transition.sources:
                return transition.target
        raise IllegalTransition(self.name, state, event, self.events(state))

    def allows(self, state: S, event: str) -> bool:
        return event in self.events(state)

    def mermaid(self) -> str:
        """The table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2"]
        lines += [f"    [*] --> {state}" for state in self.initial]
        for transition in self.transitions:
            lines += [f"    {source} --> {transition.target}: {transition.event}" for source in transition.sources]
        lines += [f"    {state} --> [*]" for state in self.final]
        for state, limit in self.limits.items():
            lines.append(f"    note right of {state}: within {_duration(limit.seconds)}, else {limit.then}")
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """Limits, human tasks and ways out as a table."""
        rows = ["| state | limit → next | ways out |", "| --- | --- | --- |"]
        for state in self.states:
            if state in self.limits:
                limit = f"{_duration(self.limits[state].seconds)} → {self.limits[state].then}"
            elif state in self.human:
                limit = f"human: {self.human[state]}"
            else:
                limit = "end" if state in self.final else "may rest"
            ways = ", ".join(f"{event} → {self.target(state, event)}" for event in self.events(state))
            rows.append(f"| {state} | {limit} | {ways} |")
        if self.repeats:
            rows += ["", "| repeated or late | while it is | moves nothing |", "| --- | --- | --- |"]
            rows += [f"| {one.event} | {', '.join(one.states)} | {one.why} |" for one in self.repeats]
        return "\n".join(rows) + "\n"


def _duration(seconds: int) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
