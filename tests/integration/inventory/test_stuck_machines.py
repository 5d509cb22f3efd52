"""`slipway machines stuck` through the service: what is listed, and how a step is given up and taken up again."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from libs.contracts.replies import failed
from tests.integration.inventory.conftest import Inventory
from tests.integration.inventory.test_lifecycle import NAME, available


async def listed(inventory: Inventory, **params: Any) -> list[dict[str, Any]]:
    answer = await inventory.kit.query("list_stuck", params)
    assert answer.status == 200 and isinstance(answer.body, dict)
    items: list[dict[str, Any]] = answer.body["items"]
    return items


async def test_a_fleet_that_goes_on_has_nothing_stuck(inventory: Inventory) -> None:
    await available(inventory)
    inventory.netbox.add(2)
    await inventory.read()
    await inventory.kit.call("enrol_machines", {"machines": ["fra1-r1-gpu-02"]})
    await inventory.deliver_own()
    assert await listed(inventory) == []


async def test_a_step_that_hangs_is_given_up_and_taken_up_again_without_touching_a_database(
    inventory: Inventory,
) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.kit.call("enrol_machines", {"machines": [NAME]})
    await inventory.deliver_own()
    machine = await inventory.machine(NAME)
    async with inventory.kit.database.transaction() as conn:
        await conn.execute(
            text("UPDATE inventory.saga SET phase = 'parked' WHERE id = :id"), {"id": machine["operation_id"]}
        )
    (one,) = await listed(inventory)
    assert (one["turn"], one["command"]) == ("person", f"slipway operations resume {machine['operation_id']}")
    assert await listed(inventory, over=True) == [] == await listed(inventory, site=["ams1"])

    given_up = await inventory.kit.call("give_up_step", {"machine_id": NAME, "reason": "the BMC hangs"})
    assert (given_up.status, given_up.body["state"], given_up.body["failed_step"]) == (200, "FAILED", "enrol")
    (one,) = await listed(inventory)
    assert (one["command"], "the BMC hangs" in one["why"]) == (f"slipway machines retry {NAME}", True)
    retried = await inventory.kit.call("retry_machine", {"machine_id": NAME})
    assert (retried.status, (await inventory.machine(NAME))["state"]) == (202, "ENROLLING")
    await inventory.answer("ironic.enrol", failed("late", "the first one's answer comes late"))
    again = await inventory.kit.call("give_up_step", {"machine_id": "nobody", "reason": "a test"})
    assert again.status == 404


async def test_only_a_step_of_a_process_can_be_given_up(inventory: Inventory) -> None:
    await available(inventory)
    refused = await inventory.kit.call("give_up_step", {"machine_id": NAME, "reason": "a test"})
    assert (refused.status, refused.body["code"]) == (409, "machine.no_step")
