"""Timers of sagas on the real database: one that can't fire here holds up no other."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from libs.contracts.envelope import now_utc
from libs.contracts.message import Message
from libs.runtime.database import Database
from libs.runtime.service import App
from libs.saga import saga, step
from libs.saga.engine import TIMER_BATCH, SagaEngine
from tests.contract.bus.conftest import Bench
from tests.contract.bus.toy import count_once, toy_saga


def breaks(data: dict[str, object]) -> Message | None:
    raise RuntimeError("a bug in a declaration")


# Its undo can't be built: whatever happens to it, deciding raises.
broken = saga("broken", step(lambda data: count_once(data, {"id": "x"}), name="first", undo=breaks))


async def _started(app: App, kind: str, count: int = 1) -> list[str]:
    async with app.transaction() as ctx:
        data = {"machines": [{"id": "m1"}]}
        return [await ctx.start_saga(kind, data, target_kind="toy", target_id="t") for _ in range(count)]


async def _due(app: App, saga_ids: list[str], ago: timedelta) -> None:
    async with app.database.transaction() as conn:
        statement = text("UPDATE inventory.saga_timer SET due_at = :at WHERE saga_id = ANY(:ids)")
        await conn.execute(statement, {"at": now_utc() - ago, "ids": saga_ids})


async def _statuses(app: App, saga_ids: list[str]) -> set[str]:
    async with app.read() as conn:
        rows = await conn.execute(text("SELECT status FROM inventory.saga WHERE id = ANY(:ids)"), {"ids": saga_ids})
        return {row.status for row in rows}


@pytest.mark.parametrize("fault", ["a kind that only a newer release knows", "a bug in its declaration"])
async def test_timers_that_can_not_fire_here_are_put_off_and_the_others_fire(bench: Bench, fault: str) -> None:
    app = App(bench.service(), Database(bench.database_url, application_name="timers"))
    assert app.service.operation_events is not None
    engine = app.engine = SagaEngine("inventory", (toy_saga, broken), app.service.operation_events)
    try:
        # More of them than are fired at once, and all older: none of the others would ever have its turn.
        stuck = await _started(app, "broken", TIMER_BATCH + 1)
        if fault.startswith("a kind"):
            engine.sagas = {"toy": toy_saga}
        good = await _started(app, "toy")
        await _due(app, stuck, timedelta(hours=1))
        await _due(app, good, timedelta(seconds=1))
        for _ in range(2):
            async with app.database.transaction() as conn:
                await engine.fire_due_timers(conn, app.context)
        assert await _statuses(app, good) == {"FAILED"}
        assert await _statuses(app, stuck) == {"RUNNING"}
        async with app.read() as conn:
            left = await conn.scalar(text("SELECT count(*) FROM inventory.saga_timer WHERE due_at > clock_timestamp()"))
        assert left == len(stuck), "each is tried again later"
    finally:
        await app.database.close()
