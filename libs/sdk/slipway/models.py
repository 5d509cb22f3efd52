"""The API's documents, typed. `raw` is the document exactly as the API sent it.

Only what people and programs usually look at is typed; members that are not known here are in `raw`, so
that a newer server never breaks an older client. Unknown states stay text for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from slipway.errors import Unavailable

FINAL_STATUSES = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


class Document(BaseModel):
    """One document of the API."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    _raw: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, raw: Any) -> Self:
        """Parse a document. Raises Unavailable when the API sent something else."""
        try:
            document = cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            raise Unavailable(
                f"The API sent a {cls.__name__} that this client cannot read: {first['loc']}: {first['msg']}",
                "Upgrade the client (pip install -U slipway-fleet).",
            ) from None
        if isinstance(raw, Mapping):
            document._raw = raw
        return document

    @property
    def raw(self) -> Mapping[str, Any]:
        return self._raw


D = TypeVar("D", bound=Document)


class Page(Generic[D]):
    """One page of a list. `as_of` is the age of copied data that the answer depends on."""

    def __init__(self, raw: Mapping[str, Any], model: type[D]) -> None:
        self.raw = raw
        self.items: list[D] = [model.of(item) for item in raw.get("items", ())]
        self.next_cursor: str | None = raw.get("next_cursor")
        self.as_of: str | None = raw.get("as_of")


class Problem(Document):
    """Why something is not as it should be."""

    code: str = ""
    message: str = ""
    next_step: str = ""


class AsOfEvent(Document):
    """Which event a past state is from. Nothing of its owner is known that happened after `known_until`."""

    at: datetime
    id: str
    type: str = ""
    service: str = ""
    sequence: int = 0
    entity_version: int = 0
    time: datetime
    known_until: datetime | None = None

    def told(self) -> str:
        """One line for people."""
        event = f"{self.service} {self.sequence} of {self.time.isoformat()}"
        return f"{self.at.isoformat()}, from event {event} ({self.id})"


class Hold(Document):
    id: str
    owner: str = ""
    reason: str = ""


class Drift(Document):
    """A source says otherwise than Slipway: both values, who decides the field, how the two agree again."""

    source: str = ""
    field: str = ""
    ours: str = ""
    theirs: str = ""
    owner: str = ""
    repair: str = ""


class Machine(Document):
    id: str
    name: str
    site: str = ""
    rack: str = ""
    profile: str | None = None
    device_type: str = ""
    gpu_model: str = ""
    gpu_count: int = 0
    serial: str = ""
    bmc_address: str = ""
    state: str
    failed_step: str = ""
    reason: Problem | None = None
    health: str = "UNKNOWN"
    holds: tuple[Hold, ...] = ()
    drifts: tuple[Drift, ...] = ()
    eligible: bool = False
    cluster_id: str | None = None
    tenant: str = "-"
    power_state: str = "unknown"
    provision_state: str = ""
    observed_at: datetime | None = None
    sanitised_at: datetime | None = None
    validated_at: datetime | None = None
    credentials_rotated_at: datetime | None = None
    state_since: datetime | None = None
    operation_id: str | None = None
    version: int = 0
    as_of_event: AsOfEvent | None = None


class Candidate(Document):
    """A BMC that nobody expected."""

    id: str
    site: str = ""
    address: str = ""
    bmc_mac: str = ""
    hostname: str = ""
    vendor: str = ""
    product: str = ""
    redfish: bool = False
    via: tuple[str, ...] = ()
    note: str = ""
    state: str = ""
    machine_id: str | None = None
    reason: str = ""
    last_seen_at: datetime | None = None


class DhcpServer(Document):
    """A site's DHCP server as it was last seen."""

    site: str
    error: str = ""
    problems: tuple[dict[str, Any], ...] | None = None
    leases: int | None = None
    reservations: int | None = None
    observed_at: datetime | None = None


class Node(Document):
    machine_id: str = ""
    machine_name: str = ""
    name: str
    address: str = ""
    ssh_port: int = 22
    gpu_model: str = ""
    gpu_count: int = 0


class Cluster(Document):
    id: str
    name: str
    tenant: str = ""
    site: str = ""
    profile: str = ""
    node_count: int = 0
    image: str = ""
    template: str = ""
    state: str
    nodes: tuple[Node, ...] = ()
    operation_id: str | None = None
    swapped: int = 0
    problem: Problem | None = None
    created_at: datetime | None = None
    ready_at: datetime | None = None
    as_of_event: AsOfEvent | None = None


class Step(Document):
    name: str
    status: str = "PENDING"
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    items_done: int = 0
    items_all: int = 0
    last_error: Problem | None = None


class Operation(Document):
    """A long-running request. `waiting_for` is "" unless a human or capacity is waited for."""

    id: str
    service: str = ""
    kind: str
    target_kind: str = ""
    target_id: str = ""
    tenant: str = "-"
    actor: str = ""
    status: str
    waiting_for: str = ""
    compensating: bool = False
    steps: tuple[Step, ...] = ()
    problem: Problem | None = None
    notes: tuple[str, ...] = ()
    progress: float = 0.0
    correlation_id: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    result: dict[str, Any] = Field(default_factory=dict)

    @property
    def final(self) -> bool:
        return self.status in FINAL_STATUSES


class Started(Document):
    """Work that goes on after the answer."""

    operation_id: str
    cluster_id: str | None = None
    machines: tuple[Any, ...] = ()
    skipped: tuple[Any, ...] = ()


class Profile(Document):
    name: str
    description: str = ""
    device_types: tuple[str, ...] = ()
    gpu_model: str = ""
    gpu_count: int = 0
    cpu_sockets: int | None = None
    memory_gib: int | None = None


class Image(Document):
    name: str
    version_label: str = ""
    url: str = ""
    checksum: str = ""
    description: str = ""


class Template(Document):
    name: str
    description: str = ""
    playbook: str = ""
    default_image: str = ""
    max_nodes: int = 0
    max_swaps: int = 0


class Site(Document):
    slug: str
    name: str = ""
    satellite_seen_at: datetime | None = None


class Rack(Document):
    id: str
    name: str
    site: str = ""


class Claim(Document):
    id: str
    machine_id: str = ""
    machine_name: str = ""
    state: str = ""
    ended_because: str = ""


class Reservation(Document):
    id: str
    tenant: str = ""
    profile: str = ""
    site: str = ""
    count: int = 0
    state: str = ""
    cluster_id: str | None = None
    expires_at: datetime | None = None
    claims: tuple[Claim, ...] = ()
    refusal: Problem | None = None
    created_at: datetime | None = None


class CheckResult(Document):
    check: str
    verdict: str
    expected: str = ""
    found: str = ""
    message: str = ""
    component: str = ""
    seconds: float = 0.0


class Run(Document):
    """`verdict` None: the run has none yet. Only PASS passes."""

    id: str
    machine_id: str = ""
    site: str = ""
    suite: str = ""
    verdict: str | None = None
    checks: tuple[CheckResult, ...] = ()
    problem: Problem | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Finding(Document):
    id: str
    machine_id: str = ""
    check: str = ""
    component: str = ""
    severity: str = ""
    message: str = ""
    expected: str = ""
    found: str = ""
    open: bool = True
    last_seen_at: datetime | None = None
    seen_count: int = 1


class Violation(Document):
    """`ours` should be, `theirs` is. `command` repairs it."""

    id: str
    invariant: str
    severity: str = ""
    state: str = ""
    site: str = ""
    subject: str = ""
    name: str = ""
    title: str = ""
    explanation: str = ""
    ours: str = ""
    theirs: str = ""
    repair: str = ""
    does: str = ""
    command: str = ""
    first_seen_at: datetime | None = None
    opened_at: datetime | None = None
    cleared_at: datetime | None = None
    repaired_by: str = ""
    repair_operation_id: str | None = None


class Usage(Document):
    id: str
    cluster_id: str = ""
    tenant: str = ""
    machine_id: str = ""
    profile: str = ""
    gpu_count: int = 0
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    seconds: int | None = None
    correction_of: str | None = None


class Price(Document):
    profile: str
    price_per_machine_hour: Decimal
    currency: str
    valid_from: datetime | None = None


class Organization(Document):
    id: str
    slug: str = ""
    name: str = ""


class Tenant(Document):
    id: str
    organization_id: str = ""
    name: str = ""
    machine_quota: int | None = None
    as_of_event: AsOfEvent | None = None


class Grant(Document):
    id: str
    issuer: str = ""
    subject: str
    role: str
    scope_kind: str
    scope_id: str = ""
    granted_by: str = ""
    granted_at: datetime | None = None
    revoked_at: datetime | None = None


class Event(Document):
    """A CloudEvents 1.0 envelope."""

    id: str = ""
    type: str
    subject: str = ""
    time: datetime | None = None
    actor: str = ""
    tenant: str = "-"
    site: str = "-"
    entityversion: int = 0
    correlationid: str = ""
    sequence: str | None = None
    service: str = ""
    summary: str = ""
    data: dict[str, Any] = Field(default_factory=dict)
