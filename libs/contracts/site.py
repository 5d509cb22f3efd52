"""What the hub asks a site's satellite to do, and what the site saw.

Every site command is idempotent at the satellite by natural keys: Ironic's node uuid is the machine id, and
instance_uuid = claim id is the compare-and-set that fences deploys. Deadline, claim and machine version
travel in every command; late, older or foreign ones are answered EXPIRED or STALE and do nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from libs.contracts.message import Message, observation, site_command


class SiteCommand(Message):
    """`machine_version` 0 means: not bound to a version."""

    machine_id: str
    machine_name: str
    claim_id: str | None = None
    machine_version: int = 0

    def key(self) -> str:
        return self.machine_id


@site_command("ironic", "enrol")
class EnrolNode(SiteCommand):
    """Make the node (uuid = machine id) and bring it to `manageable`. Reply data: provision_state."""

    bmc_address: str
    bmc_credentials_ref: str
    resource_class: str
    nic_macs: tuple[str, ...] = ()


@site_command("ironic", "inspect")
class InspectNode(SiteCommand):
    """Read the hardware through Redfish. Reply data: an `Inspection` (see below)."""


@site_command("ironic", "sanitize")
class SanitizeNode(SiteCommand):
    """Manual clean with named steps under our run id, from manageable, then to Ironic's available; ends powered off.

    Refused when the node still carries an instance. Reply data: run_id, evidence {steps, started_at, finished_at,
    power_state}.
    """

    run_id: str


@site_command("ironic", "deploy")
class DeployNode(SiteCommand):
    """Claim the node by instance_uuid, deploy the image, end `active` and powered on.

    Reply data: address, ssh_port, ssh_host_key, provision_state.
    """

    image_url: str
    image_checksum: str
    hostname: str
    ssh_authorized_keys: tuple[str, ...]


@site_command("ironic", "release")
class ReleaseNode(SiteCommand):
    """Undeploy when deployed, power off, and observe it off. Reply data: power_state ("off"), observed_at.

    Never OK unless the BMC itself said off after the order.
    """


@site_command("ironic", "power")
class PowerNode(SiteCommand):
    """Switch the machine on or off and see it so, by the BMC's own word. Reply data: power_state, observed_at.

    On: only when it is deployed for `claim_id`; nothing else may boot from its disks.
    """

    power: Literal["on", "off"]


@site_command("ironic", "remove")
class RemoveNode(SiteCommand):
    """Delete the node and its ports. Refused while it carries an instance."""


@site_command("ssh", "deliver_keys")
class DeliverKeys(SiteCommand):
    """Write the tenant's keys on the node and read them back. Reply data: fingerprints (SHA256:… each, confirmed)."""

    address: str
    ssh_port: int
    ssh_host_key: str
    ssh_authorized_keys: tuple[str, ...]


class CredentialsCommand(SiteCommand):
    """A step of giving a machine's BMC a new password, which `rotation_id` (the operation) names. No secret travels."""

    rotation_id: str


@site_command("credentials", "prepare")
class PrepareCredentials(CredentialsCommand):
    """Prove the current password and store a new one as pending at the site."""


@site_command("credentials", "apply")
class ApplyCredentials(CredentialsCommand):
    """Set the pending password at the BMC. Reply data: changed (false: it had been set before)."""


@site_command("credentials", "prove")
class ProveCredentials(CredentialsCommand):
    """Sign in with the pending password. Never OK unless the BMC itself opened with it."""


@site_command("credentials", "promote")
class PromoteCredentials(CredentialsCommand):
    """Make the proven password the current one, everywhere. Reply data: old_opens ("no", "yes", "not_tried")."""


@site_command("credentials", "settle")
class SettleCredentials(CredentialsCommand):
    """After a failure: keep the password that opens the BMC. Reply data: kept ("current" or "pending")."""


class CheckRequest(Message):
    """`how` names a collector the satellite has; `limit_seconds` bounds it."""

    check: str
    how: str
    limit_seconds: float = 60.0


@site_command("checks", "collect")
class CollectEvidence(SiteCommand):
    """Collect raw outputs for checks; judge nothing. Reply data: evidence: [Evidence]."""

    run_id: str
    suite: str
    checks: tuple[CheckRequest, ...]
    address: str = ""
    ssh_port: int = 22
    ssh_host_key: str = ""


class Evidence(Message):
    """What one collector saw. Only status "ran" carries output that may be judged."""

    check: str
    status: Literal["ran", "error", "timeout", "unsupported"]
    output: object = None
    message: str = ""
    seconds: float = 0.0


class RunnerNode(Message):
    name: str
    address: str
    ssh_port: int
    ssh_host_key: str = ""


@site_command("runner", "run_template")
class RunTemplate(Message):
    """Run the stack's playbook over all nodes. Reply data: run_id, stats. Its log is streamed as observations."""

    run_id: str
    cluster_id: str
    operation_id: str
    playbook: str
    nodes: tuple[RunnerNode, ...]
    variables: dict[str, object] = Field(default_factory=dict)

    def key(self) -> str:
        return self.cluster_id


class InspectedGpu(Message):
    """One GPU as the BMC shows it. An absent slot is not a GPU."""

    slot: str
    model: str = ""
    serial: str = ""
    state: str = "unknown"
    health: str = "unknown"
    pcie_lanes: int | None = None
    pcie_type: str = ""


class InspectedNic(Message):
    """One network port as the BMC shows it."""

    slot: str
    mac: str = ""
    gbps: float | None = None
    link: str = "unknown"


class Inspection(Message):
    """What Redfish says about a machine. None and "" mean: not known, which matches nothing."""

    manufacturer: str = ""
    model: str = ""
    serial: str = ""
    bios_version: str = ""
    cpu_count: int | None = None
    cpu_model: str = ""
    memory_gib: int | None = None
    gpus: tuple[InspectedGpu, ...] = ()
    gpu_slots_absent: tuple[str, ...] = ()
    nic_macs: tuple[str, ...] = ()
    drives: int | None = None
    power_state: str = "unknown"
    health: str = "unknown"
    gaps: tuple[str, ...] = ()
    nics: tuple[InspectedNic, ...] = ()
    firmware: dict[str, str] = Field(default_factory=dict)  # Component ("bmc") → version.


@observation("ironic", "node")
class NodeObserved(Message):
    """A node's state, on change and every 60 s. Strings are Ironic's own; power_state "on", "off" or "unknown".

    `maintenance_owner`: "" when it is in none, "ironic" when Ironic set it (`fault` says why), else "other".
    `reservation` is the conductor that holds the node's lock, `reserved_since` when the satellite first saw it there.
    `protected`, `retired` and `traits` are null when the site's satellite does not tell them.
    """

    machine_id: str
    name: str
    provision_state: str
    target_provision_state: str = ""
    power_state: str
    maintenance: bool = False
    fault: str = ""
    last_error: str = ""
    instance_uuid: str | None = None
    observed_at: datetime
    target_power_state: str = ""
    maintenance_reason: str = ""
    maintenance_owner: Literal["", "ironic", "other"] = ""
    protected: bool | None = None
    retired: bool | None = None
    retired_reason: str = ""
    reservation: str = ""
    reserved_since: datetime | None = None
    resource_class: str = ""
    traits: tuple[str, ...] | None = None
    conductor_group: str = ""

    def key(self) -> str:
        return self.machine_id


@observation("ironic", "node_gone")
class NodeGone(Message):
    """A node that the site listed before is in its list no more: it was deleted there. Told once, so it may be lost."""

    machine_id: str
    name: str
    observed_at: datetime

    def key(self) -> str:
        return self.machine_id


@observation("satellite", "heartbeat")
class SatelliteHeartbeat(Message):
    """The satellite lives. `parts`: the site's optional parts that were looked at, each "ok" or what is wrong."""

    site: str
    version: str
    at: datetime
    commands_running: int = 0
    nodes_known: int = 0
    problems: tuple[str, ...] = ()
    parts: dict[str, str] = Field(default_factory=dict)

    def key(self) -> str:
        return self.site


@observation("runner", "log")
class RunnerLog(Message):
    run_id: str
    cluster_id: str
    operation_id: str
    first_line: int
    lines: tuple[str, ...]

    def key(self) -> str:
        return self.run_id
