"""Choose free machines and hold them, all or nothing.

How concurrent holds stay fast and right: the quick way locks the pool rows it looks at and skips those that others
look at, so it never waits; it may therefore miss machines, or find at the last moment that somebody was faster. Then it
lets go of everything (a savepoint) and looks once more from elsewhere. When that comes up short too it looks alone: the
exclusive advisory lock of the profile waits for all quick holds to commit. Alone it waits for nobody's rows. The unique
index on live claims is the last word.

Racks lie on a ring and every hold starts at a point of its own: holds at the same time rarely meet, and none has to
walk over all that was held just now. A fleet that fits into the window is seen as a whole wherever the walk starts.

A transaction that holds twice for one profile and comes up short the second time may meet another such one; PostgreSQL
ends one of them and the bus delivers its commands again, one by one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from zlib import crc32

from sqlalchemy import TextClause, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from services.reservation.model import Claim
from services.reservation.store import claim_of, pool_table

# How many free machines are looked at to find one rack that fits all: a few racks of eight.
WINDOW_FLOOR = 32
WINDOW_FACTOR = 4
_LOCK_CLASS = 0x5C1A  # Any number nobody else in this database uses as the first key of an advisory lock.


@dataclass(frozen=True)
class Wanted:
    """What is asked for: one machine for each of `claim_ids`, all at one site (`site` None: any one site)."""

    reservation_id: str
    profile: str
    site: str | None
    claim_ids: tuple[str, ...]
    ttl_seconds: int
    excluded: Collection[str] = ()
    first_position: int = 0


def point(name: str) -> int:
    """Where a rack lies on the ring that holds spread over: 0 to 2**32 - 1, the same for the same name for ever."""
    return crc32(name.encode())


class _Short(Exception):
    """Fewer machines than wanted; rolls the savepoint back."""


# One statement: look at a window of free machines, prefer one rack that fits all, insert the claims. Written as text
# because it is the hottest statement there is and building it from objects costs more than running it. Claims go in by
# machine id, so that two inserts that meet on the unique index wait in one order.
_TAKE = """
WITH gate AS MATERIALIZED ({gate}),
at AS MATERIALIZED (
    SELECT coalesce(CAST(:site AS text), (
        SELECT min(p.site) FROM reservation.pool p WHERE p.profile = CAST(:profile AS text) AND p.eligible)) AS site
    FROM gate),
from_start AS ({walk_from_start}),
from_zero AS ({walk_from_zero}),
seen AS MATERIALIZED (
    SELECT * FROM (SELECT * FROM from_start UNION ALL SELECT * FROM from_zero) AS ring LIMIT CAST(:window AS integer)),
ranked AS (SELECT *, count(*) OVER (PARTITION BY rack) < CAST(:count AS integer) AS split FROM seen),
picked AS (
    SELECT *, row_number() OVER (ORDER BY split, rack, machine_id) AS place FROM ranked
    ORDER BY split, rack, machine_id LIMIT CAST(:count AS integer))
INSERT INTO reservation.claim (id, reservation_id, position, machine_id, machine_name, machine_version, site, state,
    expires_at, ended_because, created_at)
SELECT ids.id, CAST(:reservation_id AS text), picked.place + CAST(:first_position AS integer) - 1, picked.machine_id,
    picked.name, picked.version, picked.site, 'HELD', now() + make_interval(secs => CAST(:ttl_seconds AS integer)), '',
    now()
FROM picked JOIN unnest(CAST(:claim_ids AS text[])) WITH ORDINALITY AS ids (id, place) USING (place)
WHERE (SELECT count(*) FROM picked) = CAST(:count AS integer)
ORDER BY picked.machine_id
ON CONFLICT DO NOTHING
RETURNING id, position, machine_id, machine_name, machine_version, site, state, accepted_version, expires_at,
    ended_because
"""
# One stretch of the ring. PostgreSQL walks the second only when the first gave fewer machines than the window holds.
_WALK = """
    SELECT p.machine_id, p.name, p.rack, p.site, p.version FROM reservation.pool p
    WHERE p.profile = CAST(:profile AS text) AND p.site = (SELECT site FROM at) AND p.eligible
        AND NOT EXISTS (SELECT 1 FROM reservation.claim c WHERE c.machine_id = p.machine_id AND c.live)
        AND p.machine_id <> ALL (CAST(:excluded AS text[])) AND p.rack_point {stretch} CAST(:start AS bigint)
    ORDER BY p.rack_point, p.rack, p.machine_id LIMIT CAST(:window AS integer) {lock}"""
_GATE = f"SELECT pg_advisory_xact_lock_shared({_LOCK_CLASS}, hashtext(CAST(:profile AS text)))"


def _take_statement(gate: str, lock: str) -> TextClause:
    ahead, behind = _WALK.format(stretch=">=", lock=lock), _WALK.format(stretch="<", lock=lock)
    return text(_TAKE.format(gate=gate, walk_from_start=ahead, walk_from_zero=behind))


_TAKE_QUICK = _take_statement(_GATE, "FOR UPDATE OF p SKIP LOCKED")
_TAKE_ALONE = _take_statement("SELECT 1", "")
_BE_ALONE = text(f"SELECT pg_advisory_xact_lock({_LOCK_CLASS}, hashtext(CAST(:profile AS text)))")


async def take(conn: AsyncConnection, wanted: Wanted) -> tuple[Claim, ...] | None:
    """Insert HELD claims on free machines, all of one site. None (and nothing held) when there are not enough.

    The claims' reservation must be in the table by the end of the transaction.
    """
    for start in (point(wanted.claim_ids[0]), point(wanted.claim_ids[0][::-1])):
        try:
            async with conn.begin_nested():
                return await _take(conn, _TAKE_QUICK, wanted, wanted.site, start)
        except _Short:
            continue
    await conn.execute(_BE_ALONE, {"profile": wanted.profile})
    site = wanted.site or await _next_site(conn, wanted.profile, "")
    while site is not None:
        try:
            async with conn.begin_nested():
                return await _take(conn, _TAKE_ALONE, wanted, site, 0)
        except _Short:
            site = None if wanted.site else await _next_site(conn, wanted.profile, site)
    return None


async def _take(
    conn: AsyncConnection, statement: TextClause, wanted: Wanted, site: str | None, start: int
) -> tuple[Claim, ...]:
    count = len(wanted.claim_ids)
    parameters = {
        "site": site,
        "start": start,
        "profile": wanted.profile,
        "excluded": sorted(wanted.excluded),
        "window": max(WINDOW_FLOOR, WINDOW_FACTOR * count),
        "count": count,
        "reservation_id": wanted.reservation_id,
        "first_position": wanted.first_position,
        "ttl_seconds": wanted.ttl_seconds,
        "claim_ids": list(wanted.claim_ids),
    }
    rows = (await conn.execute(statement, parameters)).all()
    if len(rows) < count:
        raise _Short
    return tuple(claim_of(row) for row in sorted(rows, key=lambda row: row.position))


async def _next_site(conn: AsyncConnection, profile: str, after: str) -> str | None:
    """The first site by name after `after` with an eligible machine; one index probe, however many machines."""
    statement = select(func.min(pool_table.c.site)).where(
        pool_table.c.profile == profile, pool_table.c.eligible, pool_table.c.site > after
    )
    found: str | None = (await conn.execute(statement)).scalar_one()
    return found
