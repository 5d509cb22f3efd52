"""The pure core of sagas: state + (start | reply | timer | cancel | resume) → state + effects.

No clock, no I/O, no randomness: `now` comes in, command ids are derived from (saga, step, item, attempt).
What is not awaited (a late, repeated or foreign reply; a timer of a step that moved on) changes nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from libs.contracts.ids import derived_uuid
from libs.contracts.message import Message
from libs.contracts.operations import OperationStatus, OperationStep, StepStatus
from libs.contracts.replies import Outcome, Problem, Reply
from libs.contracts.replies import ok as ok_reply
from libs.saga.dsl import Data, Item, Saga, Sent, Step, Swap, ToSite
from libs.saga.effects import Answer, Effect, Send, Timer
from libs.saga.problems import timed_out, unreadable
from libs.saga.state import Pending, SagaState, Track

UNDO_RETRIES = 3
UNDO_WITHIN = timedelta(minutes=5)
SWAP_WITHIN = timedelta(minutes=2)
# A command may begin until its deadline; its answer needs a moment more before it counts as missing.
ANSWER_GRACE = timedelta(seconds=2)
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
MAX_NOTES = 50


class Run:
    """One decision on one saga. `state` is changed in place; `effects` says what to do about it."""

    def __init__(self, saga: Saga, state: SagaState, now: datetime) -> None:
        self.saga, self.state, self.now = saga, state, now
        self.effects: list[Effect] = []

    # -- inputs ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._advance()

    def reply(self, command_id: str, reply: Reply) -> bool:
        """An answer came. Returns False when it is not awaited (late, repeated, foreign)."""
        pending = self.state.pending.get(command_id)
        if pending is None or pending.role in ("retry", "retry_undo"):
            return False
        del self.state.pending[command_id]
        self._answered(pending, reply)
        self._advance()
        return True

    def timer(self, token: str) -> bool:
        """A timer fired. Returns False when the saga has moved on."""
        pending = self.state.pending.pop(token, None)
        if pending is None:
            return False
        if pending.role not in ("retry", "retry_undo"):
            step = self.saga.steps[pending.step]
            self._answered(pending, Reply(outcome=Outcome.UNKNOWN, problem=timed_out(step.name, pending.item)))
        elif self.state.phase != "parked":  # A human's word sends again whatever is not done.
            send = self._send_step if pending.role == "retry" else self._send_undo
            send(pending.step, pending.item, pending.attempt)
        self._advance()
        return True

    def cancel(self, reason: str) -> bool:
        """Compensate from here. Returns False when it is too late (ended, compensating or past the pivot)."""
        if self.state.phase != "running" or self._pivot_passed():
            return False
        self.state.cancelled = True
        self._begin_undo(Problem(code="operation.cancelled", message=reason))
        self._advance()
        return True

    def resume(self) -> bool:
        """A human says: try again. Returns False unless the saga is parked."""
        if self.state.phase != "parked":
            return False
        self.state.phase, self.state.waiting_for = self.state.parked_from, ""
        self.state.resumes += 1
        self._advance()
        return True

    def park(self, why: str) -> bool:
        """Await nothing more and wait for a human. Returns False when it has ended."""
        if self.state.phase == "finished":
            return False
        self.state.pending.clear()
        if self.state.phase != "parked":
            self._park(why)
        else:
            self.state.waiting_for = f"a human: {why}"
        return True

    def _answered(self, pending: Pending, reply: Reply) -> None:
        match pending.role:
            case "do":
                self._step_answered(pending, reply)
            case "swap":
                self._swap_answered(pending, reply)
            case _:
                self._undo_answered(pending, reply)

    # -- forward --------------------------------------------------------------------------------

    def _advance(self) -> None:
        while self.state.phase == "running":
            if self.state.step == len(self.saga.steps):
                self._finish(OperationStatus.SUCCEEDED)
            elif not self._step_complete(self.state.step):
                return
        if self.state.phase == "undoing":
            self._advance_undo()

    def _step_complete(self, index: int) -> bool:
        """Send what the step still needs; True (and the saga moves on) when nothing is left."""
        step = self.saga.steps[index]
        if self.state.records[index].status is StepStatus.PENDING:
            self.state.set_record(index, status=StepStatus.RUNNING, started_at=self.now)
        keys = [str(item["id"]) for item in self._items(step)] if step.each else [""]
        for key in keys:
            self._drive(key, index)
            if self.state.phase != "running":
                return False
        if step.each:
            done = sum(1 for key in keys if self.state.tracks[key].at > index)
            self.state.set_record(index, items_done=done, items_all=len(keys))
        if any(self.state.tracks[key].at <= index for key in keys):
            return False
        self.state.set_record(index, status=StepStatus.SUCCEEDED, finished_at=self.now)
        self.state.step = index + 1
        if step.answers:
            self._answer(ok_reply(**self.saga.result(self.state.data)))
        return True

    def _items(self, step: Step) -> list[Item]:
        items: list[Item] = self.state.data.get(step.each, [])
        return items

    def _item(self, step: Step, key: str) -> Item | None:
        return next((item for item in self._items(step) if str(item["id"]) == key), None)

    def _drive(self, key: str, index: int) -> None:
        """Bring one item up to the saga's step, one command at a time."""
        track = self.state.tracks.setdefault(key, Track(at=index))
        if any(pending.item == key for pending in self.state.pending.values()):
            return
        while track.at <= index:
            step = self.saga.steps[track.at]
            if bool(step.each) == bool(key) and self._send_step(track.at, key, track.attempt):
                return
            track.at, track.attempt = track.at + 1, 1

    def _send_step(self, index: int, key: str, attempt: int) -> bool:
        """Send the step's command for the item. Returns False when there is nothing to send."""
        step = self.saga.steps[index]
        sent = step.command(self.state.data, self._item(step, key) if step.each else None)
        if sent is None:
            return False
        track = self.state.tracks[key]
        if index not in track.started:
            track.started.append(index)
        self.state.set_record(index, attempts=max(self.state.records[index].attempts, attempt))
        self._send(sent, Pending(role="do", step=index, item=key, attempt=attempt), step.within)
        return True

    def _id(self, role: str, step: int, item: str, attempt: int) -> str:
        """The same for the same decision, and new for a new one: a receiver takes an id it knows for a repeat.

        After a swap or a human's word the attempts are counted from one again, so both are part of it.
        """
        state = self.state
        return derived_uuid(state.id, role, str(step), item, str(attempt), str(state.swaps), str(state.resumes))

    def _send(self, sent: Sent, pending: Pending, within: timedelta) -> None:
        assert sent is not None
        command_id = self._id(pending.role, pending.step, pending.item, pending.attempt)
        deadline = self.now + within
        self.state.pending[command_id] = pending
        self.effects.append(_send(command_id, sent, deadline, awaited=True))
        self.effects.append(Timer(command_id, deadline + ANSWER_GRACE))

    def _step_answered(self, pending: Pending, reply: Reply) -> None:
        step = self.saga.steps[pending.step]
        problem = reply.problem
        outcome = reply.outcome
        if outcome is Outcome.OK:
            problem = self._taken_in(step, pending.item, reply.data)
            outcome = Outcome.OK if problem is None else Outcome.REFUSED
        track = self.state.tracks[pending.item]
        if outcome is Outcome.OK:
            track.at, track.attempt = pending.step + 1, 1
            return
        problem = problem or Problem(code=f"saga.step_{outcome.value}", message=f"{step.name} answered {outcome.value}")
        self.state.set_record(pending.step, last_error=problem)
        if self.state.phase == "parked":
            track.attempt = 1  # Another item waits for a human, whose word sends this one again, too.
        elif outcome in (Outcome.FAILED, Outcome.UNKNOWN) and pending.attempt <= step.retries:
            self._retry_later(pending, "retry")
        else:
            self._step_failed(step, pending, problem)

    def _taken_in(self, step: Step, key: str, data: Data) -> Problem | None:
        """Keep an OK answer's data. Returns why not: `check` says no, or it is not what the step can read."""
        try:
            problem = step.check(data) if step.check is not None else None
            if problem is None:
                self._keep(step, key, data)
            return problem
        except Exception as error:  # Whatever a peer sends, the saga goes on: forward, back or to a human.
            return unreadable(step.name, error)

    def _keep(self, step: Step, key: str, data: Data) -> None:
        if step.then is None:
            return
        if not step.each:
            self.state.data = _with_own_ids(step.then(self.state.data, data), self.saga.each)
            return
        items = [step.then(item, data) if str(item["id"]) == key else item for item in self._items(step)]
        self.state.data = {**self.state.data, step.each: items}

    def _retry_later(self, pending: Pending, role: str) -> None:
        attempt = pending.attempt + 1
        again = Pending.model_validate({**pending.model_dump(), "role": role, "attempt": attempt})
        if role == "retry":
            self.state.tracks[pending.item].attempt = attempt
        token = self._id(role, pending.step, pending.item, attempt)
        wait = min(FIRST_RETRY_SECONDS * 2 ** (attempt - 2), LONGEST_RETRY_SECONDS)
        self.state.pending[token] = again
        self.effects.append(Timer(token, self.now + timedelta(seconds=wait)))

    def _step_failed(self, step: Step, pending: Pending, problem: Problem) -> None:
        if step.on_failure == "drop":
            self._drop(step, pending.item, problem)
        elif isinstance(step.on_failure, Swap):
            self._swap(step, step.on_failure, pending, problem)
        else:
            self._give_up(step, pending.item, problem)

    def _give_up(self, step: Step, key: str, problem: Problem) -> None:
        """Give back what was taken; past the point of no return a human decides instead."""
        if not self._pivot_passed():
            self._begin_undo(problem)
            return
        self.state.tracks[key].attempt = 1
        self._park(f"{step.name} failed after the point of no return: {problem.message}")

    def _drop(self, step: Step, key: str, problem: Problem) -> None:
        dropped = [*self.state.data.get("dropped", []), {"id": key, "problem": problem.model_dump(mode="json")}]
        items = [item for item in self._items(step) if str(item["id"]) != key]
        self.state.data = {**self.state.data, step.each: items, "dropped": dropped}
        self.state.tracks.pop(key, None)
        self._note(f"{step.name}: {key} left out: {problem.message}")

    # -- swaps ----------------------------------------------------------------------------------

    def _swap(self, step: Step, rule: Swap, pending: Pending, problem: Problem) -> None:
        item = self._item(step, pending.item)
        assert item is not None
        if self.state.swaps >= rule.limit(self.state.data):
            used_up = f"{problem.message} (and the limit of {self.state.swaps} replacements is used up)"
            self._give_up(step, pending.item, problem.model_copy(update={"message": used_up}))
            return
        self.state.swaps += 1
        self._note(f"{step.name}: {pending.item} is replaced: {problem.message}")
        discarded = rule.discard(self.state.data, item, problem)
        if discarded is not None:
            discard_id = self._id("discard", pending.step, pending.item, 1)
            self.effects.append(_send(discard_id, discarded, self.now + UNDO_WITHIN, awaited=False))
        swapping = Pending(role="swap", step=pending.step, item=pending.item, attempt=1)
        self._send(rule.replace(self.state.data, item, problem), swapping, SWAP_WITHIN)

    def _swap_answered(self, pending: Pending, reply: Reply) -> None:
        step = self.saga.steps[pending.step]
        assert isinstance(step.on_failure, Swap)
        problem = reply.problem or Problem(code="saga.no_replacement", message=reply.outcome.value)
        if reply.ok:
            unreadable = self._swapped_in(step, step.on_failure, pending.item, reply.data)
            if unreadable is None:
                return
            problem = unreadable
        cause = self.state.records[pending.step].last_error
        message = f"{cause.message if cause else step.name}; no replacement: {problem.message}"
        none = problem.model_copy(update={"code": "saga.no_replacement", "message": message})
        if self.state.phase == "parked":
            self.state.tracks[pending.item].attempt = 1
        else:
            self._give_up(step, pending.item, none)

    def _swapped_in(self, step: Step, rule: Swap, key: str, data: Data) -> Problem | None:
        """Put the new item in the old one's place. Returns why not."""
        try:
            new = rule.then(self.state.data, data)
            items = [new if str(item["id"]) == key else item for item in self._items(step)]
            self.state.data = _with_own_ids({**self.state.data, step.each: items}, step.each)
        except Exception as error:  # As for any other answer.
            return unreadable(step.name, error)
        self.state.tracks.pop(key, None)
        first = next(index for index, each in enumerate(self.saga.steps) if each.each)
        self.state.tracks[str(new["id"])] = Track(at=first)
        self._note(f"{key} was replaced by {new['id']}")
        return None

    # -- backward -------------------------------------------------------------------------------

    def _begin_undo(self, problem: Problem) -> None:
        self.state.problem = problem
        self.state.phase = "undoing"
        self.state.pending.clear()
        index = min(self.state.step, len(self.saga.steps) - 1)
        self.state.set_record(index, status=StepStatus.FAILED, finished_at=self.now, last_error=problem)
        self.state.step = index

    def _advance_undo(self) -> None:
        """Undo step by step, backwards; the items of one step together."""
        while self.state.step >= 0:
            if not self._undo_complete(self.state.step):
                return
            self.state.step -= 1
        self._finish(OperationStatus.CANCELLED if self.state.cancelled else OperationStatus.FAILED)

    def _undo_complete(self, index: int) -> bool:
        """Send what is still to be undone of the step; True when nothing is left."""
        step = self.saga.steps[index]
        if step.undo is None:
            return True
        self.state.set_record(index, status=StepStatus.UNDOING)
        awaited = {pending.item for pending in self.state.pending.values()}
        for key in self._to_undo(step, index):
            if key not in awaited:
                self._send_undo(index, key, 1)
        if self.state.pending:
            return False
        self.state.set_record(index, status=StepStatus.UNDONE, finished_at=self.now)
        return True

    def _to_undo(self, step: Step, index: int) -> list[str]:
        keys = [str(item["id"]) for item in self._items(step)] if step.each else [""]
        tracks = {key: self.state.tracks[key] for key in keys if key in self.state.tracks}
        return [key for key, track in tracks.items() if index in track.started and index not in track.undone]

    def _send_undo(self, index: int, key: str, attempt: int) -> None:
        step = self.saga.steps[index]
        sent = step.undo_command(self.state.data_with_problem(), self._item(step, key) if step.each else None)
        if sent is None:
            self.state.tracks[key].undone.append(index)
        else:
            self._send(sent, Pending(role="undo", step=index, item=key, attempt=attempt), UNDO_WITHIN)

    def _undo_answered(self, pending: Pending, reply: Reply) -> None:
        if reply.ok:
            self.state.tracks[pending.item].undone.append(pending.step)
            return
        step = self.saga.steps[pending.step]
        problem = reply.problem or Problem(code="saga.undo_failed", message=reply.outcome.value)
        self.state.set_record(pending.step, last_error=problem)
        if self.state.phase == "parked":
            return
        if pending.attempt <= UNDO_RETRIES:
            self._retry_later(pending, "retry_undo")
            return
        self.state.set_record(pending.step, status=StepStatus.FAILED)
        self._park(f"taking back {step.name} failed {pending.attempt} times: {problem.message}")

    # -- endings --------------------------------------------------------------------------------

    def _park(self, why: str) -> None:
        self.state.parked_from = self.state.phase
        self.state.phase = "parked"
        self.state.waiting_for = f"a human: {why}"

    def _finish(self, status: OperationStatus) -> None:
        self.state.phase, self.state.status = "finished", status
        self.state.pending.clear()
        if status is OperationStatus.SUCCEEDED:
            self.state.result = self.saga.result(self.state.data)
            self._answer(ok_reply(**self.state.result))
            return
        for index, record in enumerate(self.state.records):
            if record.status is StepStatus.PENDING:
                self.state.set_record(index, status=StepStatus.SKIPPED)
        problem = self.state.problem or Problem(code="operation.failed", message="the operation failed")
        self._answer(Reply(outcome=Outcome.FAILED, problem=problem))

    def _answer(self, reply: Reply) -> None:
        if not self.state.answered:
            self.state.answered = True
            self.effects.append(Answer(reply))

    def _pivot_passed(self) -> bool:
        return any(
            step.pivot and record.status is not StepStatus.PENDING
            for step, record in zip(self.saga.steps, self.state.records, strict=True)
        )

    def _note(self, text: str) -> None:
        self.state.notes = [*self.state.notes, text][-MAX_NOTES:]


def new_state(saga: Saga, saga_id: str, data: Data, now: datetime) -> SagaState:
    """A saga that has not been started yet. Raises ValueError for items without ids of their own."""
    _with_own_ids(data, saga.each)
    records = [OperationStep(name=step.name) for step in saga.steps]
    return SagaState(id=saga_id, kind=saga.kind, data={**data, "saga_id": saga_id}, records=records, created_at=now)


def _send(command_id: str, sent: Message | ToSite, deadline: datetime, *, awaited: bool) -> Send:
    if isinstance(sent, ToSite):
        return Send(command_id, sent.message, sent.site, deadline, awaited)
    return Send(command_id, sent, None, deadline, awaited)


def _with_own_ids(data: Data, each: str) -> Data:
    """`data`, when every item of its list has an id of its own. Raises ValueError naming what is wrong.

    A blank id would pass for "no item" and be skipped without a word; one of two items with one id would never be done.
    """
    ids = [str(item.get("id") or "") for item in data.get(each, [])] if each else []
    if "" in ids:
        raise ValueError(f"{each}: an item has no id")
    twice = sorted({key for key in ids if ids.count(key) > 1})
    if twice:
        raise ValueError(f"{each}: {', '.join(twice)} is there twice")
    return data


__all__ = ["Answer", "Effect", "Run", "Send", "Timer", "new_state"]
