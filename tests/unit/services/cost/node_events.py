"""Events of provisioning and prices, as they would be exported."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from libs.contracts.cost import PriceFacts, PriceSet
from libs.contracts.envelope import Envelope
from libs.contracts.provisioning import ClusterFacts, ClusterState, NodeStarted, NodeStopped
from libs.testing.kit import make_event


def cluster(id_: str, tenant: str, at: datetime) -> ClusterFacts:
    return ClusterFacts(
        id=id_,
        name=id_,
        tenant=tenant,
        site="fra1",
        profile="h100",
        node_count=1,
        image="golden",
        template="plain",
        state=ClusterState.READY,
        reservation_id="res-1",
        created_at=at,
        version=1,
    )


def _event(message: Any, entity_id: str, tenant: str, sequence: int, time: datetime) -> Envelope:
    envelope = make_event(message, entity_id=entity_id, entity_version=1, tenant=tenant, sequence=sequence)
    return envelope.model_copy(update={"time": time})


def started(
    cluster_id: str,
    machine: str,
    at: datetime,
    *,
    tenant: str = "acme",
    sequence: int = 1,
    time: datetime | None = None,
) -> Envelope:
    facts = cluster(cluster_id, tenant, at)
    message = NodeStarted(cluster=facts, machine_id=machine, profile="h100", gpu_count=8, at=at)
    return _event(message, cluster_id, tenant, sequence, time or at)


def stopped(
    cluster_id: str,
    machine: str,
    at: datetime,
    *,
    tenant: str = "acme",
    sequence: int = 2,
    time: datetime | None = None,
) -> Envelope:
    facts = cluster(cluster_id, tenant, at)
    message = NodeStopped(cluster=facts, machine_id=machine, profile="h100", gpu_count=8, at=at, reason="deleted")
    return _event(message, cluster_id, tenant, sequence, time or at)


def price_set(amount: str, valid_from: datetime, version: int, currency: str = "EUR") -> Envelope:
    facts = PriceFacts(
        profile="h100",
        price_per_machine_hour=Decimal(amount),
        currency=currency,
        valid_from=valid_from,
        version=version,
    )
    return _event(PriceSet(price=facts), "h100", "-", version, valid_from)
