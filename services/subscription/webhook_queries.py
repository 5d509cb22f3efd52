"""Answers about webhooks and their deliveries. Signing keys are never in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.subscription import store, webhook_store
from services.subscription.requests import ById, OneDelivery

_PROGRESS = ("failures", "failing_since", "delivered", "caught_up", "gaps", "last_delivered_at", "last_error")
_WAITING = (
    sa.select(sa.func.count())
    .where(store.delivery.c.webhook_id == store.webhook.c.id, store.delivery.c.state == webhook_store.WAITING)
    .scalar_subquery()
    .label("waiting")
)
_GIVEN_UP = (
    sa.select(sa.func.count())
    .where(store.delivery.c.webhook_id == store.webhook.c.id, store.delivery.c.state == webhook_store.GIVEN_UP)
    .scalar_subquery()
    .label("given_up")
)
_WEBHOOKS = (
    sa.select(store.webhook, *(store.webhook_progress.c[name] for name in _PROGRESS), _WAITING, _GIVEN_UP)
    .join(store.webhook_progress)
    .where(store.webhook.c.state != "DELETED")
    .subquery()
)


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def webhook_body(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The facts and how sending goes."""
    facts = webhook_store.webhook_facts(row).model_dump(mode="json")
    return {**facts, **{name: _plain(row[name]) for name in (*_PROGRESS, "waiting", "given_up")}}


def delivery_body(row: Mapping[Any, Any]) -> dict[str, Any]:
    names = ("id", "webhook_id", "kind", "message_id", "entity_id", "type", "state", "attempts", "status", "error")
    times = ("due_at", "created_at", "finished_at")
    return {**{name: row[name] for name in names}, **{name: _plain(row[name]) for name in times}}


WEBHOOKS = Listing(
    table=_WEBHOOKS,
    key=_WEBHOOKS.c.id,
    row=webhook_body,
    filters={"tenant": _WEBHOOKS.c.tenant, "state": _WEBHOOKS.c.state, "name": _WEBHOOKS.c.name},
    sorts={"name": _WEBHOOKS.c.name, "created_at": _WEBHOOKS.c.created_at, "id": _WEBHOOKS.c.id},
    default_sort="name",
    tenant=_WEBHOOKS.c.tenant,
)


async def list_webhooks(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, WEBHOOKS, call)


async def get_webhook(conn: AsyncConnection, call: Call) -> Answer:
    """One, by id or by name."""
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    found = await store.find(conn, store.webhook, wanted.id, call.tenants)
    if found is None:
        return not_found("webhook", wanted.id)
    row = (await conn.execute(sa.select(_WEBHOOKS).where(_WEBHOOKS.c.id == found["id"]))).mappings().one()
    return Answer(body=webhook_body(row), etag=str(row["version"]))


async def list_deliveries(conn: AsyncConnection, call: Call) -> Answer:
    """Deliveries that wait, were given up, or succeeded after waiting. Those that went through at once are counted."""
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    found = await store.find(conn, store.webhook, wanted.id, call.tenants)
    if found is None:
        return not_found("webhook", wanted.id)
    rows = sa.select(store.delivery).where(store.delivery.c.webhook_id == found["id"]).subquery()
    listing = Listing(
        table=rows,
        key=rows.c.id,
        row=delivery_body,
        filters={"state": rows.c.state, "kind": rows.c.kind, "entity_id": rows.c.entity_id},
        sorts={"id": rows.c.id},
        default_sort="-id",
    )
    return await list_page(conn, listing, call)


async def get_delivery(conn: AsyncConnection, call: Call) -> Answer:
    """One, with what is or was to be sent."""
    wanted = parse(OneDelivery, call.params)
    if isinstance(wanted, Answer):
        return wanted
    found = await store.find(conn, store.webhook, wanted.id, call.tenants)
    statement = sa.select(store.delivery).where(store.delivery.c.id == wanted.delivery_id)
    row = (await conn.execute(statement)).mappings().first()
    if found is None or row is None or row["webhook_id"] != found["id"]:
        return not_found("delivery", str(wanted.delivery_id))
    return Answer(body={**delivery_body(row), "event": orjson.loads(row["payload"])})


WEBHOOK_QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_webhooks": list_webhooks,
    "get_webhook": get_webhook,
    "list_deliveries": list_deliveries,
    "get_delivery": get_delivery,
}
