"""Audit's tables and the only SQL on them. Events are only ever inserted: the running role may do nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

metadata = sa.MetaData(schema="audit")
_Time = sa.TIMESTAMP(timezone=True)

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
    sa.Column("time", _Time, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("site", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("correlation_id", sa.Text, nullable=False),
    sa.Column("causation_id", sa.Text),
    sa.Column("mentions", ARRAY(sa.Text), nullable=False),
    sa.Column("envelope", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Index("event_time", "time"),
    sa.Index("event_entity", "service", "entity_id", "entity_version"),
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

_order = (event.c.service, event.c.sequence)


async def last_digest(conn: AsyncConnection, service: str, before: int) -> str | None:
    """Digest of the newest event of the service with a smaller sequence; None when there is none."""
    statement = (
        sa.select(event.c.digest)
        .where(event.c.service == service, event.c.sequence < before)
        .order_by(event.c.sequence.desc())
        .limit(1)
    )
    digest: str | None = (await conn.execute(statement)).scalar_one_or_none()
    return digest


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


async def entity_gaps(conn: AsyncConnection, limit: int) -> list[Mapping[Any, Any]]:
    """Entities whose versions do not run from 1 without a hole or a repeat."""
    versions, highest = sa.func.count(sa.distinct(event.c.entity_version)), sa.func.max(event.c.entity_version)
    statement = (
        sa.select(
            event.c.service,
            event.c.entity_kind,
            event.c.entity_id,
            highest.label("last_version"),
            (highest - versions).label("missing"),
            (sa.func.count() - versions).label("repeated"),
        )
        .where(event.c.entity_version > 0)
        .group_by(event.c.service, event.c.entity_kind, event.c.entity_id)
        .having(sa.or_(highest != versions, sa.func.count() != versions))
        .order_by(event.c.service, event.c.entity_id)
        .limit(limit)
    )
    return list((await conn.execute(statement)).mappings())


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
    """(service, sequence, envelope) in that order, after a place."""
    statement = sa.select(event.c.service, event.c.sequence, event.c.envelope).where(*conditions)
    if after is not None:
        statement = statement.where(sa.tuple_(*_order) > sa.tuple_(*(sa.literal(part) for part in after)))
    return list((await conn.execute(statement.order_by(*_order).limit(limit))).mappings())


async def chain(conn: AsyncConnection, service: str, after: int, limit: int) -> list[Mapping[Any, Any]]:
    """(sequence, envelope, digest) of a service in order, after a sequence."""
    statement = (
        sa.select(event.c.sequence, event.c.envelope, event.c.digest)
        .where(event.c.service == service, event.c.sequence > after)
        .order_by(event.c.sequence)
        .limit(limit)
    )
    return list((await conn.execute(statement)).mappings())
