"""The saga core explored: every course of small processes, of the real ones, and that seeded bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from libs.contracts.operations import OperationStatus
from libs.contracts.replies import Reply
from libs.saga import core, saga, step
from libs.saga.core import Run
from libs.saga.effects import Send, Timer
from libs.saga.state import Pending
from libs.testing.saga_explorer import explore
from libs.testing.saga_promises import Violation
from tests.unit.libs.saga import small

# Least numbers of states, so that a walk that stops early is no pass.
LEAST = {
    "once": 150,
    "each": 2000,
    "some": 150,
    "drop": 1000,
    "pivot": 300,
    "swap behind the pivot": 500,
    "swap": 3000,
    "everything": 5000,
}
MANY = {OperationStatus.SUCCEEDED, OperationStatus.FAILED, OperationStatus.CANCELLED}


@pytest.fixture(autouse=True)
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo is tried twice instead of four times: more of the same shows nothing new."""
    monkeypatch.setattr(core, "UNDO_RETRIES", 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", small.WORLDS)
def test_every_course_of_a_small_process_keeps_every_promise(name: str) -> None:
    found = explore(small.WORLDS[name])
    print(f"{name}: {found}")
    assert found.states > LEAST[name]
    # Behind a pivot that comes first there is no way back.
    assert found.statuses == ({OperationStatus.SUCCEEDED} if name == "swap behind the pivot" else MANY)


# -- a bug that is put in is found ------------------------------------------------------------------

_reply, _begin_undo, _finish = Run.reply, Run._begin_undo, Run._finish
_send, _id, _undo_answered, _drop = Run._send, Run._id, Run._undo_answered, Run._drop
_swapped_in, _to_undo, _drive, _park = Run._swapped_in, Run._to_undo, Run._drive, Run._park


def _taken_twice(run: Run, command_id: str, reply: Reply) -> bool:
    pending = run.state.pending.get(command_id)
    taken = _reply(run, command_id, reply)
    if taken and pending is not None and run.state.phase != "finished":
        run.state.pending[command_id] = pending
    return taken


def _anything_is_an_answer(run: Run, command_id: str, reply: Reply) -> bool:
    if command_id in run.state.pending:
        return _reply(run, command_id, reply)
    run.state.swaps += 1
    return False


def _awaits_on(run: Run, problem: object) -> None:
    pending = dict(run.state.pending)
    _begin_undo(run, problem)  # type: ignore[arg-type]
    run.state.pending |= pending


def _cancels_whatever(run: Run, reason: str) -> bool:
    _begin_undo(run, small.only_good({"good": False}))  # type: ignore[arg-type]
    run._advance()
    return True


def _without_timers(run: Run, *args: object) -> None:
    _send(run, *args)  # type: ignore[arg-type]
    run.effects = [effect for effect in run.effects if not isinstance(effect, Timer)]


def _timer_at_the_deadline(run: Run, *args: object) -> None:
    _send(run, *args)  # type: ignore[arg-type]
    run.effects = [
        Timer(each.token, each.due_at - timedelta(seconds=2)) if isinstance(each, Timer) else each
        for each in run.effects
    ]


def _sent_twice(run: Run, *args: object) -> None:
    _send(run, *args)  # type: ignore[arg-type]
    last = next(each for each in run.effects[::-1] if isinstance(each, Send))
    run.effects.append(Send(f"{last.id}'", last.message, last.site, last.deadline, True))


def _old_ids(run: Run, role: str, at: int, item: str, attempt: int) -> str:
    resumes, run.state.resumes = run.state.resumes, 0
    made = _id(run, role, at, item, attempt)
    run.state.resumes = resumes
    return made


def _one_id_for_all_attempts(run: Run, role: str, at: int, item: str, attempt: int) -> str:
    return _id(run, role, at, item, 1)


def _undoes_past_the_pivot(run: Run, at: object, pending: Pending, problem: object) -> None:
    run._begin_undo(problem)  # type: ignore[arg-type]


def _forgets_undone(run: Run, pending: Pending, reply: Reply) -> None:
    _undo_answered(run, pending, reply)
    if reply.ok and run.state.pending:
        run.state.tracks[pending.item].undone.clear()


def _leaves_one_out(run: Run, at: object, index: int) -> list[str]:
    return [key for key in _to_undo(run, at, index) if key != "m2"]  # type: ignore[arg-type]


def _parks_without_a_word(run: Run, why: str) -> None:
    _park(run, why)
    run.state.waiting_for = ""


def _finishes_twice(run: Run, status: OperationStatus) -> None:
    _finish(run, status)
    run.state.answered = False
    run._answer(Reply.model_validate({"outcome": "ok"}))


def _ends_while_others_run(run: Run, at: object, key: str, problem: object) -> None:
    _drop(run, at, key, problem)  # type: ignore[arg-type]
    _finish(run, OperationStatus.FAILED)


def _keeps_the_old_track(run: Run, *args: object) -> object:
    problem = _swapped_in(run, *args)  # type: ignore[arg-type]
    for track in run.state.tracks.values():
        track.at = 0
    return problem


def _drives_past_what_is_awaited(run: Run, key: str, index: int) -> None:
    awaited = dict(run.state.pending)
    run.state.pending = {token: each for token, each in awaited.items() if each.item != key}
    if run.state.swaps:
        run.state.swaps += 1
    _drive(run, key, index)
    run.state.pending = awaited | run.state.pending


BUGS: tuple[tuple[str, str, Callable[..., object], str], ...] = (
    ("a reply is taken twice", "reply", _taken_twice, "each"),
    ("a foreign reply is taken", "reply", _anything_is_an_answer, "once"),
    ("what was awaited is awaited on when giving back", "_begin_undo", _awaits_on, "each"),
    ("a cancel is taken in any phase", "cancel", _cancels_whatever, "pivot"),
    ("a command has no timer", "_send", _without_timers, "once"),
    ("a timer is due too early", "_send", _timer_at_the_deadline, "once"),
    ("a command is sent twice", "_send", _sent_twice, "once"),
    ("a resumed saga uses its old ids", "_id", _old_ids, "once"),
    ("attempts share an id", "_id", _one_id_for_all_attempts, "once"),
    ("a failure past the pivot is compensated", "_step_failed", _undoes_past_the_pivot, "pivot"),
    ("what is undone is forgotten", "_undo_answered", _forgets_undone, "each"),
    ("one item is not undone", "_to_undo", _leaves_one_out, "each"),
    ("a saga waits without a reason", "_park", _parks_without_a_word, "once"),
    ("the caller is answered twice", "_finish", _finishes_twice, "once"),
    ("a dropped item ends it for all", "_drop", _ends_while_others_run, "drop"),
    ("a swap sends everybody back", "_swapped_in", _keeps_the_old_track, "swap"),
    ("an item is driven while it is awaited", "_drive", _drives_past_what_is_awaited, "each"),
)


@pytest.mark.parametrize(("method", "bug", "where"), [bug[1:] for bug in BUGS], ids=[bug[0] for bug in BUGS])
def test_a_bug_that_is_put_into_the_core_is_found(
    monkeypatch: pytest.MonkeyPatch, method: str, bug: Callable[..., object], where: str
) -> None:
    monkeypatch.setattr(Run, method, bug)
    with pytest.raises(Violation) as found:
        explore(small.WORLDS[where], limit=20_000)
    print(found.value)


def test_a_declaration_by_which_a_dropped_item_would_keep_what_it_took_is_refused() -> None:
    with pytest.raises(TypeError, match="take undone"):
        saga(
            "leaky",
            step(small.take, each="machines", undo=small.give_back),
            step(small.work, each="machines", on_failure="drop"),
        )
