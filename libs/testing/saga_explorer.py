"""Every course a saga can take, tried: a breadth-first walk over all states that the pure core can reach.

In each state every awaited command is answered in every way its world knows, times out, and the saga is cancelled
and resumed. Between any two inputs the state goes through JSON and back, as over a crash: what was not committed
leaves no trace, so a crash adds no state of its own. In every state late, repeated and foreign answers and timers are
delivered, for every id that was used on the way there; they must change nothing.

Bounds: the world's answers, `max_resumes`, and the retry limits of the saga. Texts (problems, notes) are left out
of what tells two states apart, because no decision looks at them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from libs.contracts.ids import derived_uuid
from libs.contracts.message import Message
from libs.contracts.operations import OperationStatus, StepStatus
from libs.contracts.replies import Outcome, Problem, Reply, ok
from libs.saga.core import Answer, Effect, Run, Send, Timer, new_state
from libs.saga.dsl import Data, Saga, Swap
from libs.saga.state import Pending, SagaState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TEXT = Problem(code="x", message="x")
_FOREIGN = derived_uuid("nobody asked this")
_FORWARD = ("do", "swap")
_AWAITS_TIME = ("retry", "retry_undo")
# The order in which a step's record may change. FAILED → UNDOING is the way back, also after a human stepped in.
_NEXT: dict[StepStatus, set[StepStatus]] = {
    StepStatus.PENDING: {StepStatus.RUNNING, StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.SKIPPED},
    StepStatus.RUNNING: {StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.UNDOING, StepStatus.UNDONE},
    StepStatus.SUCCEEDED: {StepStatus.UNDOING, StepStatus.UNDONE, StepStatus.FAILED},
    StepStatus.FAILED: {StepStatus.UNDOING, StepStatus.UNDONE},
    StepStatus.UNDOING: {StepStatus.UNDONE, StepStatus.FAILED},
    StepStatus.UNDONE: set(),
    StepStatus.SKIPPED: set(),
}

# The answers a command may get: (step name, role "do" | "swap" | "undo", item id or "", the message) → replies.
Answers = Callable[[str, str, str, Message], Sequence[Reply]]


def bad_answers() -> tuple[Reply, ...]:
    """One answer that ends an attempt for good and one that may be tried again."""
    return (Reply(outcome=Outcome.REFUSED, problem=_TEXT), Reply(outcome=Outcome.FAILED, problem=_TEXT))


@dataclass(frozen=True)
class World:
    """A saga with the data it starts from and the answers it may get."""

    saga: Saga
    data: Data
    answers: Answers
    max_resumes: int = 1


class Violation(AssertionError):
    """An invariant does not hold. The message names it and the inputs that lead there."""


@dataclass(frozen=True)
class Ghost:
    """What the world remembers of a course; the saga itself does not see it."""

    begun: frozenset[tuple[int, str]] = frozenset()  # (step, item) whose command was sent.
    undone: frozenset[tuple[int, str]] = frozenset()  # (step, item) whose undo was answered OK.
    undo_at: int | None = None  # The step that was undone last.
    answered: int = 0


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


@dataclass(frozen=True)
class Input:
    """One thing that may happen. `silence` marks what happens when nobody ever says anything: time passes."""

    name: str
    apply: Callable[[Run], bool]
    command: str = ""
    reply: Reply | None = None
    silence: bool = False


def explore(world: World, *, limit: int = 200_000) -> Explored:
    """Walk all states. Raises Violation for the first invariant that fails, and when there are more than `limit`."""
    return _Walk(world, limit).run()


class _Walk:
    def __init__(self, world: World, limit: int) -> None:
        self.world, self.limit = world, limit
        self.saga = world.saga
        self.messages: dict[str, Message] = {}
        self.nodes: list[Node] = []
        self.numbers: dict[tuple[str, Ghost], int] = {}
        self.into: dict[int, list[int]] = {}
        self.silent: dict[int, list[int]] = {}
        self.sent: dict[int, list[tuple[int, frozenset[str]]]] = {}
        self.found = Explored()
        self.here: tuple[int | None, str] = (None, "start")

    def run(self) -> Explored:
        base = {"actor": "user:test", "tenant": "-", "site": "-", "correlation_id": "c-1"}
        state = new_state(self.saga, derived_uuid("explored", self.saga.kind), {**base, **self.world.data}, NOW)
        run = Run(self.saga, state, NOW)
        run.start()
        before = new_state(self.saga, state.id, state.data, NOW)
        queue = deque([self._add(run.state, self._next_ghost(Ghost(), before, run, None), _ids(run))])
        while queue:
            number = queue.popleft()
            for following in self._leave(number):
                queue.append(following)
        self._check_ids_are_new()
        self._check_an_end_is_reachable()
        self._check_silence_ends()
        return self.found

    def _leave(self, number: int) -> Iterator[int]:
        node = self.nodes[number]
        before = SagaState.model_validate_json(node.state)
        self._check_ignored(number, node, before)
        for each in self._inputs(before, node.ghost):
            self.here = (number, each.name)
            run = Run(self.saga, SagaState.model_validate_json(node.state), NOW)
            taken = each.apply(run)
            self.found.inputs += 1
            if node.finished:
                self._must(not taken and not run.effects, "a finished saga is final")
                self._must(run.state.model_dump_json() == before.model_dump_json(), "a finished saga is final")
                continue
            if not taken:
                self._must(run.state == before and not run.effects, "what is refused changes nothing")
                continue
            ghost = self._next_ghost(node.ghost, before, run, each)
            self._check_step(before, run, ghost)
            known = len(self.nodes)
            after = self._add(run.state, ghost, node.ids | _ids(run))
            self.into.setdefault(after, []).append(number)
            self.sent.setdefault(number, []).append((after, frozenset(_ids(run, commands_only=True))))
            if each.silence:
                self.silent.setdefault(number, []).append(after)
            if after == known:
                yield after

    def _inputs(self, state: SagaState, ghost: Ghost) -> Iterator[Input]:
        for token, pending in state.pending.items():
            name = f"{pending.role} {self.saga.steps[pending.step].name}/{pending.item}#{pending.attempt}"
            yield Input(f"time {name}", lambda run, token=token: run.timer(token), silence=True)  # type: ignore[misc]
            if pending.role in _AWAITS_TIME:
                continue
            step = self.saga.steps[pending.step].name
            for reply in self.world.answers(step, pending.role, pending.item, self.messages[token]):
                yield Input(
                    f"{reply.outcome.value} {name}",
                    lambda run, token=token, reply=reply: run.reply(token, reply),  # type: ignore[misc]
                    command=token,
                    reply=reply,
                )
        yield Input("cancel", lambda run: run.cancel("not wanted"))
        if state.resumes < self.world.max_resumes or state.phase == "finished":
            yield Input("resume", lambda run: run.resume())

    # -- what must hold -------------------------------------------------------------------------

    def _check_ignored(self, number: int, node: Node, state: SagaState) -> None:
        """Late, repeated and foreign answers and timers, every one of this course."""
        run = Run(self.saga, state, NOW)
        before = state.model_dump_json()
        replies = (ok(), *bad_answers())
        for used in (*(node.ids - set(state.pending)), _FOREIGN):
            self.here = (number, f"late {used}")
            self._must(not run.timer(used), "a timer of a command that is settled does nothing")
            self._must(not any(run.reply(used, reply) for reply in replies), "a late answer does nothing")
            self.found.ignored += 1 + len(replies)
        for token in [key for key, pending in state.pending.items() if pending.role in _AWAITS_TIME]:
            self._must(not run.reply(token, ok()), "the time of a retry is no command that could be answered")
        self._must(not run.effects and state.model_dump_json() == before, "what is not awaited changes nothing")

    def _next_ghost(self, ghost: Ghost, before: SagaState, run: Run, by: Input | None) -> Ghost:
        """What the world knows after a decision; checks what was sent against it."""
        state = run.state
        sends = [effect for effect in run.effects if isinstance(effect, Send)]
        timers = {effect.token for effect in run.effects if isinstance(effect, Timer)}
        begun, undone, undo_at = set(ghost.begun), set(ghost.undone), ghost.undo_at
        if by is not None and by.reply is not None and by.reply.ok and before.pending[by.command].role == "undo":
            undone.add((before.pending[by.command].step, before.pending[by.command].item))
        for send in sends:
            self.messages[send.id] = send.message
            self._must(not send.awaited or send.id in state.pending, "what is sent is awaited")
            if not send.awaited:
                self._must(state.phase == "running", "nothing is given up but on the way forward")
                continue
            self._must(send.id in timers, "every command has a timer")
            self._must(self._due(run.effects, send.id) > send.deadline, "a command's timer is after its deadline")
            pending = state.pending[send.id]
            if pending.role in _FORWARD:
                self._must(state.phase == "running", "no step begins once the saga gives back, waits or has ended")
                begun |= {(pending.step, pending.item)} if pending.role == "do" else set()
            else:
                past = any(self.saga.steps[index].pivot for index, _ in begun)
                self._must(not past, "past the point of no return nothing is taken back")
                self._must((pending.step, pending.item) in begun, "only what was begun is undone")
                self._must((pending.step, pending.item) not in undone, "what is undone is not undone again")
                self._must(undo_at is None or pending.step <= undo_at, "steps are undone backwards")
                undo_at = pending.step
        answers = sum(isinstance(effect, Answer) for effect in run.effects)
        return Ghost(
            begun=frozenset(begun),
            undone=frozenset(undone),
            undo_at=undo_at,
            answered=ghost.answered + answers,
        )

    def _due(self, effects: Sequence[Effect], token: str) -> datetime:
        return next(effect.due_at for effect in effects if isinstance(effect, Timer) and effect.token == token)

    def _check_step(self, before: SagaState, run: Run, ghost: Ghost) -> None:
        """What must hold between a state and the next."""
        state = run.state
        for old, new in zip(before.records, state.records, strict=True):
            allowed = old.status is new.status or self._leads(old.status, new.status)
            self._must(allowed, f"{new.name} goes from {old.status} to {new.status}")
            self._must(new.attempts >= old.attempts, f"{new.name}: attempts are counted up")
        if before.phase == "running" and state.phase in ("running", "parked"):
            self._must(_progress(state) >= _progress(before), "progress does not go back on the way forward")
        self._must(not (before.cancelled and not state.cancelled), "a cancel is not forgotten")
        self._must(ghost.answered <= 1, "whoever asked is answered once")

    def _leads(self, old: StepStatus, new: StepStatus) -> bool:
        return new in _NEXT[old] or any(new in _NEXT[middle] for middle in _NEXT[old])

    def _check_state(self, state: SagaState, ghost: Ghost, ids: frozenset[str]) -> None:
        self._must(set(state.pending) <= ids, "whatever is awaited has a timer")
        lanes = [(pending.step if pending.role.endswith("undo") else -1, pending.item) for pending in _values(state)]
        self._must(len(lanes) == len(set(lanes)), f"one command at a time for an item: {lanes}")
        if state.phase == "finished":
            self._check_finished(state, ghost)
        elif state.phase == "parked":
            self._must(state.waiting_for.startswith("a human: "), "who waits says for whom and why")
            self._must(state.status is OperationStatus.RUNNING, "who waits has not ended")
        else:
            self._must(bool(state.pending), f"a saga that is {state.phase} waits for something")
        items = [str(item.get("id") or "") for item in state.data.get(self.saga.each, [])] if self.saga.each else []
        self._must("" not in items and len(set(items)) == len(items), f"items have ids of their own: {items}")

    def _check_finished(self, state: SagaState, ghost: Ghost) -> None:
        self._must(not state.pending, "who has ended waits for nothing")
        self._must(ghost.answered == 1, "whoever asked is answered when it ends")
        if state.status is OperationStatus.SUCCEEDED:
            self._must(not ghost.undone, "nothing is undone of what succeeded")
            self._must(all(record.status is StepStatus.SUCCEEDED for record in state.records), "every step succeeded")
            return
        self._must(all(record.status is not StepStatus.RUNNING for record in state.records), "no step runs at the end")
        owed = {(step, key) for step, key in ghost.begun if self._takes_back(state, step, key)}
        self._must(owed == ghost.undone & owed, f"what was begun is undone: {sorted(owed - ghost.undone)} was not")

    def _takes_back(self, state: SagaState, index: int, key: str) -> bool:
        """Whether the step has anything to undo for an item that is still the saga's (others were given up)."""
        step = self.saga.steps[index]
        item = next((item for item in state.data.get(step.each, []) if item["id"] == key), None) if step.each else None
        if step.each and item is None:
            swapped = isinstance(next(s for s in self.saga.steps if s.each).on_failure, Swap) or bool(state.swaps)
            self._must(swapped or step.undo is None, f"{key} was left out with {step.name} not given back")
            return False
        return step.undo_command(state.data_with_problem(), item) is not None

    # -- the graph ------------------------------------------------------------------------------

    def _add(self, state: SagaState, ghost: Ghost, ids: frozenset[str]) -> int:
        """The number of the state, new or known."""
        self._check_state(state, ghost, ids)
        text = _without_texts(state)
        key = (text, ghost)
        if key in self.numbers:
            return self.numbers[key]
        number = self.numbers[key] = len(self.nodes)
        self._must(number < self.limit, f"there are more than {self.limit} states; make the world smaller")
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
                    self._must(False, "no course sends one id twice")
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
            self._must(False, "every state leads to an end")

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
            self._must(resting, "silence ends at an end or with a human")
        seen = 0
        while settled:
            seen += 1
            for before in into.get(settled.popleft(), ()):
                open_edges[before] -= 1
                if not open_edges[before]:
                    settled.append(before)
        self._must(seen == len(self.nodes), "silence goes round in circles")

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"{self.saga.kind}: {what}\n  after " + ", ".join(self._course()))

    def _course(self) -> list[str]:
        number, by = self.here
        names = [by]
        while number is not None:
            node = self.nodes[number]
            names.append(node.by)
            number = node.came_from
        return names[::-1]


def _ids(run: Run, *, commands_only: bool = False) -> frozenset[str]:
    commands = {effect.id for effect in run.effects if isinstance(effect, Send)}
    timers = {effect.token for effect in run.effects if isinstance(effect, Timer)}
    return frozenset(commands if commands_only else commands | timers)


def _values(state: SagaState) -> list[Pending]:
    return list(state.pending.values())


def _progress(state: SagaState) -> float:
    facts: Any = state.facts(service="x", target_kind="x", target_id="x", correlation_id="x", now=NOW)
    return float(facts.progress)


def _without_texts(state: SagaState) -> str:
    """The state as JSON, its texts made one: no decision looks at them."""
    for index, record in enumerate(state.records):
        if record.last_error is not None:
            state.set_record(index, last_error=_TEXT)
    state.notes = []
    if state.problem is not None:
        state.problem = _TEXT
    if state.waiting_for:
        state.waiting_for = "a human: x"
    if "dropped" in state.data:
        state.data = {**state.data, "dropped": [{**each, "problem": {}} for each in state.data["dropped"]]}
    return state.model_dump_json()
