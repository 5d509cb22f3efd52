"""The whole API as one table: which door, which method and path, which one owner answers.

A row is the only place where a route is declared; the FastAPI routes, both OpenAPI documents, the
authorization and the bus subject all come from it.
"""

# ruff: noqa: E501 - one row, one line: a table is read down its columns.

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from libs.contracts.audit import CheckpointFacts, HoldFacts, RemovalFacts, RetentionFacts
from libs.contracts.cost import PriceFacts, UsageFacts
from libs.contracts.discovery import CandidateFacts
from libs.contracts.identity import GrantFacts, OrganizationFacts, TenantFacts
from libs.contracts.inventory import DeviceTypeFacts, MachineFacts, ProfileFacts, RackFacts, SiteFacts
from libs.contracts.operations import OperationFacts
from libs.contracts.provisioning import ClusterFacts, ImageFacts, NodeFacts, TemplateFacts
from libs.contracts.reservation import ClaimFacts, ReservationFacts
from libs.contracts.subscription import SubscriberFacts, WebhookFacts
from libs.contracts.validation import FindingFacts, RunFacts
from libs.contracts.violation import ViolationFacts
from services.gateway import answers, bodies, filters
from services.gateway.answers import Document, Page, Started


class Door(StrEnum):
    TENANT = "tenant"
    OPERATOR = "operator"


class Need(StrEnum):
    """What a caller must be allowed to do; `access.py` says which roles allow it."""

    SIGNED_IN = "signed_in"  # Nothing but a believed token.
    READ = "read"
    READ_COSTS = "read_costs"
    WRITE = "write"


class Owner(StrEnum):
    """An owner that the request itself names, instead of a fixed service."""

    OF_OPERATION = "operation"  # Its id carries the owner's code.
    OF_SERVICE = "service"  # The parameter `service`.


class Fill(StrEnum):
    """What the gateway knows better than the body says, and adds to the parameters."""

    NOTHING = "nothing"
    TENANT = "tenant"  # At the tenant door: the caller's only tenant, when the body names none.
    ISSUER = "issuer"  # The installation's identity provider, when the body names none.
    CALLER = "caller"  # The issuer and subject of the caller.


GATEWAY = "gateway"
T, O = frozenset({Door.TENANT}), frozenset({Door.OPERATOR})  # noqa: E741 - the two doors are columns of the table
BOTH = T | O


@dataclass(frozen=True)
class Route:
    """`owner` and `call` make the bus subject; `answer` is what the owner's document looks like."""

    doors: frozenset[Door]
    method: str
    path: str
    owner: str
    call: str
    answer: Any
    summary: str
    need: Need
    status: int = 200
    query: type[filters.Query] = filters.Query
    body: type[BaseModel] | None = None
    guarded: bool = False  # Takes If-Match.
    fill: Fill = Fill.NOTHING
    patience_seconds: float | None = None  # When the owner may take longer than others.
    past: str | None = None  # With `at`, audit is asked for the state of such a thing as of that instant.

    @property
    def streams(self) -> bool:
        """Whether the gateway itself answers, without end, from the bus."""
        return self.owner == GATEWAY

    @property
    def writes(self) -> bool:
        return self.method != "GET"


def read(
    doors: frozenset[Door],
    path: str,
    question: str,
    answer: Any,
    summary: str,
    query: type[filters.Query] = filters.Query,
    need: Need = Need.READ,
    fill: Fill = Fill.NOTHING,
    patience_seconds: float | None = None,
    past: str | None = None,
) -> Route:
    owner, _, call = question.partition(".")
    return Route(
        doors,
        "GET",
        path,
        owner,
        call,
        answer,
        summary,
        need,
        query=query,
        fill=fill,
        patience_seconds=patience_seconds,
        past=past,
    )


def write(
    doors: frozenset[Door],
    method: str,
    path: str,
    order: str,
    answer: Any,
    summary: str,
    body: type[BaseModel] | None = None,
    status: int = 200,
    guarded: bool = False,
    fill: Fill = Fill.NOTHING,
    patience_seconds: float | None = None,
) -> Route:
    owner, _, call = order.partition(".")
    return Route(
        doors,
        method,
        path,
        owner,
        call,
        answer,
        summary,
        Need.WRITE,
        status,
        body=body,
        guarded=guarded,
        fill=fill,
        patience_seconds=patience_seconds,
    )


COSTS = Need.READ_COSTS

# fmt: off
ROUTES: tuple[Route, ...] = (
    read(BOTH, "/me", "identity.get_me", answers.Me, "Who you are and what you may do", need=Need.SIGNED_IN, fill=Fill.CALLER),

    read(BOTH, "/clusters", "provisioning.list_clusters", Page[ClusterFacts], "List clusters", filters.ClusterQuery),
    read(BOTH, "/clusters/{cluster_id}", "provisioning.get_cluster", ClusterFacts, "Show a cluster, now or as of an instant", filters.AtQuery, past="cluster"),
    read(BOTH, "/clusters/{cluster_id}/nodes", "provisioning.list_nodes", Page[NodeFacts], "List a cluster's nodes", filters.PageQuery),
    read(T, "/clusters/{cluster_id}/ssh-config", "provisioning.get_ssh_config", answers.SshConfig, "How to log in to a cluster's nodes", filters.SshConfigQuery),
    write(T, "POST", "/clusters", "provisioning.create_cluster", answers.ClusterStarted, "Create a cluster", bodies.CreateCluster, 202, fill=Fill.TENANT),
    write(BOTH, "DELETE", "/clusters/{cluster_id}", "provisioning.delete_cluster", answers.ClusterStarted, "Delete a cluster", status=202, guarded=True),

    read(BOTH, "/images", "provisioning.list_images", Page[ImageFacts], "List golden images", filters.ListQuery),
    read(BOTH, "/images/{name}", "provisioning.get_image", ImageFacts, "Show a golden image"),
    write(O, "PUT", "/images/{name}", "provisioning.put_image", ImageFacts, "Add or change a golden image", bodies.PutImage, guarded=True),
    read(BOTH, "/templates", "provisioning.list_templates", Page[TemplateFacts], "List templates (stacks)", filters.ListQuery),
    read(BOTH, "/templates/{name}", "provisioning.get_template", TemplateFacts, "Show a template"),
    write(O, "PUT", "/templates/{name}", "provisioning.put_template", TemplateFacts, "Add or change a template", bodies.PutTemplate, guarded=True),

    read(BOTH, "/operations", "audit.list_operations", Page[OperationFacts], "List operations", filters.OperationQuery),
    read(BOTH, "/operations/{operation_id}", f"{Owner.OF_OPERATION}.get_operation", OperationFacts, "Show an operation with its steps"),
    write(BOTH, "POST", "/operations/{operation_id}/cancel", f"{Owner.OF_OPERATION}.cancel_operation", Started, "Cancel an operation; what it took is given back", bodies.Cancel, 202),
    write(O, "POST", "/operations/{operation_id}/resume", f"{Owner.OF_OPERATION}.resume_operation", Started, "Go on with an operation that waits for a human", status=202),

    read(BOTH, "/profiles", "inventory.list_profiles", Page[ProfileFacts], "List the kinds of machine that can be asked for", filters.ListQuery),
    read(BOTH, "/profiles/{name}", "inventory.get_profile", ProfileFacts, "Show a profile"),
    write(O, "PUT", "/profiles/{name}", "inventory.put_profile", ProfileFacts, "Add or change a profile", bodies.PutProfile, guarded=True),
    read(BOTH, "/profiles/{name}/availability", "reservation.get_availability", answers.Availability, "How many machines of a profile could be had now", filters.AvailabilityQuery),

    read(O, "/sites", "inventory.list_sites", Page[SiteFacts], "List sites", filters.ListQuery),
    read(O, "/sites/{slug}", "inventory.get_site", SiteFacts, "Show a site"),
    read(O, "/racks", "inventory.list_racks", Page[RackFacts], "List racks", filters.SiteScopedQuery),
    read(O, "/racks/{rack_id}", "inventory.get_rack", RackFacts, "Show a rack"),
    read(O, "/device-types", "inventory.list_device_types", Page[DeviceTypeFacts], "List device types", filters.ListQuery),
    read(O, "/machines", "inventory.list_machines", Page[MachineFacts], "List machines", filters.MachineQuery),
    read(O, "/machines/{machine_id}", "inventory.get_machine", MachineFacts, "Show a machine, by id or name, now or as of an instant", filters.AtQuery, past="machine"),
    write(O, "POST", "/enrolments", "inventory.enrol_machines", answers.EnrolmentStarted, "Enrol machines: from EXPECTED to AVAILABLE", bodies.Enrol, 202),
    write(O, "POST", "/machine-imports", "inventory.import_machines", Document, "Tell of expected machines by a manifest (CSV, YAML); with `dry_run`: only report", bodies.ImportMachines, patience_seconds=60),
    read(O, "/candidates", "inventory.list_candidates", Page[CandidateFacts], "List BMCs that nobody expected", filters.CandidateQuery),
    write(O, "POST", "/candidates/{candidate_id}/approve", "inventory.approve_candidate", CandidateFacts, "Make the machine that a candidate is: EXPECTED", bodies.ApproveCandidate, 201),
    write(O, "POST", "/candidates/{candidate_id}/ignore", "inventory.ignore_candidate", CandidateFacts, "Keep a candidate out of the list of new ones", bodies.Reason),
    write(O, "POST", "/bmc-scans", "inventory.scan_bmcs", Started, "Let a site ask its BMC ranges who is there, without signing in", bodies.ScanBmcs, 202),
    read(O, "/dhcp", "inventory.list_dhcp_servers", Page[Document], "List the sites' DHCP servers and what is wrong there", filters.SiteScopedQuery),
    read(O, "/dhcp/reservations", "inventory.list_dhcp_reservations", Page[Document], "List machines' DHCP reservations, and why some can't be made", filters.DhcpReservationQuery),
    read(O, "/dhcp/leases", "inventory.list_leases", Page[Document], "List DHCP leases as sites saw them", filters.LeaseQuery),
    write(O, "POST", "/machine-actions", "inventory.act_on_machines", answers.EnrolmentStarted, "Hold, let go or quarantine many machines; with a preview", bodies.ActOnMachines, 202),
    write(O, "POST", "/credential-rotations", "inventory.rotate_credentials", answers.EnrolmentStarted, "Give BMCs new passwords, each proven before the old one goes", bodies.RotateCredentials, 202),
    write(O, "POST", "/machines/{machine_id}/retry", "inventory.retry_machine", Started, "Try the failed step of a machine again", status=202, guarded=True),
    write(O, "POST", "/machines/{machine_id}/quarantine", "inventory.quarantine_machine", MachineFacts, "Take a machine out of the pool", bodies.Reason, guarded=True),
    write(O, "POST", "/machines/{machine_id}/release-quarantine", "inventory.release_quarantine", Started, "Sanitize and validate a quarantined machine again", bodies.Reason, 202, guarded=True),
    write(O, "POST", "/machines/{machine_id}/decommission", "inventory.decommission_machine", answers.MachineLeaving, "Wipe a machine and remove it for good, or say what that would do", bodies.Decommission, 202, guarded=True),
    write(O, "POST", "/machines/{machine_id}/holds", "inventory.add_hold", MachineFacts, "Keep a machine from use until you remove the hold", bodies.Reason, guarded=True),
    write(O, "DELETE", "/machines/{machine_id}/holds/{hold_id}", "inventory.remove_hold", MachineFacts, "Remove a hold", guarded=True),
    write(O, "POST", "/machines/{machine_id}/power", "inventory.set_power", Started, "Switch a machine on or off and see it so", bodies.Power, 202, guarded=True),
    read(O, "/stuck-machines", "inventory.list_stuck", Page[Document], "List machines that will not go on by themselves: why, whose turn it is, what to run", filters.StuckQuery),
    write(O, "POST", "/machines/{machine_id}/give-up", "inventory.give_up_step", MachineFacts, "Give up the step that a machine is in: it is FAILED and can be retried", bodies.Reason, guarded=True),
    read(O, "/invariants", "inventory.list_invariants", Page[Document], "List what must be true between the systems, and how the last look went"),
    read(O, "/violations", "inventory.list_violations", Page[ViolationFacts], "List where the systems disagree, newest first", filters.ViolationQuery),
    read(O, "/violations/{id}", "inventory.get_violation", ViolationFacts, "Show a violation: both values, what it means, what repairs it"),
    write(O, "POST", "/violations/{id}/repair", "inventory.repair_violation", Document, "Repair a violation by the normal workflow, or say what that would do", bodies.Repair, 202),
    read(O, "/sources", "inventory.list_sources", Page[Document], "List sources of truth: age of the last good data, last error", filters.PageQuery),
    write(O, "POST", "/sources/netbox/read", "inventory.read_source", Document, "Read NetBox now", status=202),

    read(BOTH, "/reservations", "reservation.list_reservations", Page[ReservationFacts], "List reservations", filters.ReservationQuery),
    read(BOTH, "/reservations/{id}", "reservation.get_reservation", ReservationFacts, "Show a reservation with its claims"),
    read(BOTH, "/claims", "reservation.list_claims", Page[ClaimFacts], "List claims", filters.ClaimQuery),

    read(O, "/runs", "validation.list_runs", Page[RunFacts], "List validation runs", filters.RunQuery),
    read(O, "/runs/{id}", "validation.get_run", RunFacts, "Show a validation run with its checks"),
    read(O, "/checks", "validation.list_checks", Page[Document], "List the checks there are and what each proves"),
    read(O, "/findings", "validation.list_findings", Page[FindingFacts], "List findings about machines", filters.FindingQuery),

    read(BOTH, "/usage", "cost.list_usage", Page[UsageFacts], "List metered intervals", filters.UsageQuery, COSTS),
    read(BOTH, "/costs", "cost.get_costs", Document, "Sum up usage and cost", filters.CostQuery, COSTS),
    read(O, "/usage-anomalies", "cost.list_anomalies", Page[Document], "List node events that made no sense and billed nothing", filters.AnomalyQuery, COSTS),
    read(BOTH, "/prices", "cost.list_prices", Page[PriceFacts], "List prices", filters.PriceQuery, COSTS),
    write(O, "PUT", "/prices/{profile}", "cost.set_price", PriceFacts, "Set the price of a profile's machine-hour", bodies.SetPrice, guarded=True),

    read(O, "/organizations", "identity.list_organizations", Page[OrganizationFacts], "List organizations", filters.ListQuery),
    read(O, "/organizations/{id}", "identity.get_organization", OrganizationFacts, "Show an organization"),
    write(O, "POST", "/organizations", "identity.create_organization", OrganizationFacts, "Create an organization", bodies.CreateOrganization, 201),
    read(O, "/tenants", "identity.list_tenants", Page[TenantFacts], "List tenants", filters.TenantQuery),
    read(O, "/tenants/{id}", "identity.get_tenant", TenantFacts, "Show a tenant, now or as of an instant", filters.AtQuery, past="tenant"),
    write(O, "POST", "/tenants", "identity.create_tenant", TenantFacts, "Create a tenant", bodies.CreateTenant, 201),
    read(O, "/grants", "identity.list_grants", Page[GrantFacts], "List grants: who may do what where", filters.GrantQuery),
    write(O, "POST", "/grants", "identity.create_grant", GrantFacts, "Give a role", bodies.CreateGrant, 201, fill=Fill.ISSUER),
    write(O, "DELETE", "/grants/{id}", "identity.revoke_grant", GrantFacts, "Take a role away"),

    read(BOTH, "/events/stream", f"{GATEWAY}.stream_events", answers.EventDocument, "Follow events live (server-sent events)", filters.StreamQuery),
    read(BOTH, "/events", "audit.list_events", Page[answers.EventDocument], "List events, oldest first", filters.EventQuery),
    read(O, "/timeline/{entity_id}", "audit.get_timeline", Page[Document], "The life of one machine, cluster, …", filters.TimelineQuery),
    read(O, "/audit/gaps", "audit.list_gaps", Document, "Gaps in the services' event sequences"),
    read(O, "/audit/chain", "audit.verify_chain", Document, "Where the services' chains end; with `service`: check a stretch of its chain", filters.ChainQuery),
    read(BOTH, "/audit/export", "audit.export_events", Page[answers.EventDocument], "Export events page by page, by service and sequence", filters.ExportQuery),
    read(BOTH, "/audit/keys", "audit.list_keys", Document, "The public keys that ever signed a checkpoint (JWK Set)"),
    read(O, "/audit/checkpoints", "audit.list_checkpoints", Page[CheckpointFacts], "List signed checkpoints of the services' chains", filters.SignedQuery),
    write(O, "POST", "/audit/checkpoints", "audit.make_checkpoint", Document, "Sign every chain that has grown since it was signed last", status=201),
    read(O, "/audit/removals", "audit.list_removals", Page[RemovalFacts], "List signed removals of expired events", filters.SignedQuery),
    read(O, "/audit/retention", "audit.get_retention", Document, "How long events are kept: in force, pending, and all there was"),
    write(O, "PUT", "/audit/retention", "audit.set_retention", RetentionFacts, "Set how long events are kept", bodies.SetRetention, guarded=True),
    read(O, "/audit/retention/preview", "audit.preview_retention", Document, "What retention would remove now, and what holds keep", filters.PreviewQuery, patience_seconds=60),
    write(O, "POST", "/audit/retention/run", "audit.run_retention", Document, "Remove expired events: one bounded step of a round", bodies.RetentionStep, patience_seconds=60),
    read(O, "/audit/holds", "audit.list_holds", Page[HoldFacts], "List legal holds", filters.HoldQuery),
    write(O, "POST", "/audit/holds", "audit.place_hold", HoldFacts, "Place a legal hold: what matches is not removed, however old", bodies.PlaceHold, 201),
    write(O, "POST", "/audit/holds/{id}/release", "audit.release_hold", HoldFacts, "Release a legal hold", bodies.Reason),

    read(BOTH, "/subscribers", "subscription.list_subscribers", Page[answers.SubscriberDocument], "List subscribers, how far behind each is and when it was last seen", filters.SubscriberQuery),
    read(BOTH, "/subscribers/{id}", "subscription.get_subscriber", answers.SubscriberDocument, "Show a subscriber, by id or name"),
    write(BOTH, "POST", "/subscribers", "subscription.create_subscriber", answers.SubscriberMade, "Make a subscriber: a durable consumer of events, and credentials for it alone", bodies.CreateSubscriber, 201, fill=Fill.TENANT),
    write(BOTH, "POST", "/subscribers/{id}/rotate", "subscription.rotate_subscriber", answers.SubscriberMade, "Replace a subscriber's credentials", bodies.Rotate),
    write(BOTH, "DELETE", "/subscribers/{id}", "subscription.delete_subscriber", SubscriberFacts, "Delete a subscriber and its place in the stream", guarded=True),

    read(BOTH, "/webhooks", "subscription.list_webhooks", Page[answers.WebhookDocument], "List webhooks and how sending goes", filters.SubscriberQuery),
    read(BOTH, "/webhooks/{id}", "subscription.get_webhook", answers.WebhookDocument, "Show a webhook, by id or name"),
    write(BOTH, "POST", "/webhooks", "subscription.create_webhook", answers.WebhookMade, "Have events sent to a URL, signed", bodies.CreateWebhook, 201, fill=Fill.TENANT),
    write(BOTH, "PATCH", "/webhooks/{id}", "subscription.change_webhook", WebhookFacts, "Change a webhook's URL or what it wants", bodies.ChangeWebhook, guarded=True),
    write(BOTH, "POST", "/webhooks/{id}/pause", "subscription.pause_webhook", WebhookFacts, "Send nothing until it is enabled; nothing is lost"),
    write(BOTH, "POST", "/webhooks/{id}/enable", "subscription.enable_webhook", WebhookFacts, "Go on where a paused or disabled webhook stopped"),
    write(BOTH, "POST", "/webhooks/{id}/rotate", "subscription.rotate_webhook", answers.WebhookMade, "Replace a webhook's signing key", bodies.Rotate),
    write(BOTH, "POST", "/webhooks/{id}/test", "subscription.test_webhook", Document, "Send a ping", status=202),
    write(BOTH, "POST", "/webhooks/{id}/replay", "subscription.replay_webhook", Document, "Send events again", bodies.ReplayWebhook, 202),
    write(BOTH, "DELETE", "/webhooks/{id}", "subscription.delete_webhook", WebhookFacts, "Delete a webhook", guarded=True),
    read(BOTH, "/webhooks/{id}/deliveries", "subscription.list_deliveries", Page[Document], "List deliveries that wait, were given up, or waited and got through", filters.DeliveryQuery),
    read(BOTH, "/webhooks/{id}/deliveries/{delivery_id}", "subscription.get_delivery", Document, "Show a delivery and its event"),
    write(BOTH, "POST", "/webhooks/{id}/deliveries/{delivery_id}/retry", "subscription.retry_delivery", Document, "Try a delivery that was given up again", status=202),

    read(O, "/projections", f"{Owner.OF_SERVICE}.projections", Document, "List a service's projections", filters.ServiceQuery),
    write(O, "POST", "/projections/{service}/{name}/rebuild", f"{Owner.OF_SERVICE}.rebuild_projection", answers.Rebuilt, "Rebuild a projection beside the live one, compare, and swap it in if asked", bodies.Rebuild, 202, patience_seconds=30),
    read(O, "/projections/{service}/{name}/rebuild", f"{Owner.OF_SERVICE}.rebuild_progress", answers.Rebuilt, "How far a rebuild is, or what it found"),
    read(O, "/services/{service}/replays", f"{Owner.OF_SERVICE}.replays", Page[Document], "List replays of a service's events"),
    read(O, "/services/{service}/replays/{id}", f"{Owner.OF_SERVICE}.replay", Document, "How far a replay is"),
    write(O, "POST", "/services/{service}/replays", f"{Owner.OF_SERVICE}.start_replay", Document, "Publish events once more, on replay.<name>.>", bodies.Replay, 202),
    write(O, "POST", "/services/{service}/replays/{id}/cancel", f"{Owner.OF_SERVICE}.cancel_replay", Document, "Stop a replay"),
    read(O, "/services/{service}/restore", f"{Owner.OF_SERVICE}.restore", Document, "What a restored database lacks of its event stream", filters.PageQuery, patience_seconds=120),
    write(O, "POST", "/services/{service}/restore/accept", f"{Owner.OF_SERVICE}.accept_restore", Document, "Go on after a restore, as a human has decided", bodies.AcceptRestore, patience_seconds=120),
    read(O, "/services/{service}/dead-letters", f"{Owner.OF_SERVICE}.dead_letters", Page[answers.DeadLetter], "List messages that a service could not handle", filters.DeadLetterQuery),
    read(O, "/services/{service}/dead-letters/{id}", f"{Owner.OF_SERVICE}.dead_letter", answers.DeadLetter, "Show a dead letter, what waits behind it, and what was done about it"),
    write(O, "POST", "/services/{service}/dead-letters/{id}/redrive", f"{Owner.OF_SERVICE}.redrive", Document, "Have a dead letter handled again, edited if need be", bodies.Redrive, 202),
    write(O, "POST", "/services/{service}/dead-letters/{id}/drop", f"{Owner.OF_SERVICE}.drop_dead_letter", Document, "Give a dead letter up; what waits behind it goes on", bodies.Reason),
    write(O, "POST", "/services/{service}/dead-letters/redrive", f"{Owner.OF_SERVICE}.redrive_many", Document, "Have all dead letters that match handled again", bodies.RedriveMany, 202),
)
# fmt: on
