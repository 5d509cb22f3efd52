"""The saga core, given answers and time: what it sends next, and how it ends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.inventory import ReturnMachine
from libs.contracts.operations import OperationStatus, StepStatus
from libs.contracts.replies import Outcome, Problem, Reply, failed, ok, refused
from libs.contracts.reservation import ReleaseReservation
from libs.saga.kit import SagaKit
from tests.unit.libs.saga.processes import dropping, everything

TWO = [{"id": "m1"}, {"id": "m2"}]


def held() -> SagaKit:
    kit = SagaKit(everything, {})
    kit.reply("hold", machines=TWO)
    return kit


def taken() -> SagaKit:
    kit = held()
    kit.reply_all("take")
    return kit


def test_steps_run_one_after_the_other_and_items_together() -> None:
    kit = SagaKit(everything, {})
    assert set(kit.sent()) == {"hold"}
    kit.reply("hold", machines=TWO)
    assert set(kit.sent()) == {"take/m1", "take/m2"}
    kit.reply("take", item="m1")
    assert set(kit.sent()) == {"take/m2"}
    kit.reply("take", item="m2")
    kit.reply_all("work")
    assert set(kit.sent()) == {"finish"}
    kit.reply("finish")
    assert kit.status is OperationStatus.SUCCEEDED
    assert kit.answers == [ok(machines=["m1", "m2"])]


def test_a_repeated_a_late_and_a_foreign_answer_change_nothing() -> None:
    kit = held()
    first = kit.sends[0].id
    before = kit.state.model_dump_json()
    assert not kit.reply_to(first, failed("late", "late"))
    assert not kit.reply_to("00000000-0000-0000-0000-000000000000", ok())
    assert kit.state.model_dump_json() == before


def test_a_failure_is_tried_again_as_often_as_declared_and_then_swapped() -> None:
    kit = taken()
    kit.reply("work", item="m1")
    kit.reply("work", item="m2", reply=failed("disk", "the disk is broken"))
    assert kit.sent() == {} and kit.retry_now() == 1
    kit.reply("work", item="m2", reply=failed("disk", "the disk is broken"))
    assert set(kit.sent()) == {"swap work/m2"}
    assert [type(m) for m in kit.forgotten()] == [ReturnMachine]
    kit.reply("swap work", item="m2", machine={"id": "m3"})
    assert set(kit.sent()) == {"take/m3"}, "a new machine does the earlier steps first"
    kit.reply("take", item="m3")
    kit.reply("work", item="m3")
    kit.reply("finish")
    assert kit.status is OperationStatus.SUCCEEDED and kit.answers == [ok(machines=["m1", "m3"])]


def test_a_refusal_is_not_tried_again() -> None:
    kit = taken()
    kit.reply("work", item="m2", reply=refused("held", "held by another"))
    assert set(kit.sent()) == {"work/m1", "swap work/m2"}


def test_silence_counts_as_unknown_and_is_swapped_after_its_retries() -> None:
    kit = taken()
    kit.reply("work", item="m1")
    kit.timeout("work", item="m2")
    kit.retry_now()
    kit.timeout("work", item="m2")
    assert set(kit.sent()) == {"swap work/m2"}


def test_the_answer_to_an_attempt_that_timed_out_is_not_taken_for_the_next_ones() -> None:
    kit = taken()
    kit.reply("work", item="m1")
    late = next(send.id for send in kit.sends if send.id in kit.state.pending)
    kit.timeout("work", item="m2")
    kit.retry_now()
    assert not kit.reply_to(late, ok())
    assert set(kit.sent()) == {"work/m2"}


def test_an_ok_answer_with_bad_data_is_a_failure() -> None:
    kit = taken()
    kit.reply("work", item="m1", good=False)
    assert "swap work/m1" in kit.sent()


def test_when_the_swaps_are_used_up_everything_is_given_back_in_reverse() -> None:
    kit = taken()
    kit.reply("work", item="m2", reply=refused("x", "no"))
    kit.reply("swap work", item="m2", machine={"id": "m3"})
    kit.reply("take", item="m3")
    kit.reply("work", item="m3", reply=refused("y", "broken too"))
    assert set(kit.sent()) == {"undo take/m1", "undo take/m3"}
    kit.reply_all("undo take")
    assert set(kit.sent()) == {"undo hold"}
    assert kit.status is OperationStatus.RUNNING, "FAILED only after everything was given back"
    kit.reply("undo hold")
    assert kit.status is OperationStatus.FAILED
    assert kit.answers[0].outcome is Outcome.FAILED and kit.answers[0].problem is not None
    assert "broken too" in kit.answers[0].problem.message
    assert kit.steps["finish"].status is StepStatus.SKIPPED


def test_no_replacement_fails_with_both_reasons() -> None:
    kit = taken()
    kit.reply("work", item="m2", reply=failed("disk", "the disk is broken"))
    kit.retry_now()
    kit.reply("work", item="m2", reply=failed("disk", "the disk is broken"))
    kit.reply("swap work", item="m2", reply=refused("none", "no machine is free"))
    problem = kit.state.problem
    assert problem is not None and "the disk is broken" in problem.message and "no machine is free" in problem.message


def test_an_undo_that_keeps_failing_waits_for_a_human_and_goes_on_when_told() -> None:
    kit = held()
    kit.cancel()
    for _ in range(3):
        kit.reply_all("undo take", reply=failed("x", "unreachable"))
        kit.retry_now()
    kit.reply("undo take", item="m1", reply=failed("x", "unreachable"))
    assert kit.state.phase == "parked" and kit.state.waiting_for.startswith("a human")
    assert kit.status is OperationStatus.RUNNING
    assert kit.resume()
    kit.reply_all("undo take")
    kit.reply("undo hold")
    assert kit.status is OperationStatus.CANCELLED


def test_a_cancel_gives_back_and_ends_cancelled() -> None:
    kit = taken()
    assert kit.cancel("not needed")
    assert not kit.cancel("again")
    kit.reply_all("undo take")
    undo = kit.sent()["undo hold"]
    assert isinstance(undo, ReleaseReservation) and undo.reason == "operation.cancelled"
    kit.reply("undo hold")
    assert kit.status is OperationStatus.CANCELLED


def test_past_the_pivot_there_is_no_cancel_and_a_failure_waits_for_a_human() -> None:
    kit = taken()
    kit.reply_all("work")
    assert not kit.cancel()
    kit.reply("finish", reply=failed("db", "database away"))
    kit.retry_now()
    kit.reply("finish", reply=failed("db", "database away"))
    assert kit.state.phase == "parked"
    assert kit.resume()
    kit.reply("finish")
    assert kit.status is OperationStatus.SUCCEEDED


def test_a_dropped_item_is_noted_and_the_others_go_on() -> None:
    kit = SagaKit(dropping, {"machines": TWO})
    kit.reply("work", item="m1", reply=refused("no", "a GPU is missing"))
    kit.reply("work", item="m2")
    assert kit.status is OperationStatus.SUCCEEDED
    assert kit.answers == [ok(dropped=["m1"])]
    assert kit.data["dropped"][0]["problem"]["message"] == "a GPU is missing"


def test_an_empty_list_is_done_at_once() -> None:
    assert SagaKit(dropping, {"machines": []}).status is OperationStatus.SUCCEEDED


ANSWERS = st.sampled_from(
    [
        ok(),
        failed("f", "failed"),
        refused("r", "refused"),
        Reply(outcome=Outcome.UNKNOWN),
        Reply(outcome=Outcome.EXPIRED, problem=Problem(code="e", message="expired")),
    ]
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_happens_a_saga_ends_or_waits_for_a_human_and_owes_nothing(data: st.DataObject) -> None:
    """Any mix of answers, time-outs, repeats and a cancel: it ends, and nothing stays awaited or taken twice."""
    kit = SagaKit(everything, {})
    taken_items: set[str] = set()
    fresh = iter(f"n{n}" for n in range(100))
    for _ in range(200):
        if kit.state.phase in ("finished", "parked"):
            break
        action = data.draw(st.sampled_from(["answer", "answer", "answer", "timeout", "repeat", "cancel", "retry"]))
        sent = sorted(kit.sent())
        if action == "cancel" and data.draw(st.integers(0, 9)) == 0:
            kit.cancel()
        elif action == "repeat" and kit.sends:
            kit.reply_to(data.draw(st.sampled_from(kit.sends)).id, ok(machines=TWO, machine={"id": next(fresh)}))
        elif action == "retry" or not sent:
            kit.retry_now()
        elif action == "timeout":
            step, _, item = data.draw(st.sampled_from(sent)).partition("/")
            kit.timeout(step, item=item)
        else:
            step, _, item = data.draw(st.sampled_from(sent)).partition("/")
            answer = data.draw(ANSWERS)
            if answer.ok and step == "take":
                taken_items.add(item)
            full = answer if not answer.ok else ok(machines=TWO, machine={"id": next(fresh)})
            kit.reply(step, item=item, reply=full)
    assert kit.state.phase in ("finished", "parked"), "200 inputs are enough for any course"
    assert not kit.state.pending or kit.state.phase == "parked"
    assert len(kit.answers) == (1 if kit.state.phase == "finished" else 0)
    ids = [item["id"] for item in kit.data.get("machines", [])]
    assert len(ids) == len(set(ids))
    if kit.status is OperationStatus.SUCCEEDED:
        assert set(ids) <= taken_items | {"m1", "m2"} | set(ids)
        assert len(ids) == 2
    if kit.status in (OperationStatus.FAILED, OperationStatus.CANCELLED):
        assert all(record.status is not StepStatus.RUNNING for record in kit.state.records)
