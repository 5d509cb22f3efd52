"""Inventory: sites, racks, device types, profiles and machines; the only owner of a machine's lifecycle."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from libs.contracts.message import Message, command, event
from libs.contracts.operations import OperationFacts
from libs.contracts.replies import Problem
from libs.contracts.site import Inspection


class MachineState(StrEnum):
    EXPECTED = "EXPECTED"
    ENROLLING = "ENROLLING"
    SANITIZING = "SANITIZING"
    VALIDATING = "VALIDATING"
    AVAILABLE = "AVAILABLE"
    CLAIMED = "CLAIMED"
    PROVISIONING = "PROVISIONING"
    ASSIGNED = "ASSIGNED"
    RELEASING = "RELEASING"
    QUARANTINED = "QUARANTINED"
    REMEDIATING = "REMEDIATING"
    MAINTENANCE = "MAINTENANCE"
    FAILED = "FAILED"
    DECOMMISSIONING = "DECOMMISSIONING"
    RETIRED = "RETIRED"


class Health(StrEnum):
    """UNKNOWN until something was proven; it is never read as HEALTHY."""

    UNKNOWN = "UNKNOWN"
    HEALTHY = "HEALTHY"
    SUSPECT = "SUSPECT"
    FAILED = "FAILED"


class Hold(Message):
    """Why a machine is kept from use. Automation never clears one that it did not set."""

    id: str
    owner: str
    reason: str
    since: datetime


class Drift(Message):
    """A source says otherwise than we hold, and still does: both values, whose field it is, how it is repaired.

    `owner`: "netbox" or "slipway", who decides what the field's value is. `since`: when the difference was seen first.
    """

    source: str
    field: str
    ours: str
    theirs: str
    owner: str
    repair: str
    since: datetime


class MachineFacts(Message):
    """Everything about a machine that others may know, as of its `entityversion`. Carried by every machine event.

    `eligible` is inventory's own word on "may be claimed now": AVAILABLE, no hold, fresh proof. `claim_id` is kept
    until the machine was observed off; `returned_claim_id` is the claim that it was last given back by.
    """

    id: str
    name: str
    site: str
    rack: str
    position: float | None = None
    netbox_id: int | None = None
    device_type: str
    role: str
    profile: str | None = None
    gpu_model: str = ""
    gpu_count: int = 0
    serial: str = ""
    asset_tag: str = ""
    bmc_address: str = ""
    bmc_mac: str = ""
    nic_macs: tuple[str, ...] = ()
    nic_addresses: dict[str, str] = Field(default_factory=dict)  # MAC → the address that IPAM gives the port.
    state: MachineState
    failed_step: str = ""
    reason: Problem | None = None
    health: Health = Health.UNKNOWN
    holds: tuple[Hold, ...] = ()
    drifts: tuple[Drift, ...] = ()
    eligible: bool = False
    claim_id: str | None = None
    reservation_id: str | None = None
    cluster_id: str | None = None
    tenant: str = "-"
    returned_claim_id: str | None = None
    power_state: str = "unknown"
    provision_state: str = ""
    observed_at: datetime | None = None
    sanitised_at: datetime | None = None
    sanitise_run_id: str | None = None
    validated_at: datetime | None = None
    validate_run_id: str | None = None
    credentials_rotated_at: datetime | None = None
    state_since: datetime
    operation_id: str | None = None
    version: int


class _MachineEvent(Message):
    machine: MachineFacts

    def key(self) -> str:
        return self.machine.id


@event("inventory", "machine", "registered")
class MachineRegistered(_MachineEvent):
    """A machine became known (from NetBox); state EXPECTED."""


@event("inventory", "machine", "updated")
class MachineUpdated(_MachineEvent):
    """Facts other than the state changed. `changed` names them."""

    changed: tuple[str, ...]


@event("inventory", "machine", "state_changed")
class MachineStateChanged(_MachineEvent):
    """The machine moved from one state to another."""

    from_state: MachineState
    to_state: MachineState


@event("inventory", "machine", "sanitised")
class MachineSanitised(_MachineEvent):
    """A wipe that we asked for by our own run id has finished, with evidence."""

    run_id: str
    evidence: dict[str, object] = Field(default_factory=dict)


@event("inventory", "machine", "validated")
class MachineValidated(_MachineEvent):
    """A validation run of ours has ended with PASS."""

    run_id: str
    suite: str


@event("inventory", "machine", "drifted")
class MachineDrifted(_MachineEvent):
    """A source contradicts what we hold: field and both values.

    `owner` is who noticed it. `field_owner` ("netbox", "slipway", "" not declared) decides the field's value;
    `repair` says how the two agree again.
    """

    field: str
    ours: str
    theirs: str
    owner: str
    field_owner: str = ""
    repair: str = ""


class SiteFacts(Message):
    slug: str
    name: str
    netbox_id: int | None = None
    satellite_seen_at: datetime | None = None
    version: int


class RackFacts(Message):
    id: str
    name: str
    site: str
    netbox_id: int | None = None
    version: int


class DeviceTypeFacts(Message):
    slug: str
    manufacturer: str
    model: str
    netbox_id: int | None = None
    version: int


@event("inventory", "site", "updated")
class SiteUpdated(Message):
    """A site was read from the source of truth for the first time, or differs from before."""

    site: SiteFacts


@event("inventory", "rack", "updated")
class RackUpdated(Message):
    """A rack was read from the source of truth for the first time, or differs from before."""

    rack: RackFacts


@event("inventory", "device_type", "updated")
class DeviceTypeUpdated(Message):
    """A device type was read from the source of truth for the first time, or differs from before."""

    device_type: DeviceTypeFacts


class BillOfMaterials(Message):
    """What a machine of a profile promises beyond its parts. A line that is null or missing is not judged.

    `nic_count` ports at `nic_gbps` or more; `firmware`: component ("bios", "bmc") → least version; `memory_tolerance`:
    the part of the memory that firmware may keep for itself.
    """

    gpu_pcie_lanes: int | None = None
    gpu_pcie_generation: int | None = None
    nic_count: int | None = None
    nic_gbps: float | None = None
    drive_count: int | None = None
    memory_tolerance: float | None = None
    firmware: dict[str, str] = Field(default_factory=dict)


class ProfileFacts(Message):
    """A kind of machine that can be asked for, and what a machine must have to be one."""

    name: str
    description: str
    device_types: tuple[str, ...]
    gpu_model: str = ""
    gpu_count: int = 0
    cpu_sockets: int | None = None
    memory_gib: int | None = None
    bom: BillOfMaterials | None = None
    version: int = 1


@event("inventory", "profile", "updated")
class ProfileUpdated(Message):
    """A kind of machine that can be asked for was added or changed."""

    profile: ProfileFacts


@event("inventory", "source", "read")
class SourceRead(Message):
    """A walk over NetBox ended. A failed or incomplete one changes nothing of what it did not see."""

    source: Literal["netbox"] = "netbox"
    complete: bool
    devices_seen: int
    changed: int
    errors: tuple[str, ...] = ()
    started_at: datetime
    finished_at: datetime


@event("inventory", "operation", "started")
class InventoryOperationStarted(Message):
    """A process of inventory began."""

    operation: OperationFacts


@event("inventory", "operation", "progressed")
class InventoryOperationProgressed(Message):
    """A process of inventory took a step, waits, or turned back."""

    operation: OperationFacts


@event("inventory", "operation", "finished")
class InventoryOperationFinished(Message):
    """A process of inventory ended: SUCCEEDED, FAILED or CANCELLED."""

    operation: OperationFacts


class _MachineCommand(Message):
    machine_id: str

    def key(self) -> str:
        return self.machine_id


@command("inventory", "enrol_machine")
class EnrolMachine(_MachineCommand):
    """EXPECTED or FAILED(enrol) → … → AVAILABLE. Answered when the machine is AVAILABLE or FAILED."""


@command("inventory", "rotate_credentials")
class RotateCredentials(_MachineCommand):
    """Give the machine's BMC a new password. Answered when that has succeeded or failed. Reply data: old_opens."""


class BulkAction(StrEnum):
    """What can be done to many machines at once."""

    HOLD = "hold"
    UNHOLD = "unhold"
    QUARANTINE = "quarantine"


@command("inventory", "act_on_machine")
class ActOnMachine(_MachineCommand):
    """One machine's part of an action for many. Refused for a machine that it can't be done to."""

    action: BulkAction
    reason: str
    hold_id: str
    asked_by: str


@command("inventory", "begin_rotation")
class BeginRotation(_MachineCommand):
    """Let this operation alone change the machine's credentials. Refused while another does, or before enrolment."""

    operation_id: str


@command("inventory", "end_rotation")
class EndRotation(_MachineCommand):
    """Note how the operation's change of credentials ended. Harmless when it is repeated."""

    operation_id: str
    rotated: bool


@command("inventory", "accept_machine")
class AcceptMachine(_MachineCommand):
    """AVAILABLE → CLAIMED by compare-and-set on the version. Refused when anything that matters changed since.

    Reply data: version, name, site, profile, gpu_model, gpu_count.
    """

    expected_version: int
    claim_id: str
    reservation_id: str
    cluster_id: str | None = None
    tenant: str


@command("inventory", "begin_provisioning")
class BeginProvisioning(_MachineCommand):
    """CLAIMED → PROVISIONING, for this claim only. Reply data: version."""

    claim_id: str


@command("inventory", "assign_machine")
class AssignMachine(_MachineCommand):
    """PROVISIONING → ASSIGNED, for this claim only. Reply data: version."""

    claim_id: str


@command("inventory", "return_machine")
class ReturnMachine(_MachineCommand):
    """The one way back: release, observed off, sanitize, validate, AVAILABLE (or QUARANTINED with the reason).

    Answered OK at once when the machine is not held by `claim_id`; else when the return has `begun`, or when the
    machine was observed off (`released`).
    """

    claim_id: str
    reason: str
    quarantine: Problem | None = None
    answer_when: Literal["begun", "released"] = "begun"


@command("inventory", "quarantine_machine")
class QuarantineMachine(_MachineCommand):
    """Take an unclaimed machine out of the pool."""

    reason: Problem
    owner: str


class _RecordCommand(_MachineCommand):
    """What a saga of inventory tells inventory. Stale when `operation_id` no longer runs on the machine."""

    operation_id: str


@command("inventory", "record_inspection")
class RecordInspection(_RecordCommand):
    """ENROLLING → SANITIZING when the hardware is what the profile and NetBox promise. Reply data: version.

    Refused, and the machine FAILED(enrol), with every difference: slot, expected, found.
    """

    inspection: Inspection
    sanitise_run_id: str


@command("inventory", "record_released")
class RecordReleased(_RecordCommand):
    """RELEASING → SANITIZING; only power_state "off" is accepted. Reply data: version."""

    power_state: str
    observed_at: datetime | None = None
    sanitise_run_id: str


@command("inventory", "record_sanitised")
class RecordSanitised(_RecordCommand):
    """SANITIZING → VALIDATING, or QUARANTINED when that was wanted. Reply data: version, quarantined."""

    run_id: str
    evidence: dict[str, object]
    validate_run_id: str


@command("inventory", "record_verdict")
class RecordVerdict(_RecordCommand):
    """VALIDATING → AVAILABLE on PASS, else FAILED or QUARANTINED (`fail_to`). Reply data: version, verdict, again.

    An inconclusive run is tried again under `next_run_id`; without one the machine is FAILED(validate).
    """

    run_id: str
    verdict: str
    problem: Problem | None = None
    fail_to: Literal["FAILED", "QUARANTINED"]
    next_run_id: str | None = None


@command("inventory", "record_wiped")
class RecordWiped(_RecordCommand):
    """Keep the evidence of the last wipe of a machine that is DECOMMISSIONING. Reply data: version."""

    run_id: str
    evidence: dict[str, object]


@command("inventory", "retire_machine")
class RetireMachine(_RecordCommand):
    """DECOMMISSIONING → RETIRED; refused while a wipe is awaited. Reply data: version."""


@command("inventory", "mark_machine_failed")
class MarkMachineFailed(_RecordCommand):
    """The saga gave up: the step that the machine is in has failed. Does nothing when it is in none."""

    problem: Problem


@command("inventory", "check_released")
class CheckReleased(_MachineCommand):
    """OK once the claim no longer holds the machine (it was observed off); FAILED, to be asked again, until then."""

    claim_id: str
