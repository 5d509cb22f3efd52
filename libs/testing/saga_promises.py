"""What the saga core promises, checked from outside on every decision: between two states, and in each.

The world around a saga remembers what was begun and undone (`Ghost`); the saga's own books are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from libs.contracts.ids import derived_uuid
from libs.contracts.message import Message
from libs.contracts.operations import OperationStatus, StepStatus
from libs.contracts.replies import Outcome, Problem, Reply, ok
from libs.saga.core import Run, new_state
from libs.saga.dsl import Data, Saga, Swap
from libs.saga.effects import Answer, Effect, Send, Timer
from libs.saga.state import SagaState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TEXT = Problem(code="x", message="x")
_LATE = ok()
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


@dataclass(frozen=True)
class Input:
    """One thing that may happen. `silence` marks what happens when nobody ever says anything: time passes."""

    name: str
    apply: Callable[[Run], bool]
    command: str = ""
    reply: Reply | None = None
    silence: bool = False


class Promises:
    """The checks for one saga in its world. Each raises Violation naming what does not hold."""

    def __init__(self, world: World) -> None:
        self.world, self.saga = world, world.saga
        self.messages: dict[str, Message] = {}

    def first(self) -> SagaState:
        """The saga before it starts."""
        base = {"actor": "user:test", "tenant": "-", "site": "-", "correlation_id": "c-1"}
        return new_state(self.saga, derived_uuid("explored", self.saga.kind), {**base, **self.world.data}, NOW)

    def inputs(self, state: SagaState) -> Iterator[Input]:
        """Everything that may happen in a state."""
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

    def start(self) -> tuple[Run, Ghost]:
        """The first decision."""
        before = self.first()
        run = Run(self.saga, self.first(), NOW)
        run.start()
        return run, self._after(Ghost(), before, run, None)

    def take(self, kept: str, before: SagaState, ghost: Ghost, by: Input) -> tuple[Run, Ghost] | None:
        """Decide on `by` in the state `kept` (`before` is the same, read from JSON). None when it is refused."""
        run = Run(self.saga, SagaState.model_validate_json(kept), NOW)
        if not by.apply(run):
            self.must(run.state.model_dump_json() == kept and not run.effects, "what is refused changes nothing")
            return None
        self.must(before.phase != "finished", "a finished saga is final")
        after = self._after(ghost, before, run, by)
        self._check_move(before, run, after)
        return run, after

    def check_ignored(self, state: SagaState, ids: Iterable[str]) -> int:
        """Late, repeated and foreign answers and timers, every one of this course."""
        run = Run(self.saga, state, NOW)
        before = state.model_dump_json()
        settled = [*(frozenset(ids) - set(state.pending)), _FOREIGN]
        self.must(not any(map(run.timer, settled)), "a timer of a command that is settled does nothing")
        self.must(not any(run.reply(used, _LATE) for used in settled), "a late answer does nothing")
        for token in [key for key, pending in state.pending.items() if pending.role in _AWAITS_TIME]:
            self.must(not run.reply(token, ok()), "the time of a retry is no command that could be answered")
        self.must(not run.effects and state.model_dump_json() == before, "what is not awaited changes nothing")
        return 2 * len(settled)

    def _after(self, ghost: Ghost, before: SagaState, run: Run, by: Input | None) -> Ghost:
        """What the world knows after a decision; checks what was sent against it."""
        state = run.state
        sends = [effect for effect in run.effects if isinstance(effect, Send)]
        timers = {effect.token for effect in run.effects if isinstance(effect, Timer)}
        begun, undone, undo_at = set(ghost.begun), set(ghost.undone), ghost.undo_at
        answered = before.pending.get(by.command) if by is not None and by.reply is not None and by.reply.ok else None
        if answered is not None and answered.role == "undo":
            undone.add((answered.step, answered.item))
        for send in sends:
            self.messages[send.id] = send.message
            self.must(not send.awaited or send.id in state.pending, "what is sent is awaited")
            if not send.awaited:
                self.must(state.phase == "running", "nothing is given up but on the way forward")
                continue
            self.must(send.id in timers, "every command has a timer")
            self.must(self._due(run.effects, send.id) > send.deadline, "a command's timer is after its deadline")
            pending = state.pending[send.id]
            counted = pending.role != "do" or state.records[pending.step].attempts >= pending.attempt
            self.must(counted, "the attempts of a step are counted")
            if pending.role in _FORWARD:
                self.must(state.phase == "running", "no step begins once the saga gives back, waits or has ended")
                begun |= {(pending.step, pending.item)} if pending.role == "do" else set()
            else:
                past = any(self.saga.steps[index].pivot for index, _ in begun)
                self.must(not past, "past the point of no return nothing is taken back")
                self.must((pending.step, pending.item) in begun, "only what was begun is undone")
                self.must((pending.step, pending.item) not in undone, "what is undone is not undone again")
                self.must(undo_at is None or pending.step <= undo_at, "steps are undone backwards")
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

    def _check_move(self, before: SagaState, run: Run, ghost: Ghost) -> None:
        """What must hold between a state and the next."""
        state = run.state
        for old, new in zip(before.records, state.records, strict=True):
            if old.status is not new.status and not self._leads(old.status, new.status):
                self.must(False, f"{new.name} goes from {old.status} to {new.status}")
        moved = before.records != state.records
        if moved and before.phase == "running" and state.phase in ("running", "parked"):
            self.must(_progress(state) >= _progress(before), "progress does not go back on the way forward")
        self.must(not (before.cancelled and not state.cancelled), "a cancel is not forgotten")
        self.must(ghost.answered <= 1, "whoever asked is answered once")

    def _leads(self, old: StepStatus, new: StepStatus) -> bool:
        return new in _NEXT[old] or any(new in _NEXT[middle] for middle in _NEXT[old])

    def check_state(self, state: SagaState, ghost: Ghost, ids: frozenset[str]) -> None:
        self.must(set(state.pending) <= ids, "whatever is awaited has a timer")
        lanes = [
            (pending.step if pending.role.endswith("undo") else -1, pending.item) for pending in state.pending.values()
        ]
        self.must(len(lanes) == len(set(lanes)), f"one command at a time for an item: {lanes}")
        if state.phase == "finished":
            self._check_finished(state, ghost)
        elif state.phase == "parked":
            self.must(state.waiting_for.startswith("a human: "), "who waits says for whom and why")
            self.must(state.status is OperationStatus.RUNNING, "who waits has not ended")
        else:
            self.must(bool(state.pending), f"a saga that is {state.phase} waits for something")
        items = [str(item.get("id") or "") for item in state.data.get(self.saga.each, [])] if self.saga.each else []
        self.must("" not in items and len(set(items)) == len(items), f"items have ids of their own: {items}")

    def _check_finished(self, state: SagaState, ghost: Ghost) -> None:
        self.must(not state.pending, "who has ended waits for nothing")
        self.must(ghost.answered == 1, "whoever asked is answered when it ends")
        if state.status is OperationStatus.SUCCEEDED:
            self.must(not ghost.undone, "nothing is undone of what succeeded")
            self.must(all(record.status is StepStatus.SUCCEEDED for record in state.records), "every step succeeded")
            return
        self.must(all(record.status is not StepStatus.RUNNING for record in state.records), "no step runs at the end")
        owed = {(step, key) for step, key in ghost.begun if self._takes_back(state, step, key)}
        self.must(owed == ghost.undone & owed, f"what was begun is undone: {sorted(owed - ghost.undone)} was not")

    def _takes_back(self, state: SagaState, index: int, key: str) -> bool:
        """Whether the step has anything to undo for an item that is still the saga's (others were given up)."""
        step = self.saga.steps[index]
        item = next((item for item in state.data.get(step.each, []) if item["id"] == key), None) if step.each else None
        if step.each and item is None:
            swapped = isinstance(next(s for s in self.saga.steps if s.each).on_failure, Swap) or bool(state.swaps)
            self.must(swapped or step.undo is None, f"{key} was left out with {step.name} not given back")
            return False
        return step.undo_command(state.data_with_problem(), item) is not None

    def must(self, holds: bool, what: str) -> None:
        """Raise Violation saying `what` unless it holds."""
        if not holds:
            raise Violation(what)


def ids_of(run: Run, *, commands_only: bool = False) -> frozenset[str]:
    commands = {effect.id for effect in run.effects if isinstance(effect, Send)}
    timers = {effect.token for effect in run.effects if isinstance(effect, Timer)}
    return frozenset(commands if commands_only else commands | timers)


def _progress(state: SagaState) -> float:
    facts = state.facts(service="x", target_kind="x", target_id="x", correlation_id="x", now=NOW)
    return facts.progress
