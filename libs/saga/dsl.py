"""How a process is declared: steps as data, each mapping saga data to one command.

Time limits, retries, compensation and swaps are declared here and carried out by `core.py`. The step
functions are pure: the same data always gives the same command, so that deciding twice is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from libs.contracts.message import Kind, Message
from libs.contracts.replies import Problem

Data = dict[str, Any]
Item = dict[str, Any]

DEFAULT_WITHIN = timedelta(minutes=5)


@dataclass(frozen=True)
class ToSite:
    """A site command and the site it is for."""

    site: str
    message: Message


Sent = Message | ToSite | None


def to_site(site: str, message: Message) -> ToSite:
    """Address a site command. Raises TypeError for any other message."""
    if message.message_type.kind is not Kind.SITE_COMMAND:
        raise TypeError(f"{type(message).__name__} is no site command")
    return ToSite(site, message)


@dataclass(frozen=True)
class Swap:
    """Replace an item that failed: `discard` gives the old one up (not waited for), `replace` asks for another.

    `then` makes the new item from the reply's data; `limit` is how many swaps one run may use.
    """

    replace: Callable[[Data, Item, Problem], Message]
    then: Callable[[Data, Data], Item]
    discard: Callable[[Data, Item, Problem], Message | None]
    limit: Callable[[Data], int]


def swap(
    *,
    replace: Callable[[Data, Item, Problem], Message],
    then: Callable[[Data, Data], Item],
    discard: Callable[[Data, Item, Problem], Message | None],
    limit: Callable[[Data], int],
) -> Swap:
    return Swap(replace, then, discard, limit)


OnFailure = Literal["fail", "drop"] | Swap


@dataclass(frozen=True)
class Step:
    """One step. `each` names the list in data it runs over; "" means once for the whole saga."""

    name: str
    build: Callable[..., Sent]
    each: str
    within: timedelta
    retries: int
    then: Callable[..., Any] | None
    check: Callable[[Data], Problem | None] | None
    undo: Callable[..., Sent] | None
    on_failure: OnFailure
    answers: bool
    pivot: bool

    def command(self, data: Data, item: Item | None) -> Sent:
        return self.build(data, item) if self.each else self.build(data)

    def undo_command(self, data: Data, item: Item | None) -> Sent:
        if self.undo is None:
            return None
        return self.undo(data, item) if self.each else self.undo(data)


def step(
    build: Callable[..., Sent],
    *,
    each: str = "",
    within: timedelta = DEFAULT_WITHIN,
    retries: int = 0,
    then: Callable[..., Any] | None = None,
    check: Callable[[Data], Problem | None] | None = None,
    undo: Callable[..., Sent] | None = None,
    on_failure: OnFailure = "fail",
    answers: bool = False,
    pivot: bool = False,
    name: str | None = None,
) -> Step:
    """Declare a step.

    `check` looks at an OK reply's data and may turn it into a failure. `undo` compensates. `answers`: when
    this step is complete, the command that started the saga is answered. `pivot`: the point of no return; from
    here on the saga can't be cancelled, and a failure waits for a human instead of compensating.
    """
    if on_failure != "fail" and not each:
        raise TypeError(f"{build.__name__}: only a step that runs for each of a list can drop or swap an item")
    return Step(name or build.__name__, build, each, within, retries, then, check, undo, on_failure, answers, pivot)


@dataclass(frozen=True)
class Saga:
    """A process: its kind is the operation's kind. `result` makes the operation's result from the data."""

    kind: str
    steps: tuple[Step, ...]
    result: Callable[[Data], Data]

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps]
        if len(set(names)) != len(names) or not names:
            raise TypeError(f"saga {self.kind}: steps need names of their own: {names}")
        if len({step.each for step in self.steps if step.each}) > 1:
            raise TypeError(f"saga {self.kind}: all each-steps must run over one list")
        self._check_drops()

    def _check_drops(self) -> None:
        """What is left out of the list is out of reach of undo, so it must not have taken anything by then."""
        taken = ""
        for step in self.steps:
            taken = step.name if step.each and step.undo is not None else taken
            if step.on_failure == "drop" and taken:
                raise TypeError(f"saga {self.kind}: an item that {step.name} drops would never get {taken} undone")

    @property
    def each(self) -> str:
        """The list that its each-steps run over, "" when it has none."""
        return next((step.each for step in self.steps if step.each), "")

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


def saga(kind: str, *steps: Step, result: Callable[[Data], Data] = lambda data: {}) -> Saga:
    """Declare a saga."""
    return Saga(kind, tuple(steps), result)
