"""Choose free machines and hold them, all or nothing; say why when there are not enough.

How concurrent holds stay fast and right: the quick way locks the pool rows it looks at and skips those that others
look at, so it never waits; it may therefore miss machines. When it comes up short it lets go of everything (a
savepoint) and looks again alone: the exclusive advisory lock of the profile waits for all quick holds to commit. No
holder ever waits while it has something another holder wants, so there is no dead-lock; the unique index on live claims
is the last word.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Integer, Interval, Text, column, func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import Select

from services.reservation.model import Claim
from services.reservation.store import claim_of, claim_table, pool_table

# How many free machines the quick way looks at to find one rack that fits all: a few racks of eight.
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


class _Short(Exception):
    """Fewer machines than wanted; rolls the savepoint back."""


async def take(conn: AsyncConnection, wanted: Wanted) -> tuple[Claim, ...] | None:
    """Insert HELD claims on free machines, all of one site. None (and nothing held) when there are not enough."""
    for alone in (False, True):
        try:
            async with conn.begin_nested():
                await _lock_profile(conn, wanted.profile, alone=alone)
                return await _take_at_some_site(conn, wanted, alone=alone)
        except _Short:
            continue
    return None


async def _lock_profile(conn: AsyncConnection, profile: str, *, alone: bool) -> None:
    lock = func.pg_advisory_xact_lock if alone else func.pg_advisory_xact_lock_shared
    await conn.execute(select(lock(literal(_LOCK_CLASS, Integer), func.hashtext(profile))))


async def _take_at_some_site(conn: AsyncConnection, wanted: Wanted, *, alone: bool) -> tuple[Claim, ...]:
    site = wanted.site or await _next_site(conn, wanted.profile, "")
    while site is not None:
        try:
            async with conn.begin_nested():
                return await _take_at(conn, wanted, site, alone=alone)
        except _Short:
            site = None if wanted.site else await _next_site(conn, wanted.profile, site)
    raise _Short


async def _next_site(conn: AsyncConnection, profile: str, after: str) -> str | None:
    """The first site by name after `after` with an eligible machine; one index probe, however many machines."""
    statement = select(func.min(pool_table.c.site)).where(
        pool_table.c.profile == profile, pool_table.c.eligible, pool_table.c.site > after
    )
    found: str | None = (await conn.execute(statement)).scalar_one()
    return found


async def _take_at(conn: AsyncConnection, wanted: Wanted, site: str, *, alone: bool) -> tuple[Claim, ...]:
    count = len(wanted.claim_ids)
    rows = (await conn.execute(_taking(wanted, site, alone=alone))).all()
    if len(rows) < count:
        raise _Short
    return tuple(claim_of(row) for row in sorted(rows, key=lambda row: row.position))


def _free(profile: str, site: str, excluded: Collection[str]) -> Select[Any]:
    live = select(claim_table.c.id).where(claim_table.c.machine_id == pool_table.c.machine_id, claim_table.c.live)
    statement = select(
        pool_table.c.machine_id, pool_table.c.name, pool_table.c.rack, pool_table.c.site, pool_table.c.version
    ).where(pool_table.c.profile == profile, pool_table.c.site == site, pool_table.c.eligible, ~live.exists())
    if excluded:
        statement = statement.where(pool_table.c.machine_id.not_in(sorted(excluded)))
    return statement.order_by(pool_table.c.rack, pool_table.c.machine_id)


def _taking(wanted: Wanted, site: str, *, alone: bool) -> Any:
    """One statement: look at a window of free machines, prefer one rack that fits all, insert the claims.

    Claims go in by machine id, so that two inserts that meet on the unique index wait in one order.
    """
    count = len(wanted.claim_ids)
    window = _free(wanted.profile, site, wanted.excluded).limit(max(WINDOW_FLOOR, WINDOW_FACTOR * count))
    if not alone:
        window = window.with_for_update(of=pool_table, skip_locked=True)
    seen = window.cte("seen")
    split = (func.count().over(partition_by=seen.c.rack) < count).label("split")
    ranked = select(seen, split).cte("ranked")
    order = (ranked.c.split, ranked.c.rack, ranked.c.machine_id)
    chosen = select(ranked, func.row_number().over(order_by=order).label("place")).order_by(*order).limit(count)
    picked = chosen.cte("picked")
    given = func.unnest(literal(list(wanted.claim_ids), ARRAY(Text)))
    ids = given.table_valued(column("id", Text), with_ordinality="place", name="ids").render_derived()
    source = (
        select(
            ids.c.id,
            literal(wanted.reservation_id, Text),
            picked.c.place.cast(Integer) + literal(wanted.first_position - 1, Integer),
            picked.c.machine_id,
            picked.c.name,
            picked.c.version,
            picked.c.site,
            literal("HELD", Text),
            func.now() + literal(timedelta(seconds=wanted.ttl_seconds), Interval),
            literal("", Text),
            func.now(),
        )
        .select_from(picked.join(ids, ids.c.place == picked.c.place))
        .order_by(picked.c.machine_id)
    )
    names = ["id", "reservation_id", "position", "machine_id", "machine_name", "machine_version", "site", "state"]
    return (
        pg_insert(claim_table)
        .from_select([*names, "expires_at", "ended_because", "created_at"], source)
        .on_conflict_do_nothing()
        .returning(claim_table)
    )
