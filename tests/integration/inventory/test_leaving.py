"""A machine leaves for good: asked for by an operator or by NetBox, wiped with evidence, removed, RETIRED, offline."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.inventory import AcceptMachine, ReturnMachine
from libs.contracts.replies import failed
from services.inventory import periodic
from tests.integration.inventory.conftest import Inventory
from tests.unit.services.inventory.machines import EVIDENCE

NAME = "fra1-r1-gpu-01"
CLAIM = "0c1a0000-0000-7000-8000-000000000001"


async def leave(inventory: Inventory, **changes: Any) -> Any:
    wanted = {"machine_id": NAME, "reason": "its lease ends", **changes}
    return await inventory.kit.call("decommission_machine", wanted)


async def enrolled(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    await periodic.write_back(inventory.kit.app)


async def wiped(inventory: Inventory) -> None:
    order = (await inventory.sent("ironic.sanitize"))[-1]
    await inventory.answer("ironic.sanitize", run_id=order.data["run_id"], evidence=EVIDENCE)


async def set_status(inventory: Inventory, status: str, number: int = 1) -> None:
    inventory.netbox.change(number, status={"value": status})
    await inventory.read()
    await periodic.follow_wishes(inventory.kit.app)
    await inventory.deliver_own()


async def test_it_is_wiped_with_evidence_removed_retired_and_offline_in_netbox(inventory: Inventory) -> None:
    await enrolled(inventory)
    answer = await leave(inventory)
    assert answer.status == 202 and answer.body["state"] == "DECOMMISSIONING"
    await wiped(inventory)
    (evidence,) = [
        e for e in await inventory.events("machine.sanitised") if e.data["machine"]["state"] == "DECOMMISSIONING"
    ]
    assert evidence.data["evidence"] == EVIDENCE
    assert (await inventory.machine(NAME))["state"] == "DECOMMISSIONING"
    await inventory.answer("ironic.remove")
    machine = await inventory.machine(NAME)
    assert machine["state"] == "RETIRED" and machine["operation_id"] is None and not machine["eligible"]
    assert machine["reason"]["message"] == "its lease ends" and machine["reason"]["details"]["owner"] == "user:test"
    await periodic.write_back(inventory.kit.app)
    shown = inventory.netbox.devices[1]
    assert shown["status"]["value"] == "offline" and shown["custom_fields"]["slipway_state"] == "RETIRED"
    before = await inventory.machine(NAME)
    await inventory.full_read()
    await periodic.follow_wishes(inventory.kit.app)
    assert (await inventory.machine(NAME))["drifts"] == before["drifts"] == []


async def test_a_dry_run_says_what_would_be_done_and_does_nothing(inventory: Inventory) -> None:
    await enrolled(inventory)
    before = await inventory.kit.events()
    answer = await leave(inventory, dry_run=True)
    assert answer.status == 200 and answer.body["possible"] and answer.body["problem"] is None
    assert [step["done"] for step in answer.body["steps"]] == [True, True, True, True]
    answer = await leave(inventory, dry_run=True, wipe=False)
    assert answer.body["steps"][0] == {
        "step": "wipe all disks, with evidence",
        "done": False,
        "why": "user:test vouches that there is nothing to wipe",
    }
    assert await inventory.kit.events() == before


async def test_one_that_was_never_enrolled_is_no_work_for_its_site(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    answer = await leave(inventory, dry_run=True)
    assert [step["done"] for step in answer.body["steps"]] == [False, False, True, True]
    assert (await leave(inventory)).status == 202
    await inventory.deliver_own()
    assert (await inventory.machine(NAME))["state"] == "RETIRED"
    assert await inventory.sent("ironic.sanitize") == [] and await inventory.sent("ironic.remove") == []


async def test_dead_hardware_leaves_unwiped_when_somebody_vouches_for_it(inventory: Inventory) -> None:
    await enrolled(inventory)
    wipes = len(await inventory.sent("ironic.sanitize"))
    assert (await leave(inventory, wipe=False, reason="disks destroyed, ticket 4711")).status == 202
    await inventory.deliver_own()
    await inventory.answer("ironic.remove")
    machine = await inventory.machine(NAME)
    assert machine["state"] == "RETIRED" and machine["reason"]["details"] == {"owner": "user:test", "wipe": False}
    assert len(await inventory.sent("ironic.sanitize")) == wipes


async def claimed(inventory: Inventory) -> None:
    await enrolled(inventory)
    machine = await inventory.machine(NAME)
    command = AcceptMachine(
        machine_id=machine["id"],
        expected_version=machine["version"],
        claim_id=CLAIM,
        reservation_id="res-1",
        tenant="acme",
    )
    assert (await inventory.kit.command(command)).ok  # type: ignore[union-attr]


async def test_what_a_tenant_has_is_refused_with_a_name(inventory: Inventory) -> None:
    await claimed(inventory)
    answer = await leave(inventory)
    assert answer.status == 409 and answer.body["code"] == "machine.claimed"
    plan = (await leave(inventory, dry_run=True)).body
    assert not plan["possible"] and plan["problem"]["code"] == "machine.claimed"


async def test_netbox_asks_for_it_and_it_waits_for_the_tenant(inventory: Inventory) -> None:
    await claimed(inventory)
    await set_status(inventory, "decommissioning")
    machine = await inventory.machine(NAME)
    assert machine["state"] == "CLAIMED"
    assert f"it begins when claim {CLAIM} has given it back" in machine["holds"][0]["reason"]
    (drift,) = machine["drifts"]
    assert (drift["field"], drift["theirs"], drift["owner"]) == ("status", "decommissioning", "netbox")
    await inventory.kit.command(ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="done"))
    await inventory.answer("ironic.release", power_state="off", observed_at="2026-03-01T12:00:00Z")
    await inventory.wipe_and_pass()
    await periodic.follow_wishes(inventory.kit.app)
    await periodic.follow_wishes(inventory.kit.app)
    machine = await inventory.machine(NAME)
    assert machine["state"] == "DECOMMISSIONING" and machine["holds"] == [] and machine["drifts"] == []
    await wiped(inventory)
    await inventory.answer("ironic.remove")
    await periodic.write_back(inventory.kit.app)
    assert inventory.netbox.devices[1]["status"]["value"] == "offline"
    kinds = [event.data["operation"]["kind"] for event in await inventory.events("operation.started")]
    assert kinds == ["enrol_machines", "enrol_machine", "return_machine", "decommission_machine"]


async def test_a_persons_hold_is_not_passed_and_is_named(inventory: Inventory) -> None:
    await enrolled(inventory)
    answer = await inventory.kit.call("add_hold", {"machine_id": NAME, "reason": "evidence of a theft"})
    hold = answer.body["holds"][0]["id"]
    await set_status(inventory, "decommissioning")
    machine = await inventory.machine(NAME)
    assert machine["state"] == "AVAILABLE"
    assert any("when the hold of user:test is removed" in one["reason"] for one in machine["holds"])
    assert (await leave(inventory)).body["code"] == "machine.held"
    await inventory.kit.call("remove_hold", {"machine_id": NAME, "hold_id": hold})
    await periodic.follow_wishes(inventory.kit.app)
    assert (await inventory.machine(NAME))["state"] == "DECOMMISSIONING"


async def test_a_status_that_is_set_back_in_time_starts_nothing_and_too_late_is_drift(inventory: Inventory) -> None:
    await enrolled(inventory)
    inventory.netbox.change(1, status={"value": "decommissioning"})
    await inventory.read()
    inventory.netbox.change(1, status={"value": "active"})
    await inventory.read()
    await periodic.follow_wishes(inventory.kit.app)
    assert (await inventory.machine(NAME))["eligible"]
    await set_status(inventory, "decommissioning")
    await set_status(inventory, "active")
    machine = await inventory.machine(NAME)
    (drift,) = machine["drifts"]
    assert machine["state"] == "DECOMMISSIONING" and f"cancel operation {machine['operation_id']}" in drift["repair"]


async def test_a_change_of_many_by_mistake_begins_with_few(inventory: Inventory) -> None:
    inventory.kit.app.settings.netbox_decommission_at_once = 2  # type: ignore[attr-defined]
    for number in range(1, 5):
        inventory.netbox.add(number, status={"value": "decommissioning"})
    await inventory.read()
    await periodic.follow_wishes(inventory.kit.app)
    states = sorted(one["state"] for one in (await inventory.kit.query("list_machines")).body["items"])
    assert states == ["DECOMMISSIONING", "DECOMMISSIONING", "EXPECTED", "EXPECTED"]
    for _ in range(2):
        await inventory.deliver_own()
        await periodic.follow_wishes(inventory.kit.app)
    await inventory.deliver_own()
    assert {one["state"] for one in (await inventory.kit.query("list_machines")).body["items"]} == {"RETIRED"}


async def test_a_wipe_that_fails_is_a_humans_and_a_retry_does_not_bring_it_back(inventory: Inventory) -> None:
    await enrolled(inventory)
    await set_status(inventory, "decommissioning")
    for _ in range(3):
        await inventory.answer("ironic.sanitize", failed("site.clean_failed", "no disk answered"))
        await inventory.kit.fire_timers()
    machine = await inventory.machine(NAME)
    assert (machine["state"], machine["failed_step"]) == ("FAILED", "decommission")
    await periodic.follow_wishes(inventory.kit.app)
    machine = await inventory.machine(NAME)
    assert machine["state"] == "FAILED" and "that has failed" in machine["holds"][0]["reason"]
    answer = await inventory.kit.call("retry_machine", {"machine_id": NAME})
    assert answer.status == 409 and answer.body["code"] == "machine.leaving"
    assert (await leave(inventory, wipe=False, reason="shredded, ticket 4712")).status == 202


@pytest.mark.parametrize("evidence", [{}, {"steps": []}, {"power_state": "off"}])
async def test_without_evidence_of_a_wipe_nothing_is_retired(inventory: Inventory, evidence: dict[str, Any]) -> None:
    await enrolled(inventory)
    await leave(inventory)
    order = (await inventory.sent("ironic.sanitize"))[-1]
    await inventory.answer("ironic.sanitize", run_id=order.data["run_id"], evidence=evidence)
    machine = await inventory.machine(NAME)
    assert machine["state"] == "FAILED" and await inventory.sent("ironic.remove") == []


async def test_a_retired_machine_does_not_come_back_by_a_status(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await leave(inventory)
    await inventory.deliver_own()
    await periodic.write_back(inventory.kit.app)
    await set_status(inventory, "active")
    machine = await inventory.machine(NAME)
    assert machine["state"] == "RETIRED" and "does not come back" in machine["drifts"][0]["repair"]
