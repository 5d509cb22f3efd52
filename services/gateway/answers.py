"""What the doors answer, for the OpenAPI documents: pages of facts, started work, problems.

The bytes are the owner's; these shapes describe them and are not enforced here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from libs.contracts.identity import GrantFacts
from libs.contracts.inventory import DeviceTypeFacts, MachineFacts, ProfileFacts, RackFacts, SiteFacts
from libs.contracts.reservation import ClaimFacts
from libs.contracts.subscription import SubscriberFacts, WebhookFacts

T = TypeVar("T", bound=BaseModel)

__all__ = ["ClaimFacts", "DeviceTypeFacts", "MachineFacts", "ProfileFacts", "RackFacts", "SiteFacts"]


class Page(BaseModel, Generic[T]):
    """One page. `next_cursor` is null on the last; `as_of` is the age of copied data the answer depends on."""

    items: list[T]
    next_cursor: str | None = None
    as_of: datetime | None = None


class _Open(BaseModel):
    """A document that may have more members than are listed."""

    model_config = ConfigDict(extra="allow")


class ErrorField(BaseModel):
    field: str
    message: str


class ProblemDocument(_Open):
    """RFC 9457 problem details."""

    type: str = Field(examples=["urn:slipway:problem:cluster.not_found"])
    title: str
    status: int
    detail: str = Field(description="What happened, to what")
    code: str = Field(description="Permanent; what programs should look at", examples=["cluster.not_found"])
    next_step: str = Field(description="What to do now")
    correlation_id: str = Field(description="Name it when you ask for help: every log line and event has it")
    instance: str
    errors: list[ErrorField] = Field(default_factory=list)


class Started(_Open):
    """Work that goes on after the answer: watch it at Location."""

    operation_id: str


class MachineLeaving(Started):
    """With `dry_run`: no operation, but what would be done and what is in its way."""

    dry_run: bool = False
    possible: bool = True
    problem: dict[str, Any] | None = None
    steps: tuple[dict[str, Any], ...] = ()


class ClusterStarted(Started):
    cluster_id: str


class EnrolmentStarted(Started):
    machines: list[Any] = Field(default_factory=list)


class Document(_Open):
    """A document of the owner."""


class SshConfig(BaseModel):
    """Text for ~/.ssh/config and known_hosts."""

    ssh_config: str
    known_hosts: str


class Availability(_Open):
    """How many machines of a profile could be had now, and why the others could not."""

    free: int
    total: int


class Me(_Open):
    """Who the caller is to this installation, and what they were granted."""

    subject: str
    grants: list[GrantFacts] = Field(default_factory=list)
    tenants: list[Any] = Field(default_factory=list)


class Rebuilt(_Open):
    """A projection made anew beside the live one: how far it is; once compared, whether both are equal."""

    state: Literal["running", "done", "failed"]
    progress: float = Field(description="0.0 to 1.0 of the events to read")
    swap: bool = Field(description="Whether the new one takes the live one's place when they differ")
    events: int
    seconds: float
    digest_live: str | None
    digest_rebuilt: str | None
    equal: bool | None
    changes: dict[str, Any] | None = Field(description="After a swap: rows removed and added, by table")
    error: str | None


class DeadLetter(_Open):
    id: str


class SubscriberDocument(SubscriberFacts):
    """A subscriber, and what was measured at `measured_at`. `lost_before`: events before it were never taken."""

    behind: int | None = Field(None, description="Events it has not taken")
    unacknowledged: int | None = None
    redelivered: int | None = None
    acknowledged_through: int | None = None
    lost_before: int | None = None
    last_seen_at: datetime | None = None
    acknowledged_at: datetime | None = None
    measured_at: datetime | None = None


class Credentials(BaseModel):
    """All that a NATS client needs. Shown once: whoever has it reads the subscriber's events."""

    server: str
    user: str
    password: str
    stream: str
    consumer: str
    inbox_prefix: str


class SubscriberMade(SubscriberFacts):
    credentials: Credentials | None = Field(None, description="Null when the request is a repeat: rotate for new ones")


class WebhookDocument(WebhookFacts):
    """A webhook, and how sending goes."""

    failures: int = Field(0, description="Failures in a row; 0: it works")
    failing_since: datetime | None = None
    delivered: int = 0
    caught_up: bool = False
    gaps: int = Field(0, description="Missing events that it was told of")
    waiting: int = 0
    given_up: int = 0
    last_delivered_at: datetime | None = None
    last_error: str | None = None


class WebhookMade(WebhookFacts):
    signing_key: str | None = Field(None, description="Checks signatures. Null when the request is a repeat: rotate")


class EventDocument(_Open):
    """One event: a CloudEvents 1.0 envelope in structured JSON."""

    id: str
    type: str
    subject: str
    time: datetime
    data: dict[str, Any]
