"""NetBox's webhooks, and what people ask for by a device's status there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.dialects import postgresql

from libs.contracts.inventory import AcceptMachine, ReturnMachine
from services.inventory import periodic
from services.inventory.adapters.source import SourceUnavailable
from services.inventory.model.machine import Change
from services.inventory.model.source import follow_status
from services.inventory.source_store import WISHED, hint_table, with_wishes
from services.inventory.store import machine_table
from tests.integration.inventory.conftest import Inventory
from tests.unit.services.inventory.machines import at, machine

NAME = "fra1-r1-gpu-01"
CLAIM = "0c1a0000-0000-7000-8000-000000000001"


def hook(number: int = 1, **changes: Any) -> dict[str, Any]:
    body = {"event": "updated", "model": "device", "data": {"id": number, "serial": "A LIE"}, "snapshots": None}
    return {"document": {**body, **changes}}


async def told(inventory: Inventory, **changes: Any) -> None:
    answer = await inventory.kit.call("netbox_hook", hook(**changes), actor="system:netbox")
    assert answer.status == 202, answer


async def follow(inventory: Inventory) -> None:
    await periodic.follow_hints(inventory.kit.app)


async def hints(inventory: Inventory) -> int:
    async with inventory.kit.database.transaction() as conn:
        return len((await conn.execute(select(hint_table))).all())


async def test_a_hint_brings_what_netbox_says_and_not_what_the_webhook_says(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    serial = (await inventory.machine(NAME))["serial"]
    inventory.netbox.change(1, asset_tag="SLW-77")
    await told(inventory)
    await follow(inventory)
    machine = await inventory.machine(NAME)
    assert (machine["asset_tag"], machine["serial"]) == ("SLW-77", serial) and await hints(inventory) == 0


async def test_many_hints_of_a_device_are_one_look_and_a_replay_changes_nothing(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    inventory.netbox.change(1, asset_tag="SLW-77")
    for _ in range(5):
        await told(inventory)
    await follow(inventory)
    assert inventory.netbox.looked_at == [(1,)]
    before = await inventory.kit.events()
    await told(inventory)
    await follow(inventory)
    assert await inventory.kit.events() == before


async def test_a_new_device_is_known_by_its_hint(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await told(inventory, event="created")
    await follow(inventory)
    assert (await inventory.machine(NAME))["state"] == "EXPECTED"


async def test_a_device_that_is_gone_is_held_only_when_netbox_itself_says_so(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await told(inventory, event="deleted")
    await follow(inventory)
    assert (await inventory.machine(NAME))["holds"] == []
    inventory.netbox.devices.pop(1)
    await told(inventory, event="deleted")
    await follow(inventory)
    machine = await inventory.machine(NAME)
    assert [hold["reason"] for hold in machine["holds"]] == ["it is no longer in NetBox"]
    assert [drift["field"] for drift in machine["drifts"]] == ["presence"]


async def test_a_hint_of_what_is_no_machine_of_ours_is_harmless(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    before = await inventory.kit.events()
    await told(inventory, number=2**62)
    await told(inventory, model="virtualmachine")
    await follow(inventory)
    assert await inventory.kit.events() == before and await hints(inventory) == 0


async def test_a_hint_waits_while_netbox_is_away(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    inventory.netbox.change(1, asset_tag="SLW-77")
    inventory.netbox.failure = SourceUnavailable("NetBox can't be reached")
    await told(inventory)
    await follow(inventory)
    inventory.netbox.failure = None
    await follow(inventory)
    assert await hints(inventory) == 1 and inventory.netbox.looked_at == []
    async with inventory.kit.database.transaction() as conn:
        await conn.execute(update(hint_table).values(due_at=hint_table.c.due_at - timedelta(minutes=1)))
    await follow(inventory)
    assert (await inventory.machine(NAME))["asset_tag"] == "SLW-77" and await hints(inventory) == 0


async def test_a_walk_that_began_before_the_look_takes_nothing_back(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    inventory.netbox.add(2)
    await inventory.read()
    read = inventory.netbox.read

    async def slow(since: Any) -> Any:
        walk = await read(since)
        inventory.netbox.change(1, asset_tag="NEW")
        inventory.netbox.devices.pop(2)
        await told(inventory)
        await told(inventory, number=2)
        await follow(inventory)
        return walk

    inventory.netbox.read = slow  # type: ignore[method-assign]
    await inventory.full_read()
    assert (await inventory.machine(NAME))["asset_tag"] == "NEW"
    assert len((await inventory.machine("fra1-r1-gpu-02"))["holds"]) == 1


# -- statuses ---------------------------------------------------------------------------------------


async def enrolled(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)


async def set_status(inventory: Inventory, status: str) -> dict[str, Any]:
    inventory.netbox.change(1, status={"value": status})
    await inventory.read()
    await periodic.follow_wishes(inventory.kit.app)
    return await inventory.machine(NAME)


async def claim(inventory: Inventory) -> None:
    machine = await inventory.machine(NAME)
    command = AcceptMachine(
        machine_id=machine["id"],
        expected_version=machine["version"],
        claim_id=CLAIM,
        reservation_id="res-1",
        tenant="acme",
    )
    reply = await inventory.kit.command(command)
    assert reply is not None and reply.ok


async def give_back(inventory: Inventory) -> None:
    machine = await inventory.machine(NAME)
    await inventory.kit.command(ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="done"))
    await inventory.answer("ironic.release", power_state="off", observed_at="2026-03-01T12:00:00Z")
    await inventory.wipe_and_pass()


@pytest.mark.parametrize("status", ["planned", "inventory"])
async def test_an_enrolled_machine_that_is_called_planned_is_held_and_told_as_drift(
    inventory: Inventory, status: str
) -> None:
    await enrolled(inventory)
    machine = await set_status(inventory, status)
    (drift,) = machine["drifts"]
    assert (drift["field"], drift["theirs"], drift["owner"]) == ("status", status, "netbox")
    assert "AVAILABLE" in drift["ours"] and "decommissioning" in drift["repair"] and not machine["eligible"]
    (event,) = await inventory.events("machine.drifted")
    assert event.data["repair"] == drift["repair"]
    machine = await set_status(inventory, "active")
    assert machine["drifts"] == [] and machine["holds"] == [] and machine["eligible"]


async def test_a_machine_that_people_call_failed_leaves_the_pool_until_a_human_releases_it(
    inventory: Inventory,
) -> None:
    await enrolled(inventory)
    machine = await set_status(inventory, "failed")
    assert machine["state"] == "QUARANTINED" and machine["reason"]["code"] == "machine.failed_in_netbox"
    machine = await set_status(inventory, "active")
    assert machine["state"] == "QUARANTINED" and machine["holds"] == []
    answer = await inventory.kit.call("release_quarantine", {"machine_id": NAME, "reason": "fan replaced"})
    assert answer.status == 202
    await inventory.wipe_and_pass()
    assert (await inventory.machine(NAME))["eligible"]


@pytest.mark.parametrize("status", ["failed", "offline", "decommissioning", "planned"])
async def test_what_a_tenant_has_is_not_taken_and_the_wish_waits(inventory: Inventory, status: str) -> None:
    await enrolled(inventory)
    await claim(inventory)
    machine = await set_status(inventory, status)
    assert machine["state"] == "CLAIMED" and machine["claim_id"] == CLAIM
    (drift,) = machine["drifts"]
    assert drift["theirs"] == status and ("claim" in drift["ours"] or status == "planned")
    assert len(machine["holds"]) == 1
    for _ in range(2):
        await set_status(inventory, status)
    assert len(await inventory.events("machine.drifted")) == 1


async def test_a_wish_is_followed_when_the_machine_comes_back(inventory: Inventory) -> None:
    await enrolled(inventory)
    await claim(inventory)
    await set_status(inventory, "failed")
    await give_back(inventory)
    await periodic.follow_wishes(inventory.kit.app)
    machine = await inventory.machine(NAME)
    assert machine["state"] == "QUARANTINED" and machine["drifts"] == [] and machine["claim_id"] is None


async def test_the_same_status_said_again_starts_nothing_again(inventory: Inventory) -> None:
    inventory.netbox.add(1, status={"value": "planned"})
    await inventory.read()
    machine = await set_status(inventory, "active")
    assert machine["state"] == "EXPECTED" and machine["holds"] == [] and machine["drifts"] == []
    before = await inventory.kit.events()
    inventory.netbox.change(1, description="only the description")
    await inventory.full_read()
    await periodic.follow_wishes(inventory.kit.app)
    new = [event.type for event in (await inventory.kit.events())[len(before) :]]
    assert new == ["slipway.inventory.source.read"]


async def test_a_status_that_nobody_knows_keeps_the_machine_out_and_the_others_in(inventory: Inventory) -> None:
    inventory.netbox.add(2)
    await enrolled(inventory)
    machine = await set_status(inventory, "a")
    assert not machine["eligible"] and "status in NetBox is a" in machine["holds"][0]["reason"]
    assert (await inventory.machine("fra1-r1-gpu-02"))["holds"] == []


async def test_what_people_ask_for_is_found_by_its_index(inventory: Inventory) -> None:
    await enrolled(inventory)
    await set_status(inventory, "planned")
    async with inventory.kit.database.transaction() as conn:
        assert len(await with_wishes(conn)) == 1
        await conn.execute(text("SET LOCAL enable_seqscan = off"))
        await conn.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
        found = select(machine_table.c.id).where(WISHED, machine_table.c.netbox_id.is_not(None))
        statement = found.compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]
        plan = [row[0] for row in await conn.execute(text(f"EXPLAIN {statement}"))]
        assert any("machine_wished" in line for line in plan), plan


def test_a_machine_that_netbox_does_not_have_follows_no_status_there() -> None:
    told = machine(netbox_id=None, netbox_status="")
    assert follow_status(told, at(1)) == Change(told)
