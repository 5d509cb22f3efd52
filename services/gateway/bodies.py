"""Request bodies: what a caller may send, with its limits and an example each.

Shapes and limits only; whether a named thing exists or is allowed is the owner's to say. Unknown
fields are refused, so that a misspelt one is never silently ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from libs.contracts.causes import Cause
from libs.contracts.identity import Role, ScopeKind
from libs.contracts.inventory import BulkAction, Health, MachineState
from libs.contracts.subscription import Signature
from libs.contracts.text import display_name
from services.gateway.filters import EventService
from services.gateway.visible_text import one_line

SLUG_FORM = "1 to 63 of a-z, 0-9 and inner dashes"
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$", max_length=63)]
# Names that come from NetBox or an image store are not ours to restrict further than one visible line.
Name = Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(one_line)]
Line = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(one_line)]
Title = Annotated[str, StringConstraints(min_length=1, max_length=400), AfterValidator(display_name)]
Prose = Annotated[str, StringConstraints(max_length=2000, strip_whitespace=True)]
Subject = Annotated[str, StringConstraints(min_length=1, max_length=400), AfterValidator(one_line)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(one_line)]
Begin = Literal["now", "start"] | AwareDatetime
PUBLIC_KEY_FORM = "an OpenSSH public key line such as 'ssh-ed25519 AAAA… name'"
_KEY_KINDS = "ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)@openssh\\.com"


def _no_private_key(text: object) -> object:
    # Said before the pattern is tried: who pastes a private key must learn that it has left their machine.
    if isinstance(text, str) and "PRIVATE KEY" in text:
        raise ValueError("is a private key: replace that key pair and send only the public key (the .pub file)")
    return text


PublicKey = Annotated[
    str,
    StringConstraints(
        pattern=rf"^(?:{_KEY_KINDS}) [A-Za-z0-9+/]{{40,8000}}={{0,3}}(?: [^\r\n\t]{{1,200}})?$",
        strip_whitespace=True,
        max_length=8300,
    ),
]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields]})


class CreateCluster(Body):
    """A cluster of `node_count` machines of one profile. `tenant` may be left out by who has only one."""

    model_config = example(
        name="train-1",
        profile="h100-sxm-8",
        node_count=4,
        template="plain",
        ssh_authorized_keys=["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJr2wq0yVbCkXl2jmS5wq1kq3n0c7b4v6T8u9yZaBcDe alice"],
    )
    name: Slug = Field(description=f"Name of the cluster, unique in its tenant: {SLUG_FORM}")
    profile: Slug = Field(description=f"Name of a profile (GET /profiles): {SLUG_FORM}")
    node_count: int = Field(ge=1, le=4096, strict=True, description="How many machines, all or nothing")
    image: Name | None = Field(None, description="Golden image (GET /images); the template's default when left out")
    template: Name | None = Field(None, description="Stack (GET /templates); the plain one when left out")
    site: Slug | None = Field(None, description=f"Only machines of this site: {SLUG_FORM}")
    ssh_authorized_keys: list[PublicKey] = Field(
        min_length=1, max_length=64, description=f"Who may log in; each {PUBLIC_KEY_FORM}"
    )
    tenant: Slug | None = Field(None, description=f"Whose cluster it is: {SLUG_FORM}")

    @model_validator(mode="before")
    @classmethod
    def no_private_key(cls, data: object) -> object:
        keys = data.get("ssh_authorized_keys") if isinstance(data, dict) else None
        for key in keys if isinstance(keys, list) else ():
            _no_private_key(key)
        return data


class PutImage(Body):
    """A golden image: where its bytes are and what they must be."""

    model_config = example(
        version_label="2026-01",
        url="https://images.example.org/ubuntu-24.04-cuda.qcow2",
        checksum="sha256:" + "0f" * 32,
        description="Ubuntu 24.04 with driver 580",
    )
    version_label: Line = Field(max_length=100)
    url: str = Field(
        pattern=r"^(?:https?|file)://[^\s]{1,1000}$", max_length=1024, description="an http, https or file URL"
    )
    checksum: str = Field(
        pattern=r"^(?:sha256:)?[0-9a-f]{64}$", description="sha256 of the image's bytes, 64 hex digits"
    )
    description: Prose = ""
    login_user: str = Field(
        "ubuntu", pattern=r"^[a-z_][a-z0-9_-]{0,31}$", description="a POSIX user name: who logs in on its nodes"
    )


class PutTemplate(Body):
    """A stack: the recipe that turns nodes into a cluster."""

    model_config = example(
        description="Nodes with your keys and nothing else",
        playbook="plain",
        default_image="ubuntu-24.04",
        max_nodes=64,
        max_swaps=2,
    )
    description: Prose
    playbook: Slug = Field(description=f"A recipe that the site's runner has: {SLUG_FORM}")
    default_image: Name
    max_nodes: int = Field(ge=1, le=4096, strict=True)
    max_swaps: int = Field(ge=0, le=256, strict=True, description="How many failed nodes one creation may replace")


class Bom(Body):
    """What a machine promises beyond its parts; a line that is left out is not judged."""

    gpu_pcie_lanes: int | None = Field(None, ge=1, le=32, strict=True)
    gpu_pcie_generation: int | None = Field(None, ge=1, le=10, strict=True)
    nic_count: int | None = Field(None, ge=0, le=64, strict=True, description="Ports at nic_gbps or more")
    nic_gbps: float | None = Field(None, gt=0, le=10_000)
    drive_count: int | None = Field(None, ge=0, le=256, strict=True)
    memory_tolerance: float | None = Field(None, ge=0, le=0.5, description="Part that firmware may keep; 0.05 else")
    firmware: dict[Name, Name] = Field(default_factory=dict, max_length=20, description="bios, bmc: least version")


class PutProfile(Body):
    """A kind of machine that can be asked for, and what a machine must have to be one."""

    model_config = example(
        description="8 × H100 SXM", device_types=["dgx-h100"], gpu_model="H100", gpu_count=8, memory_gib=2048
    )
    description: Prose
    device_types: list[Name] = Field(min_length=1, max_length=100, description="Slugs of NetBox device types")
    gpu_model: str = Field("", max_length=100)
    gpu_count: int = Field(0, ge=0, le=64, strict=True)
    cpu_sockets: int | None = Field(None, ge=1, le=64, strict=True)
    memory_gib: int | None = Field(None, ge=1, le=1_048_576, strict=True)
    bom: Bom | None = None


class Enrol(Body):
    """Which EXPECTED machines to enrol: whole racks, named machines, or both."""

    model_config = example(racks=["r1", "r2"])
    racks: list[Name] = Field(default_factory=list, max_length=500, description="Rack names or ids")
    machines: list[Name] = Field(default_factory=list, max_length=2000, description="Machine names or ids")
    site: Slug | None = Field(None, description=f"Only racks and machines of this site: {SLUG_FORM}")

    @model_validator(mode="after")
    def something_named(self) -> Self:
        if not self.racks and not self.machines:
            raise ValueError("names no rack and no machine; give at least one in 'racks' or 'machines'")
        return self


class ActOnMachines(Body):
    """What to do to which machines: named ones, or those that match all filters; with `dry_run` only say which."""

    model_config = example(action="hold", reason="cabling on Tuesday", rack=["r1"], dry_run=True)
    action: BulkAction
    reason: Line = Field(description="one line of at most 500 characters")
    machines: list[Name] = Field(default_factory=list, max_length=2000, description="Machine names or ids")
    state: list[MachineState] = Field(default_factory=list, max_length=20)
    health: list[Health] = Field(default_factory=list, max_length=5)
    site: list[Name] = Field(default_factory=list, max_length=50)
    rack: list[Name] = Field(default_factory=list, max_length=50, description="Rack names or ids")
    profile: list[Name] = Field(default_factory=list, max_length=50)
    tenant: list[Name] = Field(default_factory=list, max_length=50)
    held: Literal["yes", "no"] | None = None
    q: Name | None = Field(None, description="Words to look for")
    dry_run: bool = Field(False, strict=True)


class RotateCredentials(Enrol):
    """Whose BMC credentials to rotate: whole racks, named machines, or both; with `dry_run` only say which."""

    dry_run: bool = Field(False, strict=True)


class ImportMachines(Body):
    """Expected machines, one a row. Every row that is right is taken in; every one that is not is reported."""

    model_config = example(
        format="csv",
        text="name,site,rack,device_type,serial,bmc_address\ngpu-1,fra1,r1,nvidia-dgx-h100,1660223969975,10.20.1.11\n",
        dry_run=True,
    )
    format: Literal["csv", "yaml"]
    text: str = Field(min_length=1, max_length=250_000, description="The manifest; at most 2,000 rows")
    dry_run: bool = Field(False, strict=True, description="Only report what would be done")
    first_row: int = Field(1, ge=1, le=1_000_000, strict=True, description="Number of the first row, for the report")


class ApproveCandidate(Body):
    """What the machine is; where it was seen and its MAC are the candidate's."""

    model_config = example(name="fra1-r1-gpu-07", rack="r1", device_type="nvidia-dgx-h100", serial="1660223969975")
    name: Name = Field(description="A host name")
    rack: Name
    device_type: Name
    serial: Name = Field(description="From the machine's label; enrolment compares it with what the BMC says")
    position: float | None = Field(None, gt=0, le=100, description="Lowest rack unit it fills")
    role: Name | None = Field(None, description="gpu-node when left out")
    asset_tag: Name | None = None
    nic_macs: list[Name] | None = Field(None, max_length=32, description="MACs of its network ports")


class ScanBmcs(Body):
    """Which site; `networks` inside its BMC ranges, all of them when left out."""

    model_config = example(site="fra1", networks=["10.20.1.0/24"])
    site: Slug
    networks: list[Name] = Field(default_factory=list, max_length=50)


class Reason(Body):
    """Why; kept in the machine's history and shown to whoever meets it."""

    model_config = example(reason="PSU 2 makes noise, ticket 4711")
    reason: Line = Field(description="one line of at most 500 characters")


class Decommission(Body):
    """Why a machine leaves for good. `wipe` false: somebody vouches that there is nothing on its disks."""

    model_config = example(reason="its lease ends", dry_run=True)
    reason: Line = Field(description="one line of at most 500 characters")
    wipe: bool = Field(True, strict=True)
    dry_run: bool = Field(False, strict=True)


class Repair(Body):
    """Whether to do it, or only to say what it would do and whether it would be refused."""

    model_config = example(dry_run=True)
    dry_run: bool = False


class Power(Reason):
    """Switch it on (only what is deployed for a tenant) or off."""

    model_config = example(power="on", reason="its tenant asked for it")
    power: Literal["on", "off"]


class Cancel(Body):
    """Why it is cancelled; may be left out."""

    model_config = example(reason="wrong profile")
    reason: Line | None = Field(None, description="one line of at most 500 characters")


class SetPrice(Body):
    """The price of one machine-hour from `valid_from` on (now when left out). Amounts are exact decimals as text."""

    model_config = example(price_per_machine_hour="98.32", currency="EUR")
    price_per_machine_hour: str = Field(
        pattern=r"^(?:0|[1-9]\d{0,8})(?:\.\d{1,6})?$",
        description="an exact decimal as text, not negative, at most 6 decimals, such as '98.32'",
    )
    currency: str = Field(pattern=r"^[A-Z]{3}$", description="an ISO 4217 code such as EUR")
    valid_from: AwareDatetime | None = None


class CreateSubscriber(Body):
    """A durable consumer. Without `subjects`: everything that its tenant may see. The password is answered once."""

    model_config = example(name="billing-export", subjects=["evt.*.acme-research.cost.>"])
    name: Slug = Field(description=f"Name of the subscriber, unique in its tenant: {SLUG_FORM}")
    tenant: Slug | None = Field(None, description=f"Whose events: {SLUG_FORM}; operators: of all when left out")
    subjects: list[Subject] = Field(default_factory=list, max_length=8, description="evt.<site>.<tenant>.<service>.…")
    begin: Begin | None = Field(None, description="`now` (default), `start` of what is kept, or an instant")
    max_ack_pending: int = Field(500, ge=1, le=5000, strict=True, description="1: strictly one after the other")
    max_waiting: int = Field(8, ge=1, le=64, strict=True, description="Open requests for events")
    ack_wait_seconds: int = Field(30, ge=1, le=3600, strict=True, description="Then an event is given again")


class Rotate(Body):
    """Replace credentials or secrets; without a grace the old ones end at once."""

    model_config = example(grace_seconds=3600)
    grace_seconds: int = Field(0, ge=0, le=604_800, strict=True, description="So long the old ones are good, too")


class CreateWebhook(Body):
    """Events as CloudEvents over HTTP, signed (Standard Webhooks). Empty lists: everything that its tenant may see."""

    model_config = example(name="billing", url="https://billing.example.com/slipway", services=["cost"])
    name: Slug = Field(description=f"Name of the webhook, unique in its tenant: {SLUG_FORM}")
    url: Url = Field(description="an https URL with a public address")
    tenant: Slug | None = Field(None, description=f"Whose events: {SLUG_FORM}; operators: of all when left out")
    services: list[EventService] = Field(default_factory=list, max_length=20)
    types: list[Line] = Field(default_factory=list, max_length=50, description="CloudEvents types")
    entities: list[Line] = Field(default_factory=list, max_length=50, description="Ids of things")
    signature: Signature = Field(Signature.HMAC, description="A shared secret, or a key pair of which you get one half")
    begin: Begin | None = Field(None, description="`now` (default), `start` of what is kept, or an instant")


class ChangeWebhook(Body):
    """What is left out stays as it is."""

    model_config = example(url="https://billing.example.com/v2/slipway")
    url: Url | None = Field(None, description="an https URL with a public address")
    services: list[EventService] | None = Field(None, max_length=20)
    types: list[Line] | None = Field(None, max_length=50)
    entities: list[Line] | None = Field(None, max_length=50)


class ReplayWebhook(Body):
    """From an instant or the `start` of what is kept; or of one `service` what comes `after` a number."""

    model_config = example(begin="2026-11-30T10:00:00Z")
    begin: Literal["start"] | AwareDatetime | None = None
    service: EventService | None = None
    after: int | None = Field(None, ge=0, strict=True, description="`sequence`; a tenant's webhook: `tenantsequence`")

    @model_validator(mode="after")
    def one_of_them(self) -> Self:
        if (self.begin is None) == (self.service is None) or (self.service is None) != (self.after is None):
            raise ValueError("give 'begin', or 'service' together with 'after'")
        return self


class CreateOrganization(Body):
    """`id` is in paths, events and accounts, so that the name may change."""

    model_config = example(id="acme", name="Acme Research")
    id: Slug = Field(description=SLUG_FORM)
    name: Title


class CreateTenant(Body):
    """`id` becomes part of event subjects: it is unique in the installation and never used again."""

    model_config = example(id="acme-research", organization_id="acme", name="Research", machine_quota=16)
    id: Slug = Field(description=SLUG_FORM)
    organization_id: Slug = Field(description=f"Id of the organization: {SLUG_FORM}")
    name: Title
    machine_quota: int | None = Field(None, ge=0, le=1_000_000, strict=True, description="No limit when left out")


class CreateGrant(Body):
    """Give `role` within a scope to who the identity provider calls `subject` (never an e-mail address)."""

    model_config = example(subject="alice", role="member", scope_kind="tenant", scope_id="acme-research")
    subject: Annotated[str, AfterValidator(one_line)] = Field(min_length=1, max_length=255)
    issuer: str | None = Field(
        None, pattern=r"^https?://[^\s]{1,500}$", description="an issuer URL; this installation's when left out"
    )
    role: Role
    scope_kind: ScopeKind
    scope_id: Slug | None = Field(None, description=f"Organization or tenant, {SLUG_FORM}; none for the installation")

    @model_validator(mode="after")
    def scope_is_named(self) -> Self:
        if self.scope_kind is not ScopeKind.INSTALLATION and self.scope_id is None:
            raise ValueError(f"has scope_kind {self.scope_kind} but no scope_id; name the {self.scope_kind}")
        return self


class Redrive(Body):
    """`data` replaces the message's data, `message` all of it (an unreadable one needs it); neither: as it is."""

    model_config = example(reason="the profile was misspelt", data={"machine_id": "m-1"})
    reason: Line | None = Field(None, description="one line of at most 500 characters")
    data: dict[str, Any] | None = Field(None, description="The message's data, whole; checked against its schema")
    message: dict[str, Any] | None = Field(None, description="The whole CloudEvent; its id stays the original's")

    @model_validator(mode="after")
    def one_edit(self) -> Self:
        if self.data is not None and self.message is not None:
            raise ValueError("has data and message; give only one of them")
        if (self.data is not None or self.message is not None) and self.reason is None:
            raise ValueError("changes a message without a reason; say why in 'reason'")
        return self


class RedriveMany(Body):
    """All dead letters that match every given filter. `all` is needed when no filter is given."""

    model_config = example(cause=["handler_failed"], error="no route to host", dry_run=True)
    reason: Line | None = Field(None, description="one line of at most 500 characters")
    cause: list[Cause] = Field(default_factory=list, max_length=10)
    type: list[Name] = Field(default_factory=list, max_length=50, description="CloudEvents types")
    key: list[Name] = Field(default_factory=list, max_length=50, description="Ids of what the messages are about")
    subject: Line | None = Field(None, description="Text that the message's subject contains")
    error: Line | None = Field(None, description="Text that the error contains")
    since: AwareDatetime | None = None
    before: AwareDatetime | None = None
    all: bool = False
    dry_run: bool = Field(False, description="Only say what would be driven again")


class SetRetention(Body):
    """How long events are kept after they happened. Keeping less comes into force a day after it was set."""

    model_config = example(keep_days=2555, reason="seven years, as the books are kept")
    keep_days: int | None = Field(ge=30, le=36_500, strict=True, description="30 to 36500 days; null: for ever")
    reason: Line = Field(description="one line of at most 500 characters")


class RetentionStep(Body):
    """Where a round goes on; left out: from the start."""

    model_config = example(cursor=None)
    cursor: str | None = Field(None, pattern=r"^[a-z]+:\d{1,19}$", description="next_cursor of the step before")


class PlaceHold(Body):
    """What is held, by exactly one of the three, and why."""

    model_config = example(entity_id="clu-0190c0ffee", reason="case 4711")
    entity_id: Name | None = Field(None, description="An id or name: every event of it or that mentions it")
    tenant: Slug | None = Field(None, description=f"Id of a tenant: {SLUG_FORM}")
    correlation_id: Line | None = Field(None, max_length=200, description="A correlation id")
    reason: Line = Field(description="one line of at most 500 characters")

    @model_validator(mode="after")
    def one_thing(self) -> Self:
        if sum(value is not None for value in (self.entity_id, self.tenant, self.correlation_id)) != 1:
            raise ValueError("names no thing or several; give exactly one of entity_id, tenant and correlation_id")
        return self


class AcceptRestore(Body):
    """`epoch` is the one that GET …/restore shows: a restore that nobody has looked at can't be accepted."""

    model_config = example(epoch=2, reason="backup of 02:00 after the disk failed; difference checked, INC-812")
    epoch: int = Field(ge=2, strict=True)
    reason: Line = Field(description="one line of at most 500 characters")


class Rebuild(Body):
    """`swap`: when it differs, the new one takes the live one's place in one step."""

    model_config = example(swap=False)
    swap: bool = False


class Replay(Body):
    """Which events to publish once more. `first` and `last` are sequences; everything given must match."""

    model_config = example(name="rebuild-search", since="2026-11-30T10:00:00Z", entity=["m-1"])
    name: Slug = Field(description=f"They come on replay.<name>.>: {SLUG_FORM}")
    first: int | None = Field(None, ge=1, strict=True)
    last: int | None = Field(None, ge=1, strict=True)
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    entity: list[Name] = Field(default_factory=list, max_length=50, description="Ids of what they are about")
    type: list[Name] = Field(default_factory=list, max_length=50, description="CloudEvents types")
    tenant: list[Name] = Field(default_factory=list, max_length=50)
