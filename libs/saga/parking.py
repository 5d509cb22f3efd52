"""Park every saga that has not ended: after a restore of the database nobody knows how far the world has gone."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.saga.core import Run
from libs.saga.engine import MakeContext, SagaEngine


async def park_all(engine: SagaEngine, conn: AsyncConnection, make: MakeContext, why: str) -> int:
    """Park all open sagas in one transaction, with their events. Their timers go. Returns how many."""
    query = f"SELECT id FROM {engine.service}.saga WHERE phase <> 'finished' ORDER BY id"
    ids = [row[0] for row in await conn.execute(text(query))]
    for saga_id in ids:
        ctx = make(conn, None)
        await engine.decide(ctx, saga_id, lambda run: _park(run, why))
        await ctx.flush()
    # What a saga no longer awaited could still be due; nothing of the past may fire.
    await conn.execute(text(f"DELETE FROM {engine.service}.saga_timer"))
    return len(ids)


def _park(run: Run, why: str) -> bool:
    return run.park(why)
