"""Answers about subscribers and webhooks, with how each is doing. Passwords and secrets are never in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.subscription import store
from services.subscription.requests import ById

_MEASURED = tuple(column for column in store.subscriber_status.c if column.name != "subscriber_id")
_SUBSCRIBERS = (
    sa.select(store.subscriber, *_MEASURED)
    .outerjoin(store.subscriber_status)
    .where(store.subscriber.c.state != "DELETED")
    .subquery()
)


def _time(value: Any) -> str | None:
    return value.isoformat() if value is not None else None


def subscriber_body(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The facts and what was measured last; `measured_at` null: not measured yet."""
    facts = store.subscriber_facts(row).model_dump(mode="json")
    measured = {column.name: row[column.name] for column in _MEASURED}
    times = ("last_seen_at", "acknowledged_at", "measured_at")
    return {**facts, **measured, **{name: _time(measured[name]) for name in times}}


SUBSCRIBERS = Listing(
    table=_SUBSCRIBERS,
    key=_SUBSCRIBERS.c.id,
    row=subscriber_body,
    filters={"tenant": _SUBSCRIBERS.c.tenant, "state": _SUBSCRIBERS.c.state, "name": _SUBSCRIBERS.c.name},
    sorts={"name": _SUBSCRIBERS.c.name, "created_at": _SUBSCRIBERS.c.created_at, "id": _SUBSCRIBERS.c.id},
    default_sort="name",
    tenant=_SUBSCRIBERS.c.tenant,
)


async def list_subscribers(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, SUBSCRIBERS, call)


async def get_subscriber(conn: AsyncConnection, call: Call) -> Answer:
    """One, by id or by name."""
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    found = await store.find(conn, store.subscriber, wanted.id, call.tenants)
    if found is None:
        return not_found("subscriber", wanted.id)
    row = (await conn.execute(sa.select(_SUBSCRIBERS).where(_SUBSCRIBERS.c.id == found["id"]))).mappings().one()
    return Answer(body=subscriber_body(row), etag=str(row["version"]))


SUBSCRIBER_QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_subscribers": list_subscribers,
    "get_subscriber": get_subscriber,
}
