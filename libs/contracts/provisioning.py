"""Provisioning: clusters, images, templates and the operations on them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from libs.contracts.message import Message, command, event
from libs.contracts.operations import OperationFacts
from libs.contracts.replies import Problem


class ClusterState(StrEnum):
    CREATING = "CREATING"
    READY = "READY"
    RESIZING = "RESIZING"
    REPAIRING = "REPAIRING"
    UPGRADING = "UPGRADING"
    DELETING = "DELETING"
    DELETED = "DELETED"
    FAILED = "FAILED"


class NodeFacts(Message):
    """A machine while it belongs to a cluster. `address` and `ssh_port` are where its tenant logs in."""

    machine_id: str
    machine_name: str
    claim_id: str
    name: str
    address: str = ""
    ssh_port: int = 22
    ssh_host_key: str = ""
    gpu_model: str = ""
    gpu_count: int = 0


class ClusterFacts(Message):
    id: str
    name: str
    tenant: str
    site: str
    profile: str
    node_count: int
    image: str
    template: str
    state: ClusterState
    nodes: tuple[NodeFacts, ...] = ()
    reservation_id: str
    operation_id: str | None = None
    swapped: int = 0
    problem: Problem | None = None
    created_at: datetime
    ready_at: datetime | None = None
    deleted_at: datetime | None = None
    version: int


class _ClusterEvent(Message):
    cluster: ClusterFacts

    def key(self) -> str:
        return self.cluster.id


@event("provisioning", "cluster", "requested")
class ClusterRequested(_ClusterEvent):
    """A tenant asked for a cluster and it was accepted; the work goes on."""


@event("provisioning", "cluster", "changed")
class ClusterChanged(_ClusterEvent):
    """Nodes or other facts changed; the state did not."""


@event("provisioning", "cluster", "state_changed")
class ClusterStateChanged(_ClusterEvent):
    """A cluster is in another state than before."""

    from_state: ClusterState
    to_state: ClusterState


class _Metered(_ClusterEvent):
    """`at` is when it became true for billing, which may be earlier than the event."""

    machine_id: str
    profile: str
    gpu_count: int
    at: datetime


@event("provisioning", "cluster", "node_started")
class NodeStarted(_Metered):
    """From `at` on, this machine's time is billed to the cluster's tenant."""


@event("provisioning", "cluster", "node_stopped")
class NodeStopped(_Metered):
    """At `at` (exclusive) billing of this machine ended."""

    reason: str


class ImageFacts(Message):
    """A golden image. `checksum` is sha256 of what `url` delivers; `login_user` is whom its tenants log in as."""

    name: str
    version_label: str
    url: str
    checksum: str
    description: str = ""
    login_user: str = "ubuntu"
    version: int = 1


class TemplateFacts(Message):
    """A stack: the recipe that turns nodes into a cluster. `playbook` names a recipe the site's runner has."""

    name: str
    description: str
    playbook: str
    default_image: str
    max_nodes: int
    max_swaps: int
    version: int = 1


@event("provisioning", "image", "updated")
class ImageUpdated(Message):
    """A golden image was added or changed."""

    image: ImageFacts


@event("provisioning", "template", "updated")
class TemplateUpdated(Message):
    """A template (stack) was added or changed."""

    template: TemplateFacts


@event("provisioning", "operation", "started")
class ProvisioningOperationStarted(Message):
    """A process of provisioning began."""

    operation: OperationFacts


@event("provisioning", "operation", "progressed")
class ProvisioningOperationProgressed(Message):
    """A process of provisioning took a step, waits, or turned back."""

    operation: OperationFacts


@event("provisioning", "operation", "finished")
class ProvisioningOperationFinished(Message):
    """A process of provisioning ended: SUCCEEDED, FAILED or CANCELLED."""

    operation: OperationFacts


class _ClusterCommand(Message):
    cluster_id: str

    def key(self) -> str:
        return self.cluster_id


@command("provisioning", "check_limits")
class CheckLimits(_ClusterCommand):
    """Quota, guardrails, image, template and profile are checked before anything is taken."""


@command("provisioning", "mark_cluster_ready")
class MarkClusterReady(_ClusterCommand):
    """CREATING → READY with these nodes; billing starts."""

    nodes: tuple[NodeFacts, ...]
    swapped: int = 0
    site: str | None = None


@command("provisioning", "withdraw_cluster")
class WithdrawCluster(_ClusterCommand):
    """Takes mark_cluster_ready back: READY → DELETING and billing stops. Anything else stays as it is."""

    reason: str


@command("provisioning", "mark_cluster_failed")
class MarkClusterFailed(_ClusterCommand):
    """CREATING → FAILED, after everything was given back."""

    problem: Problem | None = None
    cancelled: bool = False


@command("provisioning", "mark_cluster_deleted")
class MarkClusterDeleted(_ClusterCommand):
    """DELETING → DELETED, after every node was observed off."""
