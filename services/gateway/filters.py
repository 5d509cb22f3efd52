"""Query parameters of reads: pages, sorting and filters. Unknown ones are refused, naming the allowed ones.

A filter that may be given several times is a list: any of its values matches. Which sort fields a
list has is the owner's to say.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from libs.contracts.audit import HoldKind
from libs.contracts.causes import Cause
from libs.contracts.discovery import CandidateState
from libs.contracts.identity import Role, ScopeKind
from libs.contracts.inventory import Health, MachineState
from libs.contracts.operations import OperationStatus
from libs.contracts.provisioning import ClusterState
from libs.contracts.reservation import ClaimState
from libs.contracts.validation import Suite, Verdict
from libs.contracts.violation import Severity
from services.gateway.visible_text import one_line

MAX_PAGE = 200
Value = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(one_line)]


EventService = Literal[
    "inventory", "reservation", "provisioning", "validation", "cost", "identity", "audit", "subscription"
]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]


class Query(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


class PageQuery(Query):
    limit: int | None = Field(None, ge=1, le=MAX_PAGE, description="Items on a page")
    cursor: str | None = Field(None, min_length=1, max_length=1000, description="next_cursor of the page before")


class ListQuery(PageQuery):
    sort: str | None = Field(
        None, pattern=r"^-?[a-z][a-z_]{0,40}$", description="a field name; with a dash in front: descending"
    )
    q: Value | None = Field(None, description="Text to look for")


def many(description: str = "") -> list[str]:
    """A filter that may be repeated."""
    field: list[str] = Field(default_factory=list, max_length=50, description=description)
    return field


class MachineQuery(ListQuery):
    state: list[MachineState] = Field(default_factory=list, max_length=20)
    health: list[Health] = Field(default_factory=list, max_length=5)
    site: list[Value] = many()
    rack: list[Value] = many("Rack name or id")
    profile: list[Value] = many()
    device_type: list[Value] = many()
    claim_id: list[Value] = many()
    cluster_id: list[Value] = many()
    tenant: list[Value] = many("Who has it; '-' for nobody")
    held: Literal["yes", "no"] | None = Field(None, description="Whether somebody holds it")
    state_before: AwareDatetime | None = Field(None, description="In its state since before this instant")


class StuckQuery(Query):
    site: list[Value] = many()
    over: bool = Field(False, description="Only what is later than it should be")


class ViolationQuery(ListQuery):
    state: list[Literal["OPEN", "CLEARED"]] = Field(
        default_factory=list, max_length=2, description="OPEN when left out"
    )
    invariant: list[Value] = many()
    severity: list[Severity] = Field(default_factory=list, max_length=2)
    site: list[Value] = many()
    subject: list[Value] = many("Machine or node id")


class SiteScopedQuery(ListQuery):
    site: list[Value] = many()


class CandidateQuery(SiteScopedQuery):
    state: list[CandidateState] = Field(default_factory=list, max_length=4)


class DhcpReservationQuery(SiteScopedQuery):
    state: list[Literal["PENDING", "DONE", "REFUSED", "FAILED", "UNMANAGED"]] = Field(
        default_factory=list, max_length=5
    )
    machine_id: list[Value] = many()


class LeaseQuery(SiteScopedQuery):
    state: list[Literal["active", "declined", "expired"]] = Field(default_factory=list, max_length=3)
    machine_id: list[Value] = many("Id of the machine that the port is reserved for")


class ClusterQuery(ListQuery):
    state: list[ClusterState] = Field(default_factory=list, max_length=10)
    profile: list[Value] = many()
    site: list[Value] = many()
    tenant: list[Value] = many()


class OperationQuery(ListQuery):
    kind: list[Value] = many()
    status: list[OperationStatus] = Field(default_factory=list, max_length=10)
    target_id: list[Value] = many()
    service: list[Value] = many()
    tenant: list[Value] = many()


class AvailabilityQuery(Query):
    site: Value | None = None


class ReservationQuery(ListQuery):
    state: list[ClaimState] = Field(default_factory=list, max_length=10)
    profile: list[Value] = many()
    site: list[Value] = many()
    cluster_id: list[Value] = many()
    tenant: list[Value] = many()


class ClaimQuery(ListQuery):
    state: list[ClaimState] = Field(default_factory=list, max_length=10)
    machine_id: list[Value] = many()
    reservation_id: list[Value] = many()


class RunQuery(ListQuery):
    machine_id: list[Value] = many()
    suite: list[Suite] = Field(default_factory=list, max_length=5)
    verdict: list[Verdict] = Field(default_factory=list, max_length=5)
    site: list[Value] = many()


class FindingQuery(ListQuery):
    machine_id: list[Value] = many()
    check: list[Value] = many()
    severity: list[Value] = many()
    open: bool | None = None


class UsageQuery(ListQuery):
    cluster_id: list[Value] = many()
    tenant: list[Value] = many()
    machine_id: list[Value] = many()
    from_: AwareDatetime | None = Field(None, alias="from", description="Intervals that end after this instant")
    to: AwareDatetime | None = Field(None, description="Intervals that start before this instant")


class AnomalyQuery(ListQuery):
    cluster_id: list[Value] = many()
    machine_id: list[Value] = many()


class CostQuery(Query):
    by: Literal["hour", "day", "cluster", "tenant"] = Field(description="What one line sums up")
    basis: Literal["used", "booked"] | None = Field(
        None, description="A correction counts when the machine was used, or when it was booked"
    )
    cluster_id: list[Value] = many()
    tenant: list[Value] = many()
    from_: AwareDatetime | None = Field(None, alias="from", description="From this instant on")
    to: AwareDatetime | None = Field(None, description="Before this instant")


class PriceQuery(ListQuery):
    profile: list[Value] = many()


class TenantQuery(ListQuery):
    organization_id: list[Value] = many()


class GrantQuery(ListQuery):
    subject: list[Value] = many()
    role: list[Role] = Field(default_factory=list, max_length=10)
    scope_kind: list[ScopeKind] = Field(default_factory=list, max_length=5)
    scope_id: list[Value] = many()


class AtQuery(Query):
    at: AwareDatetime | None = Field(
        None, description="The state as of this instant, from the events; `as_of_event` says which event it is from"
    )


class EventQuery(ListQuery):
    entity_id: list[Value] = many()
    service: list[Value] = many()
    actor: list[Value] = many("Who caused it, such as user:alice")
    correlation_id: list[Value] = many()
    type: list[Value] = many("CloudEvents type, such as slipway.inventory.machine.state_changed")
    tenant: list[Value] = many()
    from_: AwareDatetime | None = Field(None, alias="from", description="From this instant on")
    to: AwareDatetime | None = Field(None, description="Before this instant")


class SubscriberQuery(ListQuery):
    name: list[Value] = many()
    state: list[Value] = many()
    tenant: list[Value] = many()


class DeliveryQuery(ListQuery):
    state: list[Value] = many("WAITING, GIVEN_UP or DELIVERED")
    kind: list[Value] = many("event or ping")
    entity_id: list[Value] = many()


class StreamQuery(Query):
    after: str | None = Field(
        None, min_length=1, max_length=8192, description="An id that a stream gave; `start`: everything that is kept"
    )
    since: AwareDatetime | None = Field(None, description="What the broker kept from this instant on")
    service: list[EventService] = Field(default_factory=list, max_length=20)
    type: list[Value] = many("CloudEvents type, such as slipway.inventory.machine.state_changed")
    entity_id: list[Value] = many()
    site: list[Value] = many()
    tenant: list[Slug] = Field(default_factory=list, max_length=20, description="A tenant's id")


class ExportQuery(EventQuery):
    limit: int | None = Field(None, ge=1, le=2000, description="Events on a page; a page is cut at 600 KiB")


class SignedQuery(PageQuery):
    service: list[Value] = many()


class ChainQuery(Query):
    service: Value | None = Field(None, description="Whose chain to check; without it: where all chains end")
    after: int | None = Field(None, ge=0, description="Go on after this sequence number")
    digest: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="The digest there, 64 hex digits")
    until: int | None = Field(None, ge=0, description="Stop at this sequence number")
    limit: int | None = Field(None, ge=1, le=1000, description="Events to check at once")


class PreviewQuery(Query):
    keep_days: int | None = Field(None, ge=30, le=36_500, description="As if events were kept so long")


class HoldQuery(ListQuery):
    kind: list[HoldKind] = Field(default_factory=list, max_length=3)
    value: list[Value] = many("What is held: an id or name, a tenant, a correlation id")
    in_force: bool | None = None


class TimelineQuery(PageQuery):
    limit: int | None = Field(None, ge=1, le=1000, description="Events on a page; a page is cut at 600 KiB")
    full: bool | None = Field(None, description="With each event's data")


class SshConfigQuery(Query):
    known_hosts_file: str | None = Field(
        None,
        pattern=r'^[^"\x00-\x1f]{1,1000}$',
        description="Where you will keep the known_hosts lines: a path of at most 1000 characters, without quotes",
    )


class ServiceQuery(Query):
    service: EventService


class DeadLetterQuery(PageQuery):
    cause: list[Cause] = Field(default_factory=list, max_length=10)
    type: list[Value] = many("CloudEvents type of the message")
    key: list[Value] = many("Id of the thing that the message is about")
    subject: Value | None = Field(None, description="Text that the message's subject contains")
    error: Value | None = Field(None, description="Text that the error contains")
    since: AwareDatetime | None = Field(None, description="Set aside at or after this instant")
    before: AwareDatetime | None = Field(None, description="Set aside before this instant")
