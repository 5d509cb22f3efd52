"""Answers from the event store: lists, timelines, gaps, operations. Chains and exports are `proofs.py`.

A tenant's people see events of their tenants only. Pages are cut by size as well as by number, because an event may
have 256 KiB and an answer must fit into one message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import invalid, parse
from services.audit import store
from services.audit.requests import Range, cut_page
from services.audit.summary import summarize

MAX_GAPS = 200


class _Timeline(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    entity_id: str = Field(min_length=1)
    cursor: str | None = None
    limit: int = Field(default=200, ge=1, le=1000)
    full: bool = False


def event_body(row: Mapping[Any, Any], *, full: bool = True) -> dict[str, Any]:
    """The event as published, with a readable line; without its data unless that is wanted."""
    envelope = orjson.loads(row["envelope"])
    line = summarize(row["type"], row["entity_id"], envelope["data"])
    if not full:
        del envelope["data"]
    return {**envelope, "service": row["service"], "entity_kind": row["entity_kind"], "summary": line}


def _operation_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(row["facts"])


OPERATIONS = Listing(
    table=store.operation,
    filters={
        name: store.operation.c[name]
        for name in (
            "kind",
            "status",
            "target_id",
            "target_kind",
            "service",
            "tenant",
            "site",
            "actor",
            "correlation_id",
            "waiting_for",
        )
    },
    sorts={"created_at": store.operation.c.created_at, "updated_at": store.operation.c.updated_at},
    default_sort="-created_at",
    key=store.operation.c.id,
    tenant=store.operation.c.tenant,
    row=_operation_body,
)


def _event_listing(conditions: Sequence[sa.ColumnElement[bool]]) -> Listing:
    events = sa.select(store.event).where(*conditions).subquery()
    names = ("entity_id", "entity_kind", "tenant", "service", "correlation_id", "causation_id", "type", "actor", "site")
    return Listing(
        table=events,
        filters={name: events.c[name] for name in names},
        sorts={"time": events.c.time, "sequence": events.c.sequence},
        default_sort="time",
        # Padded, so that the text sorts as the number does.
        key=sa.func.concat(events.c.service, ":", sa.func.lpad(sa.cast(events.c.sequence, sa.Text), 20, "0")),
        tenant=events.c.tenant,
        row=event_body,
    )


async def list_operations(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, OPERATIONS, call)


async def list_events(conn: AsyncConnection, call: Call) -> Answer:
    """Events by their attributes, oldest first unless sorted otherwise."""
    wanted = parse(Range, call.params)
    if isinstance(wanted, Answer):
        return wanted
    return await list_page(conn, _event_listing(store.within(wanted.start, wanted.stop)), call)


async def get_timeline(conn: AsyncConnection, call: Call) -> Answer:
    """Everything that mentions an id or a name, oldest first; `full` adds each event's data."""
    wanted = parse(_Timeline, call.params)
    if isinstance(wanted, Answer):
        return wanted
    try:
        after = _place(wanted.cursor) if wanted.cursor else None
    except ValueError:
        return invalid([{"field": "cursor", "message": "this is no cursor of ours; start again without one"}])
    rows = await store.mentioning(conn, wanted.entity_id, tenants=call.tenants, after=after, limit=wanted.limit + 1)
    if not rows and after is None:
        return not_found("event", wanted.entity_id)
    shown, more = cut_page(rows, wanted.limit)
    last = shown[-1] if shown else None
    cursor = f"{last['time'].isoformat()}|{last['service']}|{last['sequence']}" if last and more else None
    items = [event_body(row, full=wanted.full) for row in shown]
    return Answer(body={"entity_id": wanted.entity_id, "items": items, "next_cursor": cursor, "as_of": None})


def _place(cursor: str) -> tuple[datetime, str, int]:
    time, service, sequence = cursor.split("|")
    return datetime.fromisoformat(time), service, int(sequence)


async def list_gaps(conn: AsyncConnection, call: Call) -> Answer:
    """`items`: missing sequence numbers; `entities`: versions missing or repeated; `services`: what is here."""
    if call.tenants is not None:
        return not_found("gap", "audit")
    removed = await store.all_removed(conn)
    found = await store.sequence_gaps(conn, MAX_GAPS + len(removed))
    gaps = [gap for row in found for gap in not_removed(row, removed)][:MAX_GAPS]
    entities = [dict(row) for row in await store.entity_gaps(conn, MAX_GAPS)]
    services = [dict(row) for row in await store.sequences(conn)]
    return Answer(
        body={
            "items": gaps,
            "entities": entities,
            "services": services,
            "events": sum(row["events"] for row in services),
            "removed": sum(row["events"] for row in removed),
            "complete": len(gaps) < MAX_GAPS and len(entities) < MAX_GAPS,
            "next_cursor": None,
        }
    )


def not_removed(gap: Mapping[Any, Any], removed: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """What is left of a gap when the ranges that retention removed are taken out of it."""
    first, last, left = gap["first_missing"], gap["last_missing"], []
    ranges = sorted((r["first_sequence"], r["last_sequence"]) for r in removed if r["service"] == gap["service"])
    for low, high in ranges:
        if high < first or low > last:
            continue
        if low > first:
            left.append((first, low - 1))
        first = high + 1
    if first <= last:
        left.append((first, last))
    return [{"service": gap["service"], "first_missing": low, "last_missing": high} for low, high in left]


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_operations": list_operations,
    "list_events": list_events,
    "get_timeline": get_timeline,
    "list_gaps": list_gaps,
}
