"""What a cluster and its nodes are, and what may happen to them. Pure: time and ids come in as arguments.

Each decision returns a `Change`: the cluster after it and its events, one for every version in between. Billing
follows the node events alone: it starts when the cluster becomes READY and stops when its deletion is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from libs.contracts.message import Message
from libs.contracts.provisioning import (
    ClusterFacts,
    ClusterRequested,
    ClusterState,
    ClusterStateChanged,
    NodeFacts,
    NodeStarted,
    NodeStopped,
)
from libs.contracts.replies import Problem
from services.provisioning.states import CLUSTER

# A node's name is <cluster>-<n> and its host name: at most 63 characters, of which "-1024" are five.
MAX_NAME_LENGTH = 48
MAX_NODES = 1024


@dataclass(frozen=True)
class Node:
    """A machine while it belongs to a cluster. `stopped_at` None: its time is being billed."""

    facts: NodeFacts
    started_at: datetime
    stopped_at: datetime | None = None


@dataclass(frozen=True)
class Cluster:
    """`site` is None until machines of one site are held; `operation_id` is what works on it, or worked last."""

    id: str
    name: str
    tenant: str
    site: str | None
    profile: str
    node_count: int
    image: str
    template: str
    state: ClusterState
    reservation_id: str
    operation_id: str
    created_at: datetime
    ssh_authorized_keys: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    swapped: int = 0
    problem: Problem | None = None
    ready_at: datetime | None = None
    deleted_at: datetime | None = None
    version: int = 1


@dataclass(frozen=True)
class Change:
    """The cluster afterwards; `events` carry the versions up to `after.version`."""

    after: Cluster
    events: tuple[tuple[int, Message], ...]


def node_name(cluster_name: str, index: int) -> str:
    """The name of node `index` (from 0)."""
    return f"{cluster_name}-{index + 1}"


def facts(cluster: Cluster) -> ClusterFacts:
    """What others may know of it. SSH keys are not among it: nobody needs them."""
    return ClusterFacts(
        id=cluster.id,
        name=cluster.name,
        tenant=cluster.tenant,
        site=cluster.site or "-",
        profile=cluster.profile,
        node_count=cluster.node_count,
        image=cluster.image,
        template=cluster.template,
        state=cluster.state,
        nodes=tuple(node.facts for node in cluster.nodes),
        reservation_id=cluster.reservation_id,
        operation_id=cluster.operation_id,
        swapped=cluster.swapped,
        problem=cluster.problem,
        created_at=cluster.created_at,
        ready_at=cluster.ready_at,
        deleted_at=cluster.deleted_at,
        version=cluster.version,
    )


def requested(cluster: Cluster) -> Change:
    """A new cluster, CREATING, at version 1."""
    return Change(cluster, ((cluster.version, ClusterRequested(cluster=facts(cluster))),))


def _moved(
    before: Cluster, after: Cluster, metered: tuple[Node, ...], meter: Callable[[ClusterFacts, Node], Message]
) -> Change:
    """`before` → `after` as one state change and one metering event a node, each at a version of its own."""
    last = replace(after, version=before.version + 1 + len(metered))
    at = [facts(replace(after, version=before.version + 1 + step)) for step in range(len(metered) + 1)]
    moved: Message = ClusterStateChanged(cluster=at[0], from_state=before.state, to_state=after.state)
    events = [moved, *(meter(seen, node) for seen, node in zip(at[1:], metered, strict=True))]
    return Change(last, tuple((before.version + 1 + step, event) for step, event in enumerate(events)))


def _never_metered(seen: ClusterFacts, node: Node) -> Message:
    raise AssertionError("no node is metered here")


def make_ready(
    before: Cluster, nodes: tuple[NodeFacts, ...], *, site: str | None, swapped: int, now: datetime
) -> Change:
    """CREATING → READY; billing of every node starts. Raises IllegalTransition."""
    running = tuple(Node(facts=each, started_at=now) for each in nodes)
    after = replace(
        before,
        state=CLUSTER.target(before.state, "make_ready"),
        site=site or before.site,
        nodes=running,
        swapped=swapped,
        problem=None,
        ready_at=now,
    )

    def started(seen: ClusterFacts, node: Node) -> Message:
        return NodeStarted(
            cluster=seen,
            machine_id=node.facts.machine_id,
            profile=before.profile,
            gpu_count=node.facts.gpu_count,
            at=node.started_at,
        )

    return _moved(before, after, running, started)


def delete(before: Cluster, *, operation_id: str, now: datetime, reason: str = "the cluster was deleted") -> Change:
    """Any state but DELETING and DELETED → DELETING; billing of every node stops now. Raises IllegalTransition."""
    billed = tuple(node for node in before.nodes if node.stopped_at is None)
    after = replace(
        before,
        state=CLUSTER.target(before.state, "delete"),
        operation_id=operation_id,
        nodes=tuple(replace(node, stopped_at=node.stopped_at or now) for node in before.nodes),
    )

    def stopped(seen: ClusterFacts, node: Node) -> Message:
        return NodeStopped(
            cluster=seen,
            machine_id=node.facts.machine_id,
            profile=before.profile,
            gpu_count=node.facts.gpu_count,
            at=now,
            reason=reason,
        )

    return _moved(before, after, billed, stopped)


def fail(before: Cluster, problem: Problem | None) -> Change:
    """CREATING → FAILED, after everything was given back. Raises IllegalTransition."""
    after = replace(before, state=CLUSTER.target(before.state, "fail"), problem=problem)
    return _moved(before, after, (), _never_metered)


def gone(before: Cluster, *, now: datetime) -> Change:
    """DELETING → DELETED. Raises IllegalTransition."""
    after = replace(before, state=CLUSTER.target(before.state, "gone"), deleted_at=now)
    return _moved(before, after, (), _never_metered)
