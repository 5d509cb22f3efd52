"""Whose turn it is to change a machine's credentials, and the process, given replies, when it wants what next."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.inventory import BeginRotation, EndRotation, MachineState, RotateCredentials
from libs.contracts.operations import OperationStatus
from libs.contracts.replies import failed, refused
from libs.contracts.site import SettleCredentials
from libs.saga import ToSite
from libs.saga.kit import SagaKit
from services.inventory.model.machine import Change, Refusal
from services.inventory.model.rotation import begin_rotation, end_rotation
from services.inventory.sagas_rotation import rotate_credentials, rotate_machine_credentials, rotation_data
from tests.unit.services.inventory.machines import START, machine

DATA = rotation_data("m-1", "fra1-r1-gpu-01", "fra1")
STEPS = ("begin_rotation", "prepare_credentials", "apply_credentials", "prove_credentials", "promote_credentials")


def only(run: SagaKit) -> Any:
    (message,) = run.sent().values()
    return message.message if isinstance(message, ToSite) else message


def enrolled(**changes: Any) -> Any:
    return machine(**{"state": MachineState.AVAILABLE, **changes}, inspected_at=START)


def test_one_operation_at_a_time_has_the_turn_and_its_end_is_noted_without_voiding_an_offer() -> None:
    before = enrolled(state=MachineState.AVAILABLE)
    begun = begin_rotation(before, "op-1")
    assert isinstance(begun, Change) and not begun.events
    again, other = begin_rotation(begun.machine, "op-1"), begin_rotation(begun.machine, "op-2")
    assert isinstance(again, Change)
    assert isinstance(other, Refusal) and "op-1" in str(other.reply)

    foreign = end_rotation(begun.machine, "op-2", True, START)
    assert isinstance(foreign, Change) and foreign.machine == begun.machine
    ended = end_rotation(begun.machine, "op-1", True, START)
    assert isinstance(ended, Change)
    assert (ended.machine.rotation_id, ended.machine.credentials_rotated_at) == (None, START)
    assert ended.machine.offer_version == before.offer_version
    assert [event.changed for event in ended.events if hasattr(event, "changed")] == [("credentials_rotated_at",)]


def test_a_rotation_that_was_given_up_leaves_no_date() -> None:
    begun = begin_rotation(enrolled(), "op-1")
    assert isinstance(begun, Change)

    ended = end_rotation(begun.machine, "op-1", False, START)

    assert isinstance(ended, Change) and not ended.events
    assert (ended.machine.rotation_id, ended.machine.credentials_rotated_at) == (None, None)


@pytest.mark.parametrize("state", [MachineState.EXPECTED, MachineState.ENROLLING, MachineState.RETIRED])
def test_a_machine_without_a_node_at_the_site_is_refused(state: MachineState) -> None:
    assert isinstance(begin_rotation(enrolled(state=state), "op-1"), Refusal)
    assert isinstance(begin_rotation(machine(inspected_at=None), "op-1"), Refusal)


def test_the_steps_come_in_order_and_the_end_is_recorded() -> None:
    run = SagaKit(rotate_machine_credentials, DATA)
    for step in STEPS:
        assert list(run.sent()) == [step]
        run.reply(step, old_opens="no") if step == "promote_credentials" else run.reply(step)
    record = only(run)
    assert isinstance(record, EndRotation) and record.rotated
    run.reply("record_rotation")

    assert run.state.status is OperationStatus.SUCCEEDED
    assert (run.state.result or {})["old_opens"] == "no"


@pytest.mark.parametrize("broken", STEPS[1:])
def test_whatever_fails_the_site_settles_and_the_turn_is_given_back(broken: str) -> None:
    run = SagaKit(rotate_machine_credentials, DATA)
    for step in STEPS[: STEPS.index(broken)]:
        run.reply(step)
    run.reply(broken, reply=refused("bmc_password_refused", "no"))

    assert isinstance(only(run), SettleCredentials)
    run.reply("undo prepare_credentials")
    end = only(run)
    assert isinstance(end, EndRotation) and not end.rotated
    run.reply("undo begin_rotation")
    assert run.state.status is OperationStatus.FAILED


def test_a_bmc_that_can_not_be_settled_waits_for_a_person() -> None:
    run = SagaKit(rotate_machine_credentials, DATA)
    run.reply("begin_rotation")
    run.reply("prepare_credentials", reply=refused("bmc_denied", "no"))
    for _ in range(4):
        assert isinstance(only(run), SettleCredentials)
        run.reply("undo prepare_credentials", reply=failed("bmc_neither_opens", "both are kept"))
        run.retry_now()

    assert run.state.status is OperationStatus.RUNNING
    assert "a human" in run.state.waiting_for


def test_a_batch_drops_what_fails_and_names_the_bmcs_that_open_with_the_old_password() -> None:
    machines = [{"id": f"m-{number}", "name": f"n{number}"} for number in (1, 2, 3)]
    run = SagaKit(rotate_credentials, {"machines": machines, "names": {item["id"]: item["name"] for item in machines}})
    assert all(isinstance(message, RotateCredentials) for message in run.sent().values())
    run.reply("rotate_each", item="m-1", old_opens="yes")
    run.reply("rotate_each", item="m-2", old_opens="no")
    run.reply("rotate_each", item="m-3", reply=failed("bmc_unreachable", "no answer"))

    assert run.state.status is OperationStatus.SUCCEEDED
    assert [item["name"] for item in (run.state.result or {})["rotated"]] == ["n1", "n2"]
    assert (run.state.result or {})["old_opens"] == ["n1"]
    assert (run.state.result or {})["failed"][0]["problem"]["code"] == "bmc_unreachable"


def test_no_command_carries_more_than_names() -> None:
    assert set(BeginRotation.model_fields) == {"machine_id", "operation_id"}
    assert set(SettleCredentials.model_fields) == {
        "machine_id", "machine_name", "claim_id", "machine_version", "rotation_id",
    }  # fmt: skip
