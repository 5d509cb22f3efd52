"""Keep every event of every service, and the latest word on every operation.

An event is kept as it was published, whatever its type: nothing here understands it except operations, and one whose
content can't be read as an operation is still kept as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from prometheus_client import Counter
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.topology import EVENT_SERVICES
from libs.contracts.envelope import Envelope
from libs.contracts.operations import OperationFacts
from libs.projection import Projection, upsert_newer
from services.audit import store
from services.audit.keeping import keep
from services.audit.record import canonical, type_of

log = structlog.get_logger(__name__)
CONTRADICTIONS = Counter(
    "slipway_audit_contradictions_total", "Events that came under a number which another event has", ["service"]
)


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


async def apply_operations(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    operations = [row for envelope in events if (row := operation_row(envelope)) is not None]
    await upsert_newer(conn, store.operation, operations, key=("id",), version="version")


async def apply_events(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    """One batch, in order; a batch comes from one service's stream."""
    for service in dict.fromkeys(type_of(envelope.type).service for envelope in events):
        mine = [envelope for envelope in events if type_of(envelope.type).service == service]
        for refused in (await keep(conn, service, mine)).refused:
            sequence, text = refused.envelope.stream_sequence, canonical(refused.envelope)
            if await store.add_contradiction(conn, service, sequence, refused.kept_digest, text):
                CONTRADICTIONS.labels(service).inc()
                log.error("event_contradicts", service=service, sequence=sequence, why=refused.why)
    await apply_operations(conn, events)


# The streams that there are: a service that is added is kept without anybody thinking of it here.
EVENTS = Projection(
    "events", streams=EVENT_SERVICES, tables=(store.event, store.operation), apply=apply_events, as_sent=True
)
PROJECTIONS = (EVENTS,)
