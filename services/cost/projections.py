"""Metering: usage lines from provisioning's node_started and node_stopped. Times are those the events carry.

An event that can't be read or makes no sense is kept as an anomaly and bills nothing; metering goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any

from pydantic import AwareDatetime, BaseModel, ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from libs.contracts.provisioning import NodeStarted, NodeStopped
from libs.projection import Projection
from services.cost import store
from services.cost.metering import Line, Meter, NodeFact, start, stop

_DECISIONS = {NodeStarted.message_type.type: start, NodeStopped.message_type.type: stop}


class _Cluster(BaseModel):
    id: str
    tenant: str


class _NodeEvent(BaseModel):
    """What metering needs of a node event, and nothing else that could make it fail."""

    cluster: _Cluster
    machine_id: str
    profile: str
    gpu_count: int = 0
    at: AwareDatetime


@dataclass
class MeteringBatch:
    """What a batch of events changes, kept in memory until it is written at once. `meters` as they were before it."""

    meters: dict[tuple[str, str], Meter] = field(default_factory=dict)
    changed: set[tuple[str, str]] = field(default_factory=set)
    added: dict[str, Line] = field(default_factory=dict)
    closed: list[Line] = field(default_factory=list)
    anomalies: list[dict[str, Any]] = field(default_factory=list)

    def apply(self, event: Envelope, fact: NodeFact | str) -> None:
        if isinstance(fact, str):
            self._note(event, event.subject, str(event.data.get("machine_id", "")), fact)
            return
        key = (fact.cluster_id, fact.machine_id)
        change = _DECISIONS[event.type](self.meters.get(key), fact)
        if change.meter is not None and change.meter != self.meters.get(key):
            self.meters[key] = change.meter
            self.changed.add(key)
        if change.closed is not None:
            self._close(fact, *change.closed)
        self.added.update((line.id, line) for line in change.added)
        if change.anomaly:
            self._note(event, fact.cluster_id, fact.machine_id, change.anomaly)

    def _close(self, fact: NodeFact, line_id: str, stopped_at: Any) -> None:
        opened = self.added.get(line_id)
        if opened is not None:
            self.added[line_id] = replace(opened, stopped_at=stopped_at)
            return
        meter = self.meters[(fact.cluster_id, fact.machine_id)]
        self.closed.append(
            Line(
                id=line_id,
                cluster_id=meter.cluster_id,
                tenant=meter.tenant,
                machine_id=meter.machine_id,
                profile=meter.profile,
                gpu_count=meter.gpu_count,
                started_at=meter.line_started_at,
                stopped_at=stopped_at,
            )
        )

    def _note(self, event: Envelope, cluster_id: str, machine_id: str, message: str) -> None:
        row = {"event_id": event.id, "cluster_id": cluster_id, "machine_id": machine_id}
        self.anomalies.append({**row, "message": message, "learnt_at": event.time})


def node_fact(event: Envelope) -> NodeFact | str:
    """The fact, or what is wrong with the event."""
    try:
        seen = _NodeEvent.model_validate(event.data)
    except ValidationError as error:
        first = error.errors()[0]
        return f"unreadable: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return NodeFact(
        event_id=event.id,
        cluster_id=seen.cluster.id,
        tenant=seen.cluster.tenant,
        machine_id=seen.machine_id,
        profile=seen.profile,
        gpu_count=seen.gpu_count,
        at=seen.at.astimezone(UTC),
        learnt_at=event.time.astimezone(UTC),
    )


async def apply_metering(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    """One batch, in order."""
    facts = [(event, node_fact(event)) for event in events if event.type in _DECISIONS]
    if not facts:
        return
    keys = [(fact.cluster_id, fact.machine_id) for _, fact in facts if isinstance(fact, NodeFact)]
    batch = MeteringBatch(await store.meters(conn, keys))
    for event, fact in facts:
        batch.apply(event, fact)
    await store.save_metering(
        conn,
        changed=[batch.meters[key] for key in sorted(batch.changed)],
        added=batch.added.values(),
        closed=batch.closed,
        anomalies=batch.anomalies,
    )


METERING = Projection(
    "metering", streams=("provisioning",), tables=(store.meter, store.usage, store.anomaly), apply=apply_metering
)
PROJECTIONS = (METERING,)
