"""What happens without being asked: holds run out, and returned claims end. Both are found by query, so none is lost.

Each reservation is locked with SKIP LOCKED: one that a command is changing right now is looked at next time.
"""

from __future__ import annotations

from libs.bus.context import Context
from services.reservation import model, store
from services.reservation.announcements import announce

# Reservations a sweep changes in one transaction: bounded, so that commands never wait long for its locks.
MOST_AT_ONCE = 100


async def expire_holds(ctx: Context) -> int:
    """HELD past its limit → EXPIRED, by the database's clock. Returns how many reservations changed."""
    changed = 0
    for reservation_id in await store.past_their_limit(ctx.conn, MOST_AT_ONCE):
        found = await store.lock(ctx.conn, reservation_id, skip_locked=True)
        if found is None:
            continue
        before = found.reservation
        after = model.expire(before, found.now)
        if after is not before:
            await store.save(ctx.conn, before, after)
            announce(ctx, before, after)
            changed += 1
    return changed


async def end_returned_claims(ctx: Context) -> int:
    """RETURNING → ENDED where inventory has the machine back. Returns how many reservations changed."""
    changed = 0
    for reservation_id, claim_ids in (await store.returned(ctx.conn, MOST_AT_ONCE)).items():
        found = await store.lock(ctx.conn, reservation_id, skip_locked=True)
        if found is None:
            continue
        before = found.reservation
        after = model.end_returned(before, claim_ids)
        if after is not before:
            await store.save(ctx.conn, before, after)
            announce(ctx, before, after)
            changed += 1
    return changed
