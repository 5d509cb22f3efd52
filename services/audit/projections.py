"""Keep every event of every service, and the latest word on every operation.

An event is kept as it was published, whatever its type: nothing here understands it except operations, and one whose
content can't be read as an operation is still kept as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from libs.contracts.operations import OperationFacts
from libs.projection import Projection, upsert_newer
from services.audit import store
from services.audit.record import FIRST_DIGEST, canonical, chained, mentions, type_of

SERVICES = ("inventory", "reservation", "provisioning", "validation", "cost", "identity")


def event_row(envelope: Envelope, previous_digest: str) -> dict[str, Any]:
    """The event's row, chained to the digest before it."""
    kind, text = type_of(envelope.type), canonical(envelope)
    return {
        "service": kind.service,
        "sequence": envelope.stream_sequence,
        "id": envelope.id,
        "type": envelope.type,
        "entity_kind": kind.entity,
        "entity_id": envelope.subject,
        "entity_version": envelope.entityversion,
        "time": envelope.time,
        "tenant": envelope.tenant,
        "site": envelope.site,
        "actor": envelope.actor,
        "correlation_id": envelope.correlationid,
        "causation_id": envelope.causationid,
        "mentions": mentions(envelope),
        "envelope": text,
        "digest": chained(previous_digest, text),
    }


def operation_row(envelope: Envelope) -> dict[str, Any] | None:
    """The operation's row; None when the event is about something else or can't be read as one."""
    if type_of(envelope.type).entity != "operation":
        return None
    try:
        facts = OperationFacts.model_validate(envelope.data.get("operation"))
    except ValidationError:
        return None
    columns = ("id", "service", "kind", "target_kind", "target_id", "tenant", "site", "actor", "correlation_id")
    return {
        **{name: getattr(facts, name) for name in columns},
        "status": facts.status.value,
        "waiting_for": facts.waiting_for,
        "facts": {**facts.model_dump(mode="json"), "progress": facts.progress},
        "created_at": facts.created_at,
        "updated_at": facts.updated_at,
        "version": envelope.entityversion,
    }


async def apply_events(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    """One batch, in order; a batch comes from one service's stream."""
    digests: dict[str, str] = {}
    rows = []
    for envelope in events:
        service = type_of(envelope.type).service
        if service not in digests:
            kept = await store.last_digest(conn, service, envelope.stream_sequence)
            digests[service] = kept if kept is not None else FIRST_DIGEST
        rows.append(event_row(envelope, digests[service]))
        digests[service] = rows[-1]["digest"]
    await store.add_events(conn, rows)
    operations = [row for envelope in events if (row := operation_row(envelope)) is not None]
    await upsert_newer(conn, store.operation, operations, key=("id",), version="version")


EVENTS = Projection("events", streams=SERVICES, tables=(store.event, store.operation), apply=apply_events)
PROJECTIONS = (EVENTS,)
