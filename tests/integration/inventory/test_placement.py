"""Placement through the service: what may not be claimed is held there, what Nova gave away is not offered."""

from __future__ import annotations

from typing import Any

from libs.contracts.placement import ProviderGone, ProviderObserved
from libs.contracts.site import SatelliteHeartbeat
from services.inventory import placement
from tests.integration.inventory.conftest import Inventory
from tests.integration.inventory.test_lifecycle import NAME, accept, available
from tests.integration.inventory.test_violations import check, now, seen, settled

NOVA = "44444444-0000-4000-8000-000000000004"


async def booked(inventory: Inventory, machine: dict[str, Any], *consumers: str, state: str = "ok") -> None:
    await inventory.kit.observe(
        SatelliteHeartbeat(site="fra1", version="1", at=now(), parts={"ironic": "ok", "placement": state})
    )
    await inventory.kit.observe(
        ProviderObserved(
            machine_id=machine["id"],
            name=machine["name"],
            resource_class="CUSTOM_H100_SXM_8",
            total=1,
            reserved=0,
            consumers=consumers,
            observed_at=now(),
        )
    )


async def orders(inventory: Inventory) -> list[bool]:
    await placement.keep(inventory.kit.app)
    return [order.data["held"] for order in await inventory.sent("placement.reserve")]


async def test_what_may_be_claimed_is_left_to_all_and_what_a_claim_takes_is_held(inventory: Inventory) -> None:
    machine = await available(inventory)
    await booked(inventory, machine)
    assert await orders(inventory) == []
    assert (await accept(inventory, machine)).ok
    await booked(inventory, machine)
    assert await orders(inventory) == [True]
    assert await orders(inventory) == [True]  # One order at a time, however long it takes.
    await inventory.answer("placement.reserve", managed=True, closed=True, consumers=[machine["id"]])
    await booked(inventory, machine, machine["id"])
    assert await orders(inventory) == [True]


async def test_what_slipway_still_holds_and_is_free_again_is_let_go(inventory: Inventory) -> None:
    machine = await available(inventory)
    await booked(inventory, machine, machine["id"])
    assert await orders(inventory) == [False]


async def test_a_placement_that_is_not_read_is_left_alone(inventory: Inventory) -> None:
    machine = await available(inventory)
    await booked(inventory, machine, machine["id"], state="Placement does not answer")
    assert await orders(inventory) == []


async def test_a_machine_that_nova_gave_away_is_not_offered_until_the_allocation_is_gone(inventory: Inventory) -> None:
    machine = await available(inventory)
    await settled(inventory)
    await seen(inventory, machine)
    await booked(inventory, machine, NOVA)
    held = await inventory.machine(NAME)
    assert not held["eligible"] and NOVA in held["holds"][0]["reason"]
    assert await orders(inventory) == []  # Nobody else can take it either.
    assert await check(inventory) == ["allocation-of-another"]
    await booked(inventory, machine)
    assert (await inventory.machine(NAME))["eligible"]
    assert await check(inventory) == []
    await booked(inventory, machine, NOVA)
    await inventory.kit.observe(ProviderGone(machine_id=machine["id"], observed_at=now()))
    assert (await inventory.machine(NAME))["eligible"]
