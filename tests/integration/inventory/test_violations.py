"""The invariants through the service: what sites say and the books hold, compared, told, explained and repaired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from libs.contracts.ids import new_uuid
from libs.contracts.site import NodeGone, NodeObserved, SatelliteHeartbeat
from services.inventory import invariants
from tests.integration.inventory.conftest import Inventory
from tests.integration.inventory.test_lifecycle import CLAIM, NAME, assigned, available

LONG_AGO = """
    UPDATE inventory.machine SET state_since = '2026-01-01T00:00:00Z',
        facts = jsonb_set(facts, '{state_since}', '"2026-01-01T00:00:00Z"')
"""


def now() -> datetime:
    return datetime.now(UTC)


async def settled(inventory: Inventory) -> None:
    """Nothing moved for a long time."""
    async with inventory.kit.database.transaction() as conn:
        await conn.execute(text(LONG_AGO))


async def heard(inventory: Inventory, *problems: str) -> None:
    await inventory.kit.observe(SatelliteHeartbeat(site="fra1", version="1", at=now(), problems=problems))


async def seen(inventory: Inventory, machine: dict[str, Any], **changes: Any) -> None:
    base = {
        "machine_id": machine["id"],
        "name": machine["name"],
        "provision_state": "available",
        "power_state": "off",
        "resource_class": machine.get("profile") or "",
        "observed_at": now(),
    }
    await heard(inventory)
    await inventory.kit.observe(NodeObserved.model_validate({**base, **changes}))


async def check(inventory: Inventory) -> list[str]:
    """Look twice, a minute apart as far as the rows know; the invariants that are open then."""
    await invariants.check_now(inventory.kit.app)
    async with inventory.kit.database.transaction() as conn:
        await conn.execute(text("UPDATE inventory.violation SET first_seen_at = first_seen_at - interval '1 minute'"))
    await invariants.check_now(inventory.kit.app)
    return [violation["invariant"] for violation in await listed(inventory)]


async def listed(inventory: Inventory, **params: Any) -> list[dict[str, Any]]:
    answer = await inventory.kit.query("list_violations", params)
    assert answer.status == 200, answer
    assert isinstance(answer.body, dict)
    items: list[dict[str, Any]] = answer.body["items"]
    return items


async def test_a_machine_that_is_as_all_say_breaks_nothing_and_one_that_was_switched_on_does(
    inventory: Inventory,
) -> None:
    machine = await available(inventory)
    await settled(inventory)
    await seen(inventory, machine)
    assert await check(inventory) == []

    await seen(inventory, machine, power_state="on")
    assert await check(inventory) == ["available-on"]
    (violation,) = await listed(inventory)
    assert (violation["ours"], violation["theirs"], violation["name"]) == ("off", "on", NAME)
    assert violation["explanation"] and violation["command"] == f"slipway drift repair {violation['id']}"
    (event,) = await inventory.events("violation.opened")
    assert (event.subject, event.entityversion, event.site) == (violation["id"], 1, "fra1")

    await heard(inventory, "Ironic does not answer")
    assert await check(inventory) == ["available-on"]  # Silence clears nothing.
    await seen(inventory, machine)
    assert await check(inventory) == []
    (event,) = await inventory.events("violation.cleared")
    assert event.entityversion == 2
    assert [one["state"] for one in await listed(inventory, state="CLEARED")] == ["CLEARED"]


async def test_the_repair_goes_through_the_normal_workflow_and_its_dry_run_changes_nothing(
    inventory: Inventory,
) -> None:
    machine = await available(inventory)
    await settled(inventory)
    await seen(inventory, machine, power_state="on")
    await check(inventory)
    (violation,) = await listed(inventory)

    tried = await inventory.kit.call("repair_violation", {"id": violation["id"], "dry_run": True})
    assert (tried.status, (await inventory.machine(NAME))["state"]) == (200, "AVAILABLE")
    assert isinstance(tried.body, dict) and tried.body["does"]
    assert await inventory.sent("ironic.release") == []

    begun = await inventory.kit.call("repair_violation", {"id": violation["id"]})
    assert begun.status == 202, begun
    assert (await inventory.machine(NAME))["state"] == "SANITIZING"
    await inventory.answer("ironic.release", power_state="off", observed_at=now().isoformat())
    await inventory.wipe_and_pass()
    repaired = await inventory.machine(NAME)
    assert (repaired["state"], repaired["eligible"], repaired["holds"]) == ("AVAILABLE", True, [])
    await settled(inventory)
    await seen(inventory, repaired)
    assert await check(inventory) == []
    again = await inventory.kit.call("repair_violation", {"id": violation["id"]})
    assert (again.status, again.body["code"]) == (409, "violation.cleared")


async def test_a_tenants_machine_is_switched_on_again_for_its_claim_only(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    await settled(inventory)
    await seen(inventory, machine, provision_state="active", instance_uuid=CLAIM, power_state="off")
    assert await check(inventory) == ["assigned-off"]
    (violation,) = await listed(inventory)
    begun = await inventory.kit.call("repair_violation", {"id": violation["id"]})
    (order,) = await inventory.sent("ironic.power")
    assert (begun.status, order.data["power"], order.data["claim_id"]) == (202, "on", CLAIM)
    await inventory.answer("ironic.power", power_state="on", observed_at=now().isoformat())
    assert (await inventory.machine(NAME))["state"] == "ASSIGNED"


async def test_nothing_is_taken_from_a_tenant_by_a_repair(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    await settled(inventory)
    await seen(inventory, machine, provision_state="active", instance_uuid=CLAIM, power_state="on")
    await inventory.kit.observe(NodeGone(machine_id=machine["id"], name=NAME, observed_at=now()))
    assert await check(inventory) == ["node-missing"]
    (violation,) = await listed(inventory)
    for dry_run in (True, False):
        refused = await inventory.kit.call("repair_violation", {"id": violation["id"], "dry_run": dry_run})
        assert (refused.status, refused.body["code"]) == (409, "machine.claimed")
    assert (await inventory.machine(NAME))["state"] == "ASSIGNED"


async def test_a_machine_that_nobody_works_on_is_found_and_taken_up_again(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.kit.call("enrol_machines", {"machines": [NAME]})
    await inventory.deliver_own()
    await heard(inventory)
    assert await check(inventory) == []
    async with inventory.kit.database.transaction() as conn:
        await conn.execute(
            text("UPDATE inventory.saga SET phase = 'finished', status = 'FAILED' WHERE kind = 'enrol_machine'")
        )
    assert await check(inventory) == ["stranded"]
    (violation,) = await listed(inventory)
    begun = await inventory.kit.call("repair_violation", {"id": violation["id"]})
    assert (begun.status, (await inventory.machine(NAME))["state"]) == (202, "ENROLLING")
    assert len(await inventory.sent("ironic.enrol")) == 2
    assert await check(inventory) == []


async def test_a_node_that_is_no_machine_of_ours_is_told_and_forgotten_when_it_is_gone(inventory: Inventory) -> None:
    stranger = {"id": new_uuid(), "name": "left-over"}
    await seen(inventory, stranger)
    assert await check(inventory) == ["node-without-machine"]
    (violation,) = await listed(inventory, q="left-over")
    begun = await inventory.kit.call("repair_violation", {"id": violation["id"]})
    (order,) = await inventory.sent("ironic.remove")
    assert (begun.status, order.data["machine_id"], order.site) == (202, stranger["id"], "fra1")
    await inventory.kit.observe(NodeGone(machine_id=stranger["id"], name="left-over", observed_at=now()))
    assert await check(inventory) == []


async def test_an_older_observation_and_another_sites_goodbye_change_nothing(inventory: Inventory) -> None:
    machine = await available(inventory)
    await settled(inventory)
    await seen(inventory, machine)
    await seen(inventory, machine, power_state="on", observed_at=now() - timedelta(minutes=1))
    await inventory.kit.observe(NodeGone(machine_id=machine["id"], name=NAME, observed_at=now() - timedelta(minutes=1)))
    await inventory.kit.observe(NodeGone(machine_id=machine["id"], name=NAME, observed_at=now()), site="ams1")
    assert await check(inventory) == []


async def test_the_list_of_invariants_says_what_could_not_be_judged(inventory: Inventory) -> None:
    await available(inventory)
    await settled(inventory)
    await check(inventory)
    answer = await inventory.kit.query("list_invariants")
    assert isinstance(answer.body, dict)
    rows = {row["id"]: row for row in answer.body["items"]}
    (on,) = rows["available-on"]["sites"]
    assert (on["judged"], on["unknown"], on["why_unknown"]) == (0, 1, "its site was not heard lately")
    (allocation,) = rows["allocation-of-another"]["sites"]
    assert (allocation["unknown"], "Placement" in allocation["why_unknown"]) == (1, True)


@pytest.mark.parametrize("wanted", ["no-such-id", ""])
async def test_an_unknown_violation_is_not_found(inventory: Inventory, wanted: str) -> None:
    assert (await inventory.kit.query("get_violation", {"id": wanted})).status == 404
    assert (await inventory.kit.call("repair_violation", {"id": wanted})).status == 404


async def test_power_is_switched_by_hand_only_where_no_process_decides_it(inventory: Inventory) -> None:
    await available(inventory)
    asked = {"machine_id": NAME, "power": "on", "reason": "a test"}
    refused = await inventory.kit.call("set_power", asked)
    assert refused.status == 409 and refused.body["code"] == "machine.power_not_free"
    begun = await inventory.kit.call("set_power", {**asked, "power": "off"})
    (order,) = await inventory.sent("ironic.power")
    assert (begun.status, order.data["power"], order.data["claim_id"]) == (202, "off", None)
    assert (await inventory.kit.call("set_power", {**asked, "power": "down"})).status == 422
    assert (await inventory.kit.call("set_power", {**asked, "machine_id": "nobody"})).status == 404
