"""Many holds at once on a real PostgreSQL: no machine twice, no dead-lock, no refusal while enough is free."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from sqlalchemy import func, select

from libs.contracts.replies import Reply
from libs.contracts.reservation import HoldMachines, ReleaseReservation, ReplaceClaim
from libs.testing.kit import ServiceKit
from services.reservation import availability
from services.reservation.app import service
from services.reservation.handlers import COMMANDS
from services.reservation.store import claim_table
from tests.unit.services.reservation.pool_events import PROFILE, machine, told

MACHINES = 40


@pytest.fixture
async def kit(service_kit: Any) -> ServiceKit:
    kit: ServiceKit = await service_kit(service)
    await kit.project("pool", told(*(machine(number) for number in range(MACHINES))))
    return kit


async def do(kit: ServiceKit, command: Any) -> Reply:
    async with kit.app.transaction() as ctx:
        reply = await COMMANDS[type(command)](ctx, command)
    assert reply is not None
    return reply


def hold(name: str, count: int) -> HoldMachines:
    return HoldMachines(reservation_id=name, tenant="acme", profile=PROFILE, count=count)


async def live_machines(kit: ServiceKit) -> list[str]:
    async with kit.database.transaction() as conn:
        return list((await conn.execute(select(claim_table.c.machine_id).where(claim_table.c.live))).scalars())


async def test_fifty_holds_at_once_never_share_a_machine_and_none_is_refused_for_nothing(kit: ServiceKit) -> None:
    dice = random.Random(7)
    holds = [hold(f"rsv-{number}", dice.randint(1, 3)) for number in range(50)]
    replies = await asyncio.gather(*(do(kit, each) for each in holds))
    taken = [each["id"] for reply in replies if reply.ok for each in reply.data["machines"]]
    assert len(taken) == len(set(taken))
    assert sorted(taken) == sorted(await live_machines(kit))
    async with kit.database.transaction() as conn:
        free = (await availability.count(conn, PROFILE)).free
    # Nothing was given back, so what was too little for a refused hold is too little still.
    assert all(free < each.count for each, reply in zip(holds, replies, strict=True) if not reply.ok)
    assert any(not reply.ok for reply in replies)


async def test_holding_replacing_and_releasing_at_once_ends_with_every_machine_free(kit: ServiceKit) -> None:
    async def churn(worker: int) -> int:
        dice = random.Random(worker)
        done = 0
        for turn in range(6):
            name = f"rsv-{worker}-{turn}"
            reply = await do(kit, hold(name, dice.randint(1, 6)))
            if not reply.ok:
                continue
            done += 1
            claim_id = reply.data["machines"][0]["claim_id"]
            replace = ReplaceClaim(
                reservation_id=name, claim_id=claim_id, replacement_claim_id=f"{claim_id}-b", reason="x"
            )
            await do(kit, replace)
            await do(kit, ReleaseReservation(reservation_id=name, reason="done"))
        return done

    done = await asyncio.gather(*(churn(worker) for worker in range(12)))
    assert sum(done) > 12
    assert await live_machines(kit) == []
    async with kit.database.transaction() as conn:
        assert (await availability.count(conn, PROFILE)).free == MACHINES


async def test_the_same_hold_at_once_from_two_deliveries_holds_once(kit: ServiceKit) -> None:
    results = await asyncio.gather(*(do(kit, hold("rsv-1", 3)) for _ in range(4)), return_exceptions=True)
    # A second insert of the same reservation fails as a whole and is delivered again.
    assert any(isinstance(result, Reply) and result.ok for result in results)
    again = await do(kit, hold("rsv-1", 3))
    assert sorted(each["id"] for each in again.data["machines"]) == sorted(await live_machines(kit))
    async with kit.database.transaction() as conn:
        assert (await conn.execute(select(func.count()).select_from(claim_table))).scalar_one() == 3
