"""One owner a field: what is ours is written again when somebody changes it, and our own writes are known as ours."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import text

from services.inventory import periodic
from services.inventory.adapters.source import SourceUnavailable
from tests.integration.inventory.conftest import Inventory

NAME = "fra1-r1-gpu-01"


async def shown(inventory: Inventory) -> None:
    """One machine that NetBox shows as it is."""
    inventory.netbox.add(1)
    await inventory.read()
    await periodic.write_back(inventory.kit.app)


def edit(inventory: Inventory, **fields: Any) -> None:
    inventory.netbox.change(1, custom_fields={**inventory.netbox.devices[1]["custom_fields"], **fields})


async def drifts(inventory: Inventory) -> list[tuple[str, str, str, str]]:
    found = [event.data for event in await inventory.events("machine.drifted")]
    return [(one["field"], one["ours"], one["theirs"], one["field_owner"]) for one in found]


async def test_a_field_of_ours_that_somebody_changed_is_told_once_and_written_again(inventory: Inventory) -> None:
    await shown(inventory)
    edit(inventory, slipway_state="AVAILABLE")
    for _ in range(2):
        await inventory.full_read()
    assert await drifts(inventory) == [("slipway_state", "EXPECTED", "AVAILABLE", "slipway")]
    await periodic.write_back(inventory.kit.app)
    assert inventory.netbox.devices[1]["custom_fields"]["slipway_state"] == "EXPECTED"
    machine = await inventory.machine(NAME)
    assert machine["holds"] == [] and machine["drifts"] == []

    edit(inventory, slipway_state="AVAILABLE")
    await inventory.read()
    assert len(await drifts(inventory)) == 2


async def test_what_we_are_about_to_write_is_no_drift(inventory: Inventory) -> None:
    await shown(inventory)
    await inventory.enrol(NAME)
    await inventory.full_read()
    await periodic.write_back(inventory.kit.app)
    await inventory.full_read()
    assert await drifts(inventory) == []


async def test_a_write_whose_answer_was_lost_is_known_as_ours(inventory: Inventory) -> None:
    await shown(inventory)
    await inventory.enrol(NAME)
    answered = inventory.netbox.write

    async def lost(writes: Any) -> list[str]:
        await answered(writes)
        raise SourceUnavailable("NetBox did not answer in time")

    inventory.netbox.write = lost  # type: ignore[method-assign]
    await periodic.write_back(inventory.kit.app)
    assert inventory.netbox.devices[1]["custom_fields"]["slipway_state"] == "AVAILABLE"
    answer = await inventory.kit.call("quarantine_machine", {"machine_id": NAME, "reason": "noise in its fan"})
    assert answer.status == 200, answer
    await inventory.full_read()
    assert await drifts(inventory) == []


async def test_a_reading_that_began_before_our_write_judges_nothing(inventory: Inventory) -> None:
    await shown(inventory)
    read = inventory.netbox.read

    async def slow(since: Any) -> Any:
        walk = await read(since)
        await inventory.enrol(NAME)
        await periodic.write_back(inventory.kit.app)
        edit(inventory, slipway_state="SOMETHING")
        return walk

    inventory.netbox.read = slow  # type: ignore[method-assign]
    await inventory.full_read()
    assert await drifts(inventory) == []
    inventory.netbox.read = read  # type: ignore[method-assign]
    await inventory.full_read()
    assert await drifts(inventory) == [("slipway_state", "AVAILABLE", "SOMETHING", "slipway")]


async def test_values_of_an_earlier_installation_are_replaced_and_are_no_drift(inventory: Inventory) -> None:
    inventory.netbox.add(1, custom_fields={"slipway_state": "ASSIGNED", "slipway_health": "HEALTHY"})
    for _ in range(2):
        await inventory.full_read()
    await periodic.write_back(inventory.kit.app)
    assert inventory.netbox.devices[1]["custom_fields"]["slipway_state"] == "EXPECTED"
    assert await drifts(inventory) == []


async def test_what_was_written_is_noted_without_holding_two_rows_at_once(inventory: Inventory) -> None:
    for number in (1, 2):
        inventory.netbox.add(number)
    await inventory.read()
    async with inventory.kit.database.transaction() as conn:
        first = "UPDATE inventory.netbox_writeback SET due_at = due_at - interval '1 minute' WHERE netbox_id = 1"
        await conn.execute(text(first))
    row = "SELECT 1 FROM inventory.netbox_writeback WHERE netbox_id = :id FOR UPDATE"
    # Somebody who handles several machines in one transaction has the second row and is about to want the first.
    async with inventory.kit.database.transaction() as conn:
        await conn.execute(text(row), {"id": 2})
        noting = asyncio.create_task(periodic.write_back(inventory.kit.app))
        async with asyncio.timeout(10):
            while await waiting(inventory) != [2]:
                await asyncio.sleep(0.01)
        await conn.execute(text(row), {"id": 1})
    await noting
    assert await waiting(inventory) == []


async def waiting(inventory: Inventory) -> list[int]:
    async with inventory.kit.database.transaction() as conn:
        rows = await conn.execute(text("SELECT netbox_id FROM inventory.netbox_writeback ORDER BY netbox_id"))
        return [row.netbox_id for row in rows]
