"""Inventory's processes, given replies, when they want what next."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.inventory import (
    EnrolMachine,
    MarkMachineFailed,
    RecordInspection,
    RecordReleased,
    RecordSanitised,
    RecordVerdict,
)
from libs.contracts.message import json_data
from libs.contracts.operations import OperationStatus
from libs.contracts.replies import failed, refused, unknown
from libs.contracts.site import EnrolNode, ReleaseNode, SanitizeNode
from libs.contracts.validation import RunSuite
from libs.saga import Saga, ToSite
from libs.saga.kit import SagaKit
from services.inventory import sagas
from services.inventory.sagas import machine_data
from tests.unit.services.inventory.machines import CLAIM, EVIDENCE, OPERATION, inspection, machine

INSPECTION = json_data(inspection())


def kit(of: Saga, **changes: Any) -> SagaKit:
    data = machine_data(machine(claim_id=CLAIM), OPERATION, credentials_ref="bmc/m", expected={"gpu_count": 8})
    return SagaKit(of, {**data, "fail_to": "FAILED", **changes})


def only(run: SagaKit) -> Any:
    (message,) = run.sent().values()
    return message.message if isinstance(message, ToSite) else message


def wipe_and_validate(run: SagaKit, verdict: str = "PASS") -> None:
    order = only(run)
    assert isinstance(order, SanitizeNode)
    run.reply("sanitize_node", run_id=order.run_id, evidence=EVIDENCE)
    record = only(run)
    assert isinstance(record, RecordSanitised) and record.run_id == order.run_id and record.evidence == EVIDENCE
    run.reply("record_sanitised", version=9, quarantined=False)
    suite = only(run)
    assert isinstance(suite, RunSuite) and suite.run_id == record.validate_run_id
    run.reply("run_validation", run_id=suite.run_id, verdict=verdict, checks=[])


def to_wipe(run: SagaKit) -> None:
    assert isinstance(only(run), EnrolNode)
    run.reply("make_node", provision_state="manageable")
    run.reply("inspect_hardware", **INSPECTION)
    assert isinstance(only(run), RecordInspection)
    run.reply("record_inspection", version=7)


def test_enrolment_goes_node_inspection_wipe_validation_available() -> None:
    run = kit(sagas.enrol_machine)
    to_wipe(run)
    assert only(run).machine_version == 7
    wipe_and_validate(run)
    record = only(run)
    assert isinstance(record, RecordVerdict) and record.verdict == "PASS"
    run.reply("record_verdict", verdict="PASS", again=False)
    assert run.status is OperationStatus.SUCCEEDED
    assert run.answers[-1].data["state"] == "AVAILABLE"


def test_hardware_that_differs_ends_the_enrolment_with_the_reason() -> None:
    run = kit(sagas.enrol_machine)
    run.reply("make_node")
    run.reply("inspect_hardware", **INSPECTION)
    run.reply("record_inspection", reply=refused("machine.hardware_mismatch", "GPU slot 4 is empty"))
    mark = only(run)
    assert isinstance(mark, MarkMachineFailed) and mark.problem.code == "machine.hardware_mismatch"
    run.reply("undo make_node")
    assert run.status is OperationStatus.FAILED
    assert run.answers[-1].problem is not None and "slot 4" in run.answers[-1].problem.message


def test_an_unreadable_inspection_is_no_inspection() -> None:
    run = kit(sagas.enrol_machine)
    run.reply("make_node")
    run.reply("inspect_hardware", gpus="eight", serial=None)
    assert isinstance(only(run), MarkMachineFailed)


@pytest.mark.parametrize("bad", [failed("x", "it broke"), unknown("y", "nobody knows")])
def test_a_site_step_is_tried_again_and_then_fails_with_its_problem(bad: Any) -> None:
    run = kit(sagas.enrol_machine)
    for _ in range(3):
        run.reply("make_node", reply=bad)
        run.retry_now()
    mark = only(run)
    assert isinstance(mark, MarkMachineFailed) and mark.problem.message == bad.problem.message


def test_an_inconclusive_suite_is_run_once_more_under_a_new_id() -> None:
    run = kit(sagas.enrol_machine)
    to_wipe(run)
    wipe_and_validate(run, "INCONCLUSIVE")
    record = only(run)
    assert isinstance(record, RecordVerdict) and record.next_run_id
    run.reply("record_verdict", verdict="INCONCLUSIVE", again=True)
    suite = only(run)
    assert isinstance(suite, RunSuite) and suite.run_id == record.next_run_id
    run.reply("run_validation_again", verdict="PASS")
    second = only(run)
    assert isinstance(second, RecordVerdict) and second.next_run_id is None and second.run_id == suite.run_id
    run.reply("record_second_verdict", verdict="PASS", again=False)
    assert run.status is OperationStatus.SUCCEEDED


def test_a_reply_without_a_verdict_is_inconclusive() -> None:
    run = kit(sagas.revalidate_machine)
    run.reply("run_validation")
    assert only(run).verdict == "INCONCLUSIVE"


def test_checks_that_did_not_pass_become_words() -> None:
    run = kit(sagas.revalidate_machine)
    check = {"check": "gpu_count", "verdict": "FAIL", "expected": "8", "found": "7"}
    run.reply("run_validation", verdict="FAIL", checks=[check, {"check": "x", "verdict": "PASS"}])
    record = only(run)
    assert "gpu_count" in record.problem.message and "expected 8, found 7" in record.problem.message


def test_a_return_answers_when_the_machine_was_observed_off_and_goes_on() -> None:
    run = kit(sagas.return_machine)
    order = only(run)
    assert isinstance(order, ReleaseNode) and order.claim_id == CLAIM
    assert run.answers == []
    run.reply("release_node", power_state="off", observed_at="2026-03-01T12:00:00Z")
    record = only(run)
    assert isinstance(record, RecordReleased) and record.power_state == "off"
    run.reply("record_released", version=8)
    assert len(run.answers) == 1 and not run.status.final
    wipe_and_validate(run)
    run.reply("record_verdict", verdict="PASS", again=False)
    assert run.status is OperationStatus.SUCCEEDED and len(run.answers) == 1


@pytest.mark.parametrize("reply", [{"power_state": "on"}, {"power_state": "unknown"}, {}])
def test_a_release_that_was_not_observed_off_is_no_release(reply: dict[str, Any]) -> None:
    run = kit(sagas.return_machine)
    run.reply("release_node", **reply)
    mark = only(run)
    assert isinstance(mark, MarkMachineFailed) and mark.problem.code == "machine.not_observed_off"


def test_a_return_into_quarantine_is_wiped_but_not_validated() -> None:
    run = kit(sagas.return_machine)
    run.reply("release_node", power_state="off")
    run.reply("record_released", version=8)
    run.reply("sanitize_node", run_id=only(run).run_id, evidence=EVIDENCE)
    run.reply("record_sanitised", version=9, quarantined=True)
    assert run.status is OperationStatus.SUCCEEDED and run.state.result["state"] == "QUARANTINED"


def test_cancelling_an_enrolment_marks_the_machine_failed() -> None:
    run = kit(sagas.enrol_machine)
    to_wipe(run)
    assert run.cancel()
    while run.status is OperationStatus.RUNNING:
        mark = only(run)
        assert isinstance(mark, MarkMachineFailed)
        run.reply(next(iter(run.sent())))
    assert run.status is OperationStatus.CANCELLED


def test_a_batch_goes_on_without_the_machines_that_fail_and_names_them() -> None:
    machines = [{"id": name, "name": f"n-{name}"} for name in ("a", "b", "c")]
    run = SagaKit(sagas.enrol_machines, {"machines": machines, "names": {m["id"]: m["name"] for m in machines}})
    assert all(isinstance(message, EnrolMachine) for message in run.sent().values()) and len(run.sent()) == 3
    run.reply("enrol_each", item="b", reply=failed("machine.hardware_mismatch", "7 of 8 GPUs"))
    run.reply("enrol_each", item="a")
    run.reply("enrol_each", item="c")
    assert run.status is OperationStatus.SUCCEEDED
    result = run.state.result
    assert [m["name"] for m in result["available"]] == ["n-a", "n-c"]
    assert [(m["name"], m["problem"]["message"]) for m in result["failed"]] == [("n-b", "7 of 8 GPUs")]


def test_the_same_data_always_gives_the_same_command() -> None:
    data = machine_data(machine(), OPERATION, credentials_ref="bmc/m", expected={})
    again = machine_data(machine(), OPERATION, credentials_ref="bmc/m", expected={})
    assert data == again and len({data["sanitise_run_id"], *data["validate_run_ids"]}) == 3
