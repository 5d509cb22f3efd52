"""What the inbox remembers and for how long; what it knows of its peers' epochs.

A handled message's row is what makes a repeat harmless. Rows may go only together with a promise: `forgotten_before`
rises past every message whose row went, in the same transaction, and messages sent before it are refused (a dead
letter, for a human) instead of being handled a second time. Landing reads the mark under a share lock and pruning
raises it under an exclusive one, so no replica lands by an older mark. See docs/decisions for why ids are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.admission import FUTURE_TOLERANCE, Known
from libs.bus.tables import DEAD, DONE, DROPPED, PENDING
from libs.contracts.causes import Cause
from libs.contracts.envelope import Envelope, decode

# Twice what the command streams and OBS keep (7 days, deploy/nats/topology.yaml): a message that the broker still
# holds was never forgotten.
MEMORY = timedelta(days=14)
PRUNE_BATCH = 2000
SWEEP_BATCH = 500


async def read_known(conn: AsyncConnection, service: str) -> Known:
    """The mark and the epochs, with a share lock until the transaction ends."""
    row = (
        await conn.execute(
            text(
                f"""SELECT forgotten_before, (SELECT jsonb_object_agg(source, epoch) FROM {service}.peer_epoch)
                FROM {service}.inbox_memory FOR SHARE OF inbox_memory"""
            )
        )
    ).one()
    return Known(row[0], dict(row[1] or {}))


async def note_epochs(conn: AsyncConnection, service: str, raised: Mapping[str, int]) -> int:
    """Keep higher epochs and set aside what waits here from before them. Returns how many messages were set aside."""
    if not raised:
        return 0
    await conn.execute(text(f"SELECT 1 FROM {service}.inbox_memory FOR UPDATE"))
    for source, epoch in raised.items():
        await conn.execute(
            text(
                f"""INSERT INTO {service}.peer_epoch AS p (source, epoch, seen_at) VALUES (:source, :epoch, now())
                ON CONFLICT (source) DO UPDATE SET epoch = excluded.epoch, seen_at = now()
                WHERE p.epoch < excluded.epoch"""
            ),
            {"source": source, "epoch": epoch},
        )
    return await _set_aside(conn, service, raised)


async def _set_aside(conn: AsyncConnection, service: str, raised: Mapping[str, int]) -> int:
    """Messages that landed before we heard of their sender's restore, page by page."""
    after, moved = 0, 0
    while True:
        rows = (
            await conn.execute(
                text(
                    f"SELECT id, payload FROM {service}.inbox WHERE state = {PENDING} AND id > :after "
                    f"ORDER BY id LIMIT {SWEEP_BATCH}"
                ),
                {"after": after},
            )
        ).all()
        if not rows:
            return moved
        after = rows[-1][0]
        stale = [row[0] for row in rows if _is_older(decode(row[1]), raised)]
        if stale:
            await conn.execute(
                text(
                    f"""UPDATE {service}.inbox SET state = {DEAD}, cause = :cause, dead_at = now(), key = '',
                    error = 'its sender''s database was restored from a backup after it was sent'
                    WHERE id = ANY(:ids) AND state = {PENDING}"""
                ),
                {"ids": stale, "cause": Cause.STALE_EPOCH.value},
            )
            moved += len(stale)


def _is_older(envelope: Envelope, raised: Mapping[str, int]) -> bool:
    return envelope.epoch < raised.get(envelope.source, 0)


async def prune(conn: AsyncConnection, service: str, memory: timedelta = MEMORY) -> int:
    """Forget one batch of messages that were dealt with longer ago than `memory`. Returns how many went.

    The mark rises first: whoever lands a message after this transaction refuses what it covers. A row may be younger
    than its message by the tolerated clock difference, hence the margin.
    """
    mark: datetime = (
        await conn.execute(
            text(
                f"""UPDATE {service}.inbox_memory SET forgotten_before = greatest(forgotten_before,
                now() - make_interval(secs => :memory) + make_interval(secs => :margin)) RETURNING forgotten_before"""
            ),
            {"memory": memory.total_seconds(), "margin": FUTURE_TOLERANCE.total_seconds()},
        )
    ).scalar_one()
    gone: Any = await conn.execute(
        text(
            f"""DELETE FROM {service}.inbox WHERE id IN (
                SELECT id FROM {service}.inbox
                WHERE state IN ({DONE}, {DROPPED}) AND received_at < :before ORDER BY id LIMIT {PRUNE_BATCH}
                FOR UPDATE SKIP LOCKED)"""
        ),
        {"before": mark - FUTURE_TOLERANCE},
    )
    return int(gone.rowcount)
