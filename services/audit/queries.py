"""Answers from the event store: lists, timelines, gaps, export, operations.

A tenant's people see events of their tenants only. Pages are cut by size as well as by number, because an event may
have 256 KiB and an answer must fit into one message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import orjson
import sqlalchemy as sa
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import invalid, parse
from services.audit import store
from services.audit.record import FIRST_DIGEST, chained
from services.audit.summary import summarize

MAX_PAGE_BYTES = 600 * 1024  # NATS carries 1 MiB by default; the rest is for escaping and the envelope.
MAX_GAPS = 200
CHAIN_AT_ONCE = 1000


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class _Range(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    start: AwareDatetime | None = Field(default=None, alias="from")
    stop: AwareDatetime | None = Field(default=None, alias="to")

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        found = []
        if self.start is not None:
            found.append(store.event.c.time >= self.start)
        if self.stop is not None:
            found.append(store.event.c.time < self.stop)
        return found


class _Export(_Range):
    service: Several = ()
    type: Several = ()
    cursor: Annotated[str, Field(pattern=r"^[a-z]+:\d{1,19}$")] | None = None
    limit: int = Field(default=500, ge=1, le=2000)


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
    wanted = parse(_Range, call.params)
    if isinstance(wanted, Answer):
        return wanted
    return await list_page(conn, _event_listing(wanted.conditions()), call)


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
    shown, more = _cut(rows, wanted.limit)
    last = shown[-1] if shown else None
    cursor = f"{last['time'].isoformat()}|{last['service']}|{last['sequence']}" if last and more else None
    items = [event_body(row, full=wanted.full) for row in shown]
    return Answer(body={"entity_id": wanted.entity_id, "items": items, "next_cursor": cursor, "as_of": None})


def _place(cursor: str) -> tuple[datetime, str, int]:
    time, service, sequence = cursor.split("|")
    return datetime.fromisoformat(time), service, int(sequence)


def _cut(rows: Sequence[Mapping[Any, Any]], limit: int) -> tuple[list[Mapping[Any, Any]], bool]:
    """As many rows as fit into one answer, at least one; and whether there are more."""
    shown: list[Mapping[Any, Any]] = []
    size = 0
    for row in rows[:limit]:
        size += len(row["envelope"])
        if shown and size > MAX_PAGE_BYTES:
            break
        shown.append(row)
    return shown, len(shown) < len(rows)


async def list_gaps(conn: AsyncConnection, call: Call) -> Answer:
    """`items`: missing sequence numbers; `entities`: versions missing or repeated; `services`: what is here."""
    if call.tenants is not None:
        return not_found("gap", "audit")
    gaps = [dict(row) for row in await store.sequence_gaps(conn, MAX_GAPS)]
    entities = [dict(row) for row in await store.entity_gaps(conn, MAX_GAPS)]
    services = [dict(row) for row in await store.sequences(conn)]
    return Answer(
        body={
            "items": gaps,
            "entities": entities,
            "services": services,
            "events": sum(row["events"] for row in services),
            "complete": len(gaps) < MAX_GAPS and len(entities) < MAX_GAPS,
            "next_cursor": None,
        }
    )


async def export_events(conn: AsyncConnection, call: Call) -> Answer:
    """Envelopes as they were published, by service and sequence; `next_cursor` goes on where the page was cut."""
    wanted = parse(_Export, call.params)
    if isinstance(wanted, Answer):
        return wanted
    conditions = wanted.conditions()
    if call.tenants is not None:
        conditions.append(store.event.c.tenant.in_(call.tenants))
    if wanted.service:
        conditions.append(store.event.c.service.in_(wanted.service))
    if wanted.type:
        conditions.append(store.event.c.type.in_(wanted.type))
    after = None
    if wanted.cursor:
        service, _, sequence = wanted.cursor.partition(":")
        after = (service, int(sequence))
    rows = await store.exported(conn, conditions, after, wanted.limit + 1)
    shown, more = _cut(rows, wanted.limit)
    cursor = f"{shown[-1]['service']}:{shown[-1]['sequence']}" if shown and more else None
    return Answer(body={"items": [orjson.loads(row["envelope"]) for row in shown], "next_cursor": cursor})


async def verify_chain(conn: AsyncConnection, call: Call) -> Answer:
    """Recompute every digest; `broken` names each service's first event that is not what was kept."""
    if call.tenants is not None:
        return not_found("chain", "audit")
    items = []
    for row in await store.sequences(conn):
        checked, previous, after, broken = 0, FIRST_DIGEST, 0, None
        while broken is None and (page := await store.chain(conn, row["service"], after, CHAIN_AT_ONCE)):
            for kept in page:
                after, previous = kept["sequence"], chained(previous, kept["envelope"])
                if previous != kept["digest"]:
                    broken = after
                    break
                checked += 1
        items.append({"service": row["service"], "checked": checked, "broken": broken, "digest": previous})
    return Answer(body={"items": items, "intact": all(item["broken"] is None for item in items), "next_cursor": None})


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_operations": list_operations,
    "list_events": list_events,
    "get_timeline": get_timeline,
    "list_gaps": list_gaps,
    "export_events": export_events,
    "verify_chain": verify_chain,
}
