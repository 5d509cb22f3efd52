"""Audit's tables and the SQL on events and operations. The running role may only add events.

Events lie in monthly partitions by their own time, so (service, sequence) is unique by what `keeping.py` checks under
the lock of the service's position, not by the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from slipway.proof import FIRST_DIGEST
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

metadata = sa.MetaData(schema="audit")
_Time = sa.TIMESTAMP(timezone=True)
MAX_SEQUENCE = 2**63 - 1
MAX_CONTRADICTIONS = 200

event = sa.Table(
    "event",
    metadata,
    sa.Column("service", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("entity_kind", sa.Text, nullable=False),
    sa.Column("entity_id", sa.Text, nullable=False),
    sa.Column("entity_version", sa.Integer, nullable=False),
    sa.Column("time", _Time, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("site", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text, nullable=False),
    sa.Column("causation_id", sa.Text),
    sa.Column("mentions", ARRAY(sa.Text), nullable=False),
    sa.Column("envelope", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Index("event_time", "time"),
    sa.Index("event_entity", "entity_id", "entity_version"),
    sa.Index("event_tenant", "tenant", "time"),
    sa.Index("event_actor", "actor", "time"),
    sa.Index("event_correlation", "correlation_id"),
    sa.Index("event_mentions", "mentions", postgresql_using="gin"),
)
operation = sa.Table(
    "operation",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("target_kind", sa.Text, nullable=False),
    sa.Column("target_id", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("site", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("waiting_for", sa.Text, nullable=False),
    sa.Column("facts", JSONB, nullable=False),
    sa.Column("created_at", _Time, nullable=False),
    sa.Column("updated_at", _Time, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Index("operation_created", "created_at"),
    sa.Index("operation_target", "target_id"),
)

signing_key = sa.Table(
    "signing_key",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("public_key", JSONB, nullable=False),
    sa.Column("first_used_at", _Time, nullable=False),
)
checkpoint = sa.Table(
    "checkpoint",
    metadata,
    sa.Column("service", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("day", sa.Date, nullable=False),
    sa.Column("daily", sa.Boolean, nullable=False),
    sa.Column("last_sequence", sa.BigInteger, nullable=False),
    sa.Column("events", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("statement", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, sa.ForeignKey(signing_key.c.key_id), nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("made_at", _Time, nullable=False),
)
retention_policy = sa.Table(
    "retention_policy",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("keep_days", sa.Integer),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("set_by", sa.Text, nullable=False),
    sa.Column("set_at", _Time, nullable=False),
    sa.Column("in_force_at", _Time, nullable=False),
)
legal_hold = sa.Table(
    "legal_hold",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("placed_by", sa.Text, nullable=False),
    sa.Column("placed_at", _Time, nullable=False),
)
legal_hold_release = sa.Table(
    "legal_hold_release",
    metadata,
    sa.Column("hold_id", sa.Text, sa.ForeignKey(legal_hold.c.id), primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("released_by", sa.Text, nullable=False),
    sa.Column("released_at", _Time, nullable=False),
)
removal = sa.Table(
    "removal",
    metadata,
    sa.Column("service", sa.Text, primary_key=True),
    sa.Column("first_sequence", sa.BigInteger, primary_key=True),
    sa.Column("last_sequence", sa.BigInteger, nullable=False),
    sa.Column("events", sa.BigInteger, nullable=False),
    sa.Column("digest_before", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("newest", _Time, nullable=False),
    sa.Column("policy_version", sa.Integer, sa.ForeignKey(retention_policy.c.version), nullable=False),
    sa.Column("statement", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, sa.ForeignKey(signing_key.c.key_id), nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("removed_at", _Time, nullable=False),
)
contradiction = sa.Table(
    "contradiction",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("kept_digest", sa.Text, nullable=False),
    sa.Column("envelope", sa.Text, nullable=False),
    sa.Column("found_at", _Time, nullable=False),
)


async def ensure_partitions(conn: AsyncConnection, times: Iterable[datetime]) -> None:
    """See that the months of `times` have partitions; where one can't be made, events go to the rest."""
    months = sorted({moment.astimezone(UTC).date().replace(day=1) for moment in times})
    statement = "SELECT audit.ensure_partition(month) FROM unnest(CAST(:months AS date[])) AS month"
    if months:
        await conn.execute(sa.text(statement), {"months": months})


async def chain_end(conn: AsyncConnection, service: str, before: int | None = None) -> tuple[int, str]:
    """(sequence, digest) of the service's newest event, kept or removed, with a smaller sequence than `before`."""
    limit = MAX_SEQUENCE if before is None else before
    newest = (
        sa.select(event.c.sequence, event.c.digest)
        .where(event.c.service == service, event.c.sequence < limit)
        .order_by(event.c.sequence.desc())
        .limit(1)
    )
    # The removals are those of the live store in a rebuild as well: what was removed is not made again.
    removed = sa.text(
        "SELECT last_sequence, digest FROM audit.removal WHERE service = :service AND last_sequence < :before "
        "ORDER BY last_sequence DESC LIMIT 1"
    )
    ends = [
        (await conn.execute(newest)).first(),
        (await conn.execute(removed, {"service": service, "before": limit})).first(),
    ]
    return max([(0, FIRST_DIGEST), *((int(end[0]), str(end[1])) for end in ends if end is not None)])


async def kept_between(conn: AsyncConnection, service: str, first: int, last: int) -> dict[int, str]:
    """The texts of a service's events by sequence."""
    statement = sa.select(event.c.sequence, event.c.envelope).where(
        event.c.service == service, event.c.sequence.between(first, last)
    )
    return {row.sequence: row.envelope for row in await conn.execute(statement)}


async def removed_ranges(conn: AsyncConnection, service: str, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges of removed events of the service that touch [first, last]."""
    statement = (
        "SELECT first_sequence, last_sequence FROM audit.removal WHERE service = :service "
        "AND last_sequence >= :first AND first_sequence <= :last ORDER BY first_sequence"
    )
    rows = await conn.execute(sa.text(statement), {"service": service, "first": first, "last": last})
    return [(row[0], row[1]) for row in rows]


async def next_link(conn: AsyncConnection, service: str, after: int) -> tuple[str | None, str] | None:
    """What follows in the chain: (text, digest) of an event, (None, digest before) of removed ones, None: nothing."""
    kept = (
        await conn.execute(
            sa.select(event.c.sequence, event.c.envelope, event.c.digest)
            .where(event.c.service == service, event.c.sequence > after)
            .order_by(event.c.sequence)
            .limit(1)
        )
    ).first()
    removed = (
        await conn.execute(
            sa.text(
                "SELECT first_sequence, digest_before FROM audit.removal "
                "WHERE service = :service AND first_sequence > :after ORDER BY first_sequence LIMIT 1"
            ),
            {"service": service, "after": after},
        )
    ).first()
    if removed is not None and (kept is None or removed[0] < kept.sequence):
        return None, str(removed[1])
    return (kept.envelope, kept.digest) if kept is not None else None


async def add_contradiction(conn: AsyncConnection, service: str, sequence: int, kept_digest: str, text: str) -> bool:
    """Remember an event that there is no room for; false when it is remembered already."""
    statement = sa.text(
        "INSERT INTO audit.contradiction (service, sequence, kept_digest, envelope) "
        "VALUES (:service, :sequence, :digest, :text) ON CONFLICT DO NOTHING RETURNING id"
    )
    row = {"service": service, "sequence": sequence, "digest": kept_digest, "text": text}
    return (await conn.execute(statement, row)).first() is not None


async def add_events(conn: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert events; one that is kept already stays as it is."""
    if rows:
        await conn.execute(insert(event).on_conflict_do_nothing(), list(rows))


async def sequences(conn: AsyncConnection) -> list[Mapping[Any, Any]]:
    """For each service: how many events, and the highest sequence."""
    statement = (
        sa.select(
            event.c.service,
            sa.func.count().label("events"),
            sa.func.max(event.c.sequence).label("last_sequence"),
        )
        .group_by(event.c.service)
        .order_by(event.c.service)
    )
    return list((await conn.execute(statement)).mappings())


async def sequence_gaps(conn: AsyncConnection, limit: int) -> list[Mapping[Any, Any]]:
    """Ranges of sequence numbers that are missing, the ones before the first event included."""
    before = sa.func.lag(event.c.sequence, 1, 0).over(partition_by=event.c.service, order_by=event.c.sequence)
    steps = sa.select(event.c.service, event.c.sequence, before.label("before")).subquery()
    statement = (
        sa.select(
            steps.c.service,
            (steps.c.before + 1).label("first_missing"),
            (steps.c.sequence - 1).label("last_missing"),
        )
        .where(steps.c.sequence - steps.c.before > 1)
        .order_by(steps.c.service, steps.c.sequence)
        .limit(limit)
    )
    return list((await conn.execute(statement)).mappings())


async def all_removed(conn: AsyncConnection) -> list[Mapping[Any, Any]]:
    """Every range of events that retention removed."""
    columns = (removal.c.service, removal.c.first_sequence, removal.c.last_sequence, removal.c.events)
    return list((await conn.execute(sa.select(*columns))).mappings())


async def entity_gaps(conn: AsyncConnection, limit: int) -> list[Mapping[Any, Any]]:
    """Entities whose versions do not run from 1 without a hole or a repeat.

    Where retention has removed events, only what lies behind them counts, from the lowest version there.
    """
    last = sa.select(removal.c.service, sa.func.max(removal.c.last_sequence).label("last")).group_by(removal.c.service)
    removed = last.subquery("removed")
    versions, highest = sa.func.count(sa.distinct(event.c.entity_version)), sa.func.max(event.c.entity_version)
    before = sa.case((sa.func.max(removed.c.last).is_(None), 0), else_=sa.func.min(event.c.entity_version) - 1)
    missing = highest - before - versions
    statement = (
        sa.select(
            event.c.service,
            event.c.entity_kind,
            event.c.entity_id,
            highest.label("last_version"),
            missing.label("missing"),
            (sa.func.count() - versions).label("repeated"),
        )
        .outerjoin(removed, removed.c.service == event.c.service)
        .where(event.c.entity_version > 0, event.c.sequence > sa.func.coalesce(removed.c.last, 0))
        .group_by(event.c.service, event.c.entity_kind, event.c.entity_id)
        .having(sa.or_(missing != 0, sa.func.count() != versions))
        .order_by(event.c.service, event.c.entity_id)
        .limit(limit)
    )
    return list((await conn.execute(statement)).mappings())


def within(start: datetime | None, stop: datetime | None) -> list[sa.ColumnElement[bool]]:
    """Events that happened in [start, stop)."""
    found = [event.c.time >= start] if start is not None else []
    return [*found, event.c.time < stop] if stop is not None else found


async def mentioning(
    conn: AsyncConnection, id_: str, *, tenants: Sequence[str] | None, after: tuple[Any, str, int] | None, limit: int
) -> list[Mapping[Any, Any]]:
    """Events about `id_`, oldest first, after (time, service, sequence)."""
    statement = sa.select(event).where(event.c.mentions.contains([id_]))
    if tenants is not None:
        statement = statement.where(event.c.tenant.in_(tenants))
    if after is not None:
        place = sa.tuple_(event.c.time, event.c.service, event.c.sequence)
        statement = statement.where(place > sa.tuple_(*(sa.literal(part) for part in after)))
    statement = statement.order_by(event.c.time, event.c.service, event.c.sequence).limit(limit)
    return list((await conn.execute(statement)).mappings())


async def exported(
    conn: AsyncConnection, conditions: Sequence[sa.ColumnElement[bool]], after: tuple[str, int] | None, limit: int
) -> list[Mapping[Any, Any]]:
    """(service, sequence, envelope, digest) in that order, after a place.

    Service by service: each page is then read off one index, however many events lie behind it.
    """
    rows: list[Mapping[Any, Any]] = []
    service, sequence = after if after is not None else (await _next_service(conn, ""), -1)
    columns = (event.c.service, event.c.sequence, event.c.envelope, event.c.digest)
    while service is not None and len(rows) < limit:
        mine = sa.select(*columns).where(event.c.service == service, event.c.sequence > sequence, *conditions)
        rows += (await conn.execute(mine.order_by(event.c.sequence).limit(limit - len(rows)))).mappings()
        if len(rows) < limit:
            service, sequence = await _next_service(conn, service), -1
    return rows


async def _next_service(conn: AsyncConnection, after: str) -> str | None:
    found = sa.select(sa.func.min(event.c.service)).where(event.c.service > after)
    service: str | None = (await conn.execute(found)).scalar_one()
    return service


async def chain(
    conn: AsyncConnection, service: str, after: int, until: int, limit: int
) -> tuple[list[Mapping[Any, Any]], bool]:
    """Whole rows of a service in order, in (after, until]; and whether there may be more. A number is never split."""
    mine = sa.select(event).where(event.c.service == service).order_by(event.c.sequence, event.c.time)
    page = mine.where(event.c.sequence > after, event.c.sequence <= until).limit(limit)
    rows: list[Mapping[Any, Any]] = list((await conn.execute(page)).mappings())
    if len(rows) < limit:
        return rows, False
    last = rows[-1]["sequence"]
    same = (await conn.execute(mine.where(event.c.sequence == last))).mappings()
    return [*(row for row in rows if row["sequence"] < last), *same], True


async def count_between(conn: AsyncConnection, service: str, after: int, last: int) -> int:
    """How many events of the service have a number in (after, last]."""
    mine = (event.c.service == service, event.c.sequence > after, event.c.sequence <= last)
    return int((await conn.execute(sa.select(sa.func.count()).where(*mine))).scalar_one())


async def removals_within(conn: AsyncConnection, service: str, after: int, last: int) -> list[Mapping[Any, Any]]:
    """Removals that lie wholly in (after, last], in order."""
    statement = (
        sa.select(removal)
        .where(removal.c.service == service, removal.c.first_sequence > after, removal.c.last_sequence <= last)
        .order_by(removal.c.first_sequence)
    )
    return list((await conn.execute(statement)).mappings())


async def read_position(conn: AsyncConnection, service: str) -> int:
    """How far the projector has read the service's stream."""
    statement = "SELECT position FROM audit.projection_position WHERE projection = 'events' AND stream = :service"
    return int(await conn.scalar(sa.text(statement), {"service": service}) or 0)


async def contradictions(conn: AsyncConnection, service: str) -> list[Mapping[Any, Any]]:
    """Events that came under a number which was taken, oldest first."""
    statement = sa.select(contradiction).where(contradiction.c.service == service).order_by(contradiction.c.id)
    return list((await conn.execute(statement.limit(MAX_CONTRADICTIONS))).mappings())
