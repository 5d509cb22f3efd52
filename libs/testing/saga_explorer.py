"""Every course a saga can take, tried: a breadth-first walk over all states that the pure core can reach.

In each state every awaited command is answered in every way its world knows, times out, and the saga is cancelled
and resumed. Between any two inputs the state goes through JSON and back, as over a crash: what was not committed
leaves no trace, so a crash adds no state of its own. In every state late, repeated and foreign answers and timers are
delivered, for every id that was used on the way there; they must change nothing.

Bounds: the world's answers, `max_resumes`, and the retry limits of the saga. What no decision looks at is left out of
what tells two states apart: problems, notes, and how many attempts the steps behind have taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from libs.contracts.operations import OperationStatus
from libs.contracts.replies import Problem
from libs.saga.state import SagaState
from libs.testing.saga_promises import Ghost, Promises, Violation, World, ids_of

_TEXT = Problem(code="x", message="x")


@dataclass
class Node:
    state: str
    ghost: Ghost
    ids: frozenset[str]  # Of every command and timer on the course that first led here.
    came_from: int | None
    by: str
    finished: bool
    parked: bool


@dataclass
class Explored:
    """What was seen. `statuses` are the ways the saga ended."""

    states: int = 0
    inputs: int = 0
    ignored: int = 0
    parked: int = 0
    statuses: set[OperationStatus] = field(default_factory=set)

    def __str__(self) -> str:
        ways = ", ".join(sorted(self.statuses))
        return f"{self.states} states, {self.inputs} inputs, {self.ignored} ignored ones, {self.parked} parked; {ways}"


def explore(world: World, *, limit: int = 200_000) -> Explored:
    """Walk all states. Raises Violation for the first invariant that fails, and when there are more than `limit`."""
    return _Walk(world, limit).run()


class _Walk:
    def __init__(self, world: World, limit: int) -> None:
        self.limit, self.promises = limit, Promises(world)
        self.nodes: list[Node] = []
        self.numbers: dict[tuple[str, Ghost], int] = {}
        self.into: dict[int, list[int]] = {}
        self.silent: dict[int, list[int]] = {}
        self.sent: dict[int, list[tuple[int, frozenset[str]]]] = {}
        self.found = Explored()
        self.here: tuple[int | None, str] = (None, "start")

    def run(self) -> Explored:
        try:
            self._walk()
        except Violation as violation:
            course = ", ".join(self._course())
            raise Violation(f"{self.promises.saga.kind}: {violation}\n  after {course}") from violation
        return self.found

    def _walk(self) -> None:
        run, ghost = self.promises.start()
        queue = deque([self._add(run.state, ghost, ids_of(run))])
        while queue:
            queue.extend(self._leave(queue.popleft()))
        self._check_ids_are_new()
        self._check_an_end_is_reachable()
        self._check_silence_ends()

    def _leave(self, number: int) -> Iterator[int]:
        """Try every input in a state. Yields the states that were not known."""
        node = self.nodes[number]
        before = SagaState.model_validate_json(node.state)
        self.here = (number, "late, repeated and foreign ones")
        self.found.ignored += self.promises.check_ignored(before, node.ids)
        for each in self.promises.inputs(before):
            self.here = (number, each.name)
            self.found.inputs += 1
            taken = self.promises.take(node.state, before, node.ghost, each)
            if taken is None:
                continue
            run, ghost = taken
            known = len(self.nodes)
            after = self._add(run.state, ghost, node.ids | ids_of(run))
            self.into.setdefault(after, []).append(number)
            self.sent.setdefault(number, []).append((after, ids_of(run, commands_only=True)))
            if each.silence:
                self.silent.setdefault(number, []).append(after)
            if after == known:
                yield after

    # -- the graph ------------------------------------------------------------------------------

    def _add(self, state: SagaState, ghost: Ghost, ids: frozenset[str]) -> int:
        """The number of the state, new or known."""
        self.promises.check_state(state, ghost, ids)
        text = _without_texts(state)
        key = (text, ghost)
        if key in self.numbers:
            return self.numbers[key]
        number = self.numbers[key] = len(self.nodes)
        self.promises.must(number < self.limit, f"there are more than {self.limit} states; make the world smaller")
        came_from, by = self.here
        finished, parked = state.phase == "finished", state.phase == "parked"
        self.nodes.append(Node(text, ghost, ids, came_from, by, finished, parked))
        self.found.states += 1
        self.found.parked += parked
        if finished:
            self.found.statuses.add(state.status)
        return number

    def _check_ids_are_new(self) -> None:
        """No course sends one id twice: its receiver would take the second for a repeat and stay silent for ever.

        What comes next depends on the state alone, so every path through the graph is a course; ids are carried along
        all of them until nothing changes.
        """
        bits: dict[str, int] = {}
        before = [0] * len(self.nodes)
        for each in self.nodes[0].ids:
            before[0] |= 1 << bits.setdefault(each, len(bits))
        waiting = deque(range(len(self.nodes)))
        while waiting:
            number = waiting.popleft()
            for after, ids in self.sent.get(number, ()):
                new = 0
                for each in ids:
                    new |= 1 << bits.setdefault(each, len(bits))
                if before[number] & new:
                    self.here = (number, "sending the same id again")
                    self.promises.must(False, "no course sends one id twice")
                carried = before[number] | new
                if carried & ~before[after]:
                    before[after] |= carried
                    waiting.append(after)

    def _check_an_end_is_reachable(self) -> None:
        """From every state the saga can still end, or it waits for a human and says why."""
        good = deque(number for number, node in enumerate(self.nodes) if node.finished or node.parked)
        reached = set(good)
        while good:
            for before in self.into.get(good.popleft(), ()):
                if before not in reached:
                    reached.add(before)
                    good.append(before)
        stuck = next((number for number in range(len(self.nodes)) if number not in reached), None)
        if stuck is not None:
            self.here = (stuck, "nothing")
            self.promises.must(False, "every state leads to an end")

    def _check_silence_ends(self) -> None:
        """When nobody ever answers, time alone brings every state to an end or to a human: no course goes round."""
        open_edges = {number: len(self.silent.get(number, ())) for number in range(len(self.nodes))}
        into: dict[int, list[int]] = {}
        for number, following in self.silent.items():
            for after in following:
                into.setdefault(after, []).append(number)
        settled = deque(number for number, count in open_edges.items() if not count)
        for number in settled:
            self.here = (number, "silence")
            resting = self.nodes[number].finished or self.nodes[number].parked
            self.promises.must(resting, "silence ends at an end or with a human")
        seen = 0
        while settled:
            seen += 1
            for before in into.get(settled.popleft(), ()):
                open_edges[before] -= 1
                if not open_edges[before]:
                    settled.append(before)
        self.promises.must(seen == len(self.nodes), "silence goes round in circles")

    def _course(self) -> list[str]:
        number, by = self.here
        names = [by]
        while number is not None:
            node = self.nodes[number]
            names.append(node.by)
            number = node.came_from
        return names[::-1]


def _without_texts(state: SagaState) -> str:
    """The state as JSON without what only people look at."""
    for index in range(len(state.records)):
        state.set_record(index, last_error=None, attempts=0)
    state.notes = []
    if state.problem is not None:
        state.problem = _TEXT
    if state.waiting_for:
        state.waiting_for = "a human: x"
    if "dropped" in state.data:
        state.data = {**state.data, "dropped": [{**each, "problem": {}} for each in state.data["dropped"]]}
    return state.model_dump_json()
