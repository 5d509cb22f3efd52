"""The SQL on webhooks, on how far each is, and on deliveries that are waiting or have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.subscription import WebhookFacts, WebhookState
from services.subscription.store import delivery, webhook, webhook_progress

WAITING, DELIVERED, GIVEN_UP = "WAITING", "DELIVERED", "GIVEN_UP"
EVENT, PING = "event", "ping"
_WAITS = sa.text("state = 'WAITING'")  # As the index says it; a parameter would not be recognised.
KEPT = timedelta(days=7)  # Ended deliveries, for whoever looks for the reason.


def webhook_facts(row: Mapping[Any, Any]) -> WebhookFacts:
    return WebhookFacts.model_validate({name: row[name] for name in WebhookFacts.model_fields})


async def add_webhook(conn: AsyncConnection, values: Mapping[str, Any], position: str, now: datetime) -> bool:
    """Insert it with where it begins; False when its tenant has one of that name."""
    statement = insert(webhook).values(**values).on_conflict_do_nothing().returning(webhook.c.id)
    if (await conn.execute(statement)).first() is None:
        return False
    progress = {"webhook_id": values["id"], "position": position, "moves": 0, "failures": 0, "delivered": 0}
    more = {"caught_up": False, "gaps": 0, "updated_at": now}
    await conn.execute(insert(webhook_progress).values(**progress, **more))
    return True


async def move(conn: AsyncConnection, webhook_id: str, position: str, now: datetime) -> None:
    """Go on from another position; what is being sent from the old one no longer counts."""
    await conn.execute(
        sa.update(webhook_progress)
        .where(webhook_progress.c.webhook_id == webhook_id)
        .values(position=position, moves=webhook_progress.c.moves + 1, caught_up=False, updated_at=now)
    )


async def forget_failures(conn: AsyncConnection, webhook_id: str, now: datetime) -> None:
    """It is enabled again: what waits is tried at once."""
    await conn.execute(
        sa.update(webhook_progress)
        .where(webhook_progress.c.webhook_id == webhook_id)
        .values(failures=0, failing_since=None, updated_at=now)
    )
    waiting = sa.and_(delivery.c.webhook_id == webhook_id, delivery.c.state == WAITING)
    await conn.execute(sa.update(delivery).where(waiting).values(due_at=now))


async def drop_waiting(conn: AsyncConnection, webhook_id: str) -> None:
    await conn.execute(sa.delete(delivery).where(delivery.c.webhook_id == webhook_id, delivery.c.state == WAITING))


async def add_waiting(conn: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Keep deliveries that wait; one that waits already is left alone. Returns the new ids."""
    if not rows:
        return []
    statement = (
        insert(delivery)
        .on_conflict_do_nothing(index_elements=["webhook_id", "message_id"], index_where=_WAITS)
        .returning(delivery.c.id)
    )
    found = []
    for row in rows:  # One by one: their ids are their order.
        found += [r[0] for r in await conn.execute(statement.values(**row))]
    return found


async def to_work_on(conn: AsyncConnection) -> list[str]:
    """Webhooks that something may have to be sent to."""
    pings = sa.select(delivery.c.webhook_id).where(delivery.c.kind == PING, delivery.c.state == WAITING)
    statement = sa.select(webhook.c.id).where(
        webhook.c.state != WebhookState.DELETED,
        sa.or_(webhook.c.state == WebhookState.ACTIVE, webhook.c.id.in_(pings)),
    )
    return [row[0] for row in await conn.execute(statement)]


async def load(conn: AsyncConnection, webhook_id: str) -> Mapping[Any, Any] | None:
    """The webhook with its progress."""
    statement = sa.select(
        webhook, *(column for column in webhook_progress.c if column.name not in ("webhook_id", "updated_at"))
    ).join(webhook_progress)
    statement = statement.where(webhook.c.id == webhook_id, webhook.c.state != WebhookState.DELETED)
    return (await conn.execute(statement)).mappings().first()


async def lock(conn: AsyncConnection, webhook_id: str) -> None:
    """Whoever changes a webhook, its progress or its deliveries locks the webhook first."""
    statement = sa.select(webhook.c.id).where(webhook.c.id == webhook_id).with_for_update(key_share=True)
    await conn.execute(statement)


async def first_waiting(conn: AsyncConnection, webhook_id: str, limit: int) -> Sequence[Mapping[Any, Any]]:
    """The oldest waiting delivery of each entity, oldest first: those behind it have to wait for it."""
    oldest = (
        sa.select(sa.func.min(delivery.c.id))
        .where(delivery.c.webhook_id == webhook_id, delivery.c.state == WAITING)
        .group_by(delivery.c.entity_id)
    )
    statement = sa.select(delivery).where(delivery.c.id.in_(oldest)).order_by(delivery.c.id).limit(limit)
    return (await conn.execute(statement)).mappings().all()


async def waiting_entities(conn: AsyncConnection, webhook_id: str) -> tuple[set[str], int]:
    """Which entities have something waiting, and how much waits."""
    statement = (
        sa.select(delivery.c.entity_id, sa.func.count())
        .where(delivery.c.webhook_id == webhook_id, delivery.c.state == WAITING)
        .group_by(delivery.c.entity_id)
    )
    counted = {row[0]: int(row[1]) for row in await conn.execute(statement)}
    return set(counted), sum(counted.values())


async def finish(conn: AsyncConnection, delivery_id: int, **values: Any) -> None:
    """Write an attempt's outcome; one that somebody else ended meanwhile stays as it is."""
    waiting = sa.and_(delivery.c.id == delivery_id, delivery.c.state == WAITING)
    await conn.execute(sa.update(delivery).where(waiting).values(**values))


async def save_progress(conn: AsyncConnection, webhook_id: str, moves: int, position: str, **values: Any) -> bool:
    """Write how far it is; the position only if nobody has moved it. Returns whether it still counted."""
    here = webhook_progress.c.webhook_id == webhook_id
    await conn.execute(sa.update(webhook_progress).where(here).values(**values))
    kept = await conn.execute(
        sa.update(webhook_progress).where(here, webhook_progress.c.moves == moves).values(position=position)
    )
    return kept.rowcount == 1


async def retry(conn: AsyncConnection, webhook_id: str, delivery_id: int, now: datetime) -> bool:
    """Have a delivery that was given up tried again."""
    statement = (
        sa.update(delivery)
        .where(delivery.c.id == delivery_id, delivery.c.webhook_id == webhook_id, delivery.c.state == GIVEN_UP)
        .values(state=WAITING, attempts=0, due_at=now, finished_at=None)
    )
    return (await conn.execute(statement)).rowcount == 1


async def prune(conn: AsyncConnection) -> int:
    """Forget deliveries that ended long ago."""
    old = delivery.c.finished_at < sa.func.now() - KEPT
    return (await conn.execute(sa.delete(delivery).where(old))).rowcount
