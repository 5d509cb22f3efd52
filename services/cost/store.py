"""Cost's tables and the only SQL on them: the price book (its own) and metered usage (a projection)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.cost import PriceFacts, UsageFacts
from services.cost.metering import Line, Meter
from services.cost.pricing import Price, PriceBook, Window

metadata = sa.MetaData(schema="cost")
_Time = sa.TIMESTAMP(timezone=True)

price = sa.Table(
    "price",
    metadata,
    sa.Column("profile", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("price_per_machine_hour", sa.Numeric, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("valid_from", _Time, nullable=False),
    sa.Column("set_by", sa.Text, nullable=False),
    sa.Column("set_at", _Time, nullable=False),
    sa.UniqueConstraint("profile", "valid_from", name="price_one_at_a_time"),
)
# Which usage lines have been announced as events. No projection: a rebuild must not announce anything again.
announced = sa.Table(
    "announced",
    metadata,
    sa.Column("usage_id", sa.Text, primary_key=True),
    sa.Column("announced_at", _Time, nullable=False),
)
meter = sa.Table(
    "meter",
    metadata,
    sa.Column("cluster_id", sa.Text, primary_key=True),
    sa.Column("machine_id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("profile", sa.Text, nullable=False),
    sa.Column("gpu_count", sa.Integer, nullable=False),
    sa.Column("line_id", sa.Text, nullable=False),
    sa.Column("started_at", _Time, nullable=False),
    sa.Column("line_started_at", _Time, nullable=False),
    sa.Column("stopped_at", _Time),
)
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("machine_id", sa.Text, nullable=False),
    sa.Column("profile", sa.Text, nullable=False),
    sa.Column("gpu_count", sa.Integer, nullable=False),
    sa.Column("started_at", _Time, nullable=False),
    sa.Column("stopped_at", _Time),
    sa.Column("seconds", sa.BigInteger),
    sa.Column("sign", sa.SmallInteger, nullable=False),
    sa.Column("correction_of", sa.Text),
    sa.Column("booked_at", _Time),
    sa.Index("usage_cluster", "cluster_id", "started_at"),
    sa.Index("usage_tenant", "tenant", "started_at"),
    sa.Index("usage_one_open", "cluster_id", "machine_id", unique=True, postgresql_where=sa.text("stopped_at IS NULL")),
)
anomaly = sa.Table(
    "anomaly",
    metadata,
    sa.Column("event_id", sa.Text, primary_key=True),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("machine_id", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("learnt_at", _Time, nullable=False),
)


def price_facts(row: Mapping[Any, Any]) -> PriceFacts:
    return PriceFacts.model_validate({name: row[name] for name in PriceFacts.model_fields})


def line_of(row: Mapping[Any, Any]) -> Line:
    return Line(**{name: row[name] for name in Line.__dataclass_fields__})


def usage_facts(line: Line) -> UsageFacts:
    """A line as others may know it. Its event is the only one it ever has: version 1."""
    return UsageFacts(
        id=line.id,
        cluster_id=line.cluster_id,
        tenant=line.tenant,
        machine_id=line.machine_id,
        profile=line.profile,
        gpu_count=line.gpu_count,
        started_at=line.started_at,
        stopped_at=line.stopped_at,
        seconds=line.seconds,
        correction_of=line.correction_of,
        version=1,
    )


# -- the price book ------------------------------------------------------------------------------


async def latest_price(conn: AsyncConnection, profile: str) -> PriceFacts | None:
    statement = sa.select(price).where(price.c.profile == profile).order_by(price.c.version.desc()).limit(1)
    row = (await conn.execute(statement)).mappings().first()
    return price_facts(row) if row else None


async def add_price(conn: AsyncConnection, facts: PriceFacts, *, set_by: str, now: datetime) -> bool:
    """Append it; False when somebody else added the same version or time first."""
    values = {**facts.model_dump(mode="python"), "set_by": set_by, "set_at": now}
    statement = insert(price).values(values).on_conflict_do_nothing().returning(price.c.version)
    return (await conn.execute(statement)).first() is not None


async def price_book(conn: AsyncConnection) -> PriceBook:
    """Every price there ever was, by profile, in the order of valid_from."""
    book: dict[str, list[Price]] = defaultdict(list)
    for row in (await conn.execute(sa.select(price).order_by(price.c.profile, price.c.valid_from))).mappings():
        book[row["profile"]].append(Price(row["price_per_machine_hour"], row["currency"], row["valid_from"]))
    return book


# -- metered usage -------------------------------------------------------------------------------


async def meters(conn: AsyncConnection, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Meter]:
    """Meters by (cluster, machine), of those keys that have one."""
    wanted = sa.tuple_(meter.c.cluster_id, meter.c.machine_id).in_(sorted(set(keys)))
    rows = (await conn.execute(sa.select(meter).where(wanted))).mappings()
    return {(row["cluster_id"], row["machine_id"]): Meter(**row) for row in rows}


async def save_metering(
    conn: AsyncConnection,
    *,
    changed: Iterable[Meter],
    added: Iterable[Line],
    closed: Iterable[Line],
    anomalies: Sequence[Mapping[str, Any]],
) -> None:
    """Write what a batch changed. A line is closed only while it is open."""
    meter_rows = [dict(entry.__dict__) for entry in changed]
    if meter_rows:
        statement = insert(meter)
        keys = ("cluster_id", "machine_id")
        changes = {name: statement.excluded[name] for name in meter_rows[0] if name not in keys}
        await conn.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes), meter_rows)
    lines = [{**line.__dict__, "seconds": line.seconds} for line in added]
    if lines:
        await conn.execute(sa.insert(usage), lines)
    ends = [{"line": line.id, "end": line.stopped_at, "length": line.seconds} for line in closed]
    if ends:
        statement_close = (
            sa.update(usage)
            .where(usage.c.id == sa.bindparam("line"), usage.c.stopped_at.is_(None))
            .values(stopped_at=sa.bindparam("end", type_=_Time), seconds=sa.bindparam("length"))
        )
        await conn.execute(statement_close, ends)
    if anomalies:
        await conn.execute(sa.insert(anomaly), list(anomalies))


async def lines_in(
    conn: AsyncConnection, window: Window, *, tenants: Sequence[str] | None, clusters: Sequence[str]
) -> list[Line]:
    """Lines that overlap the window, or were booked in it. `tenants` None: all; `clusters` (): all."""
    statement = sa.select(usage).order_by(usage.c.started_at, usage.c.id)
    if tenants is not None:
        statement = statement.where(usage.c.tenant.in_(tenants))
    if clusters:
        statement = statement.where(usage.c.cluster_id.in_(clusters))
    if window.stop is not None:
        booked = usage.c.booked_at < window.stop
        statement = statement.where(sa.or_(usage.c.started_at < window.stop, booked))
    if window.start is not None:
        after = sa.or_(usage.c.stopped_at.is_(None), usage.c.stopped_at > window.start)
        statement = statement.where(sa.or_(after, usage.c.booked_at >= window.start))
    return [line_of(row) for row in (await conn.execute(statement)).mappings()]


async def lines_to_announce(conn: AsyncConnection, limit: int) -> list[Line]:
    """Closed lines that no event has told about yet, oldest first."""
    told = sa.select(announced.c.usage_id).where(announced.c.usage_id == usage.c.id)
    statement = (
        sa.select(usage)
        .where(usage.c.stopped_at.is_not(None), ~told.exists())
        .order_by(usage.c.stopped_at, usage.c.id)
        .limit(limit)
    )
    return [line_of(row) for row in (await conn.execute(statement)).mappings()]


async def claim_announcements(conn: AsyncConnection, ids: Sequence[str], *, now: datetime) -> set[str]:
    """Mark lines as announced; answers those that were not before. Of two replicas one gets each."""
    if not ids:
        return set()
    rows = [{"usage_id": id_, "announced_at": now} for id_ in ids]
    statement = insert(announced).values(rows).on_conflict_do_nothing().returning(announced.c.usage_id)
    return set((await conn.execute(statement)).scalars())
