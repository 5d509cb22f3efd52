"""Subscription's tables, and the SQL on those of subscribers. Every write is one guarded statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.subscription import SubscriberFacts, SubscriberState

metadata = sa.MetaData(schema="subscription")
_Time = sa.TIMESTAMP(timezone=True)

subscriber = sa.Table(
    "subscriber",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("subjects", JSONB, nullable=False),
    sa.Column("begins", sa.Text, nullable=False),
    sa.Column("begins_at", _Time, nullable=False),
    sa.Column("max_ack_pending", sa.Integer, nullable=False),
    sa.Column("max_waiting", sa.Integer, nullable=False),
    sa.Column("ack_wait_seconds", sa.Integer, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("password_digest", sa.Text, nullable=False),
    sa.Column("old_password_digest", sa.Text),
    sa.Column("old_password_until", _Time),
    sa.Column("state", sa.Text, nullable=False),
    # Whether the broker has exactly the consumer of this state and generation, and no other of this subscriber.
    sa.Column("cleaned", sa.Boolean, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", _Time, nullable=False),
    sa.Column("updated_at", _Time, nullable=False),
)
subscriber_status = sa.Table(
    "subscriber_status",
    metadata,
    sa.Column("subscriber_id", sa.Text, sa.ForeignKey(subscriber.c.id), primary_key=True),
    sa.Column("behind", sa.BigInteger, nullable=False),
    sa.Column("unacknowledged", sa.BigInteger, nullable=False),
    sa.Column("redelivered", sa.BigInteger, nullable=False),
    sa.Column("acknowledged_through", sa.BigInteger, nullable=False),
    # Events that the broker dropped (by its limits) before the subscriber had them; 0: none.
    sa.Column("lost_before", sa.BigInteger, nullable=False),
    sa.Column("last_seen_at", _Time),
    sa.Column("acknowledged_at", _Time),
    sa.Column("measured_at", _Time, nullable=False),
)
webhook = sa.Table(
    "webhook",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("services", JSONB, nullable=False),
    sa.Column("types", JSONB, nullable=False),
    sa.Column("entities", JSONB, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("old_generation_until", _Time),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", _Time, nullable=False),
    sa.Column("updated_at", _Time, nullable=False),
)
webhook_progress = sa.Table(
    "webhook_progress",
    metadata,
    sa.Column("webhook_id", sa.Text, sa.ForeignKey(webhook.c.id), primary_key=True),
    sa.Column("position", sa.Text),
    # Rises when somebody moves the position: a sender that works on an older one stops.
    sa.Column("moves", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("failing_since", _Time),
    sa.Column("delivered", sa.BigInteger, nullable=False),
    sa.Column("caught_up", sa.Boolean, nullable=False),
    sa.Column("gaps", sa.BigInteger, nullable=False),
    sa.Column("last_delivered_at", _Time),
    sa.Column("last_error", sa.Text),
    sa.Column("updated_at", _Time, nullable=False),
)
delivery = sa.Table(
    "delivery",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("webhook_id", sa.Text, sa.ForeignKey(webhook.c.id), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("entity_id", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due_at", _Time, nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("error", sa.Text),
    sa.Column("created_at", _Time, nullable=False),
    sa.Column("finished_at", _Time),
)


def subscriber_facts(row: Mapping[Any, Any]) -> SubscriberFacts:
    return SubscriberFacts.model_validate({name: row[name] for name in SubscriberFacts.model_fields})


async def add_subscriber(conn: AsyncConnection, values: Mapping[str, Any]) -> bool:
    """Insert it; False when its tenant has one of that name."""
    statement = insert(subscriber).values(**values).on_conflict_do_nothing().returning(subscriber.c.id)
    return (await conn.execute(statement)).first() is not None


async def count_of(conn: AsyncConnection, table: sa.Table, tenant: str) -> int:
    """How many subscribers or webhooks a tenant has. Concurrent creations of one tenant wait for each other."""
    key = f"{table.name}/{tenant}"
    await conn.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(key, 0))))
    statement = sa.select(sa.func.count()).where(table.c.tenant == tenant, table.c.state != "DELETED")
    return int(await conn.scalar(statement) or 0)


async def find(
    conn: AsyncConnection, table: sa.Table, id_or_name: str, tenants: Sequence[str] | None, *, lock: bool = False
) -> Mapping[Any, Any] | None:
    """The live subscriber or webhook of that id, or the only one of that name, among `tenants` (None: all)."""
    statement = sa.select(table).where(
        sa.or_(table.c.id == id_or_name, table.c.name == id_or_name), table.c.state != "DELETED"
    )
    if tenants is not None:
        statement = statement.where(table.c.tenant.in_(tenants))
    if lock:
        statement = statement.with_for_update(key_share=True)
    rows = (await conn.execute(statement.limit(2))).mappings().all()
    exact = [row for row in rows if row["id"] == id_or_name]
    return exact[0] if exact else rows[0] if len(rows) == 1 else None


async def change(conn: AsyncConnection, table: sa.Table, row: Mapping[Any, Any], **values: Any) -> bool:
    """Change a subscriber or webhook at the version that was read; False when somebody was faster."""
    statement = (
        sa.update(table)
        .where(table.c.id == row["id"], table.c.version == row["version"])
        .values(version=row["version"] + 1, **values)
    )
    return (await conn.execute(statement)).rowcount == 1


async def sign_in_row(conn: AsyncConnection, subscriber_id: str) -> Mapping[Any, Any] | None:
    """What signing in needs; None for nobody, or a deleted one."""
    statement = sa.select(subscriber).where(
        subscriber.c.id == subscriber_id, subscriber.c.state != SubscriberState.DELETED
    )
    return (await conn.execute(statement)).mappings().first()


async def unclean(conn: AsyncConnection) -> Sequence[Mapping[Any, Any]]:
    """Subscribers whose consumer is not yet as it shall be, with what was last measured."""
    statement = (
        sa.select(subscriber, subscriber_status.c.acknowledged_at)
        .outerjoin(subscriber_status)
        .where(sa.not_(subscriber.c.cleaned))
        .order_by(subscriber.c.created_at)
        .limit(100)
    )
    return (await conn.execute(statement)).mappings().all()


async def live(conn: AsyncConnection) -> Sequence[Mapping[Any, Any]]:
    """Every subscriber that should have a consumer."""
    statement = sa.select(subscriber).where(subscriber.c.state == SubscriberState.ACTIVE)
    return (await conn.execute(statement)).mappings().all()


async def mark_unclean(conn: AsyncConnection, subscriber_id: str) -> None:
    """Its consumer is not there any more: it is to be made again."""
    await conn.execute(sa.update(subscriber).where(subscriber.c.id == subscriber_id).values(cleaned=False))


async def mark_clean(conn: AsyncConnection, row: Mapping[Any, Any]) -> None:
    """The broker is as this version of the row wants it."""
    at_version = sa.and_(subscriber.c.id == row["id"], subscriber.c.version == row["version"])
    await conn.execute(sa.update(subscriber).where(at_version).values(cleaned=True))


async def put_status(conn: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    statement = insert(subscriber_status)
    changes = {name: statement.excluded[name] for name in rows[0] if name != "subscriber_id"}
    await conn.execute(statement.on_conflict_do_update(index_elements=["subscriber_id"], set_=changes), list(rows))


async def database_now(conn: AsyncConnection) -> datetime:
    now: datetime = (await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
    return now
