"""What the satellite needs of a site, as protocols; `adapters/` has the real systems and the simulated site.

Every order is a convergence: the adapter looks at the present state first and goes on from there, so that the
same order given twice, or given again after a crash (`resumed`), does the work once. Adapters raise only
`services.satellite.errors.SiteError`s and never put a secret into a log, an error or an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from libs.contracts.site import (
    DeployNode,
    EnrolNode,
    Inspection,
    NodeObserved,
    PowerNode,
    ReleaseNode,
    RunTemplate,
    SanitizeNode,
)
from services.satellite.accounts import Accounts
from services.satellite.bmc_finder import BmcScan
from services.satellite.dhcp import Dhcp
from services.satellite.placement import Placement


@dataclass(frozen=True)
class Sanitised:
    """Evidence of a finished clean: only made when every named step ended well under our own `run_id`."""

    run_id: str
    steps: tuple[str, ...]
    started_at: datetime
    finished_at: datetime
    power_state: str


@dataclass(frozen=True)
class Host:
    """Where to log in. `ssh_host_key` is "type base64"; blank means: not known, and then nobody logs in."""

    address: str
    ssh_port: int
    ssh_host_key: str


@dataclass(frozen=True)
class Deployed:
    """A node that is active under our claim, powered on, and whose host answers at `host`."""

    host: Host
    provision_state: str


@dataclass(frozen=True)
class PowerOff:
    """The BMC itself said "off" at `observed_at`, after the order."""

    observed_at: datetime


@dataclass(frozen=True)
class CommandOutput:
    """What a command on a node wrote; `exit_code` is None when it was ended by a signal."""

    exit_code: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True)
class RunStats:
    """How a playbook ended: node name → counts by result ("ok", "changed", "failures", "unreachable", …)."""

    by_node: dict[str, dict[str, int]]


class BareMetal(Protocol):
    """The machines' life cycle and what their BMCs say."""

    async def enrol(self, order: EnrolNode) -> str:
        """Bring the node to "manageable"; returns the provision state it is in."""
        ...

    async def inspect(self, machine_id: str) -> Inspection:
        """Read the hardware; what could not be read is listed in `gaps`."""
        ...

    async def sanitize(self, order: SanitizeNode, *, resumed: bool) -> Sanitised:
        """Clean with named steps under order.run_id, then make available, powered off."""
        ...

    async def deploy(self, order: DeployNode, *, extra_keys: Sequence[str], resumed: bool) -> Deployed:
        """Claim by compare-and-set, deploy, power on. `extra_keys` join the order's authorized keys."""
        ...

    async def release(self, order: ReleaseNode) -> PowerOff:
        """Undeploy, give up the claim, power off and observe it."""
        ...

    async def power(self, order: PowerNode) -> datetime:
        """Switch it on or off and see it so; returns when the BMC said so. On only when deployed for the claim."""
        ...

    async def remove(self, machine_id: str) -> None:
        """Delete the node and its ports. A node that is not there is a success."""
        ...

    async def nodes(self) -> list[NodeObserved]:
        """All nodes as they are now, by one list call."""
        ...

    async def collect(self, machine_id: str, collector: str) -> dict[str, object]:
        """The output of an out-of-band collector ("redfish.…"); raises KeyError for one it has not got."""
        ...


class NodeAccess(Protocol):
    """Logging in to a deployed node with the satellite's own management key."""

    def public_key(self) -> str:
        """The management key's public half, as one authorized_keys line."""
        ...

    async def deliver_keys(self, host: Host, keys: Sequence[str]) -> tuple[str, ...]:
        """Replace the authorized keys (ours stays), read them back; fingerprints "SHA256:…" of `keys`, confirmed."""
        ...

    async def run(self, host: Host, command: str, *, limit_seconds: float) -> CommandOutput:
        """Run a command. TimeoutError after the limit; a non-zero exit code is an answer, not an error."""
        ...


LogSink = Callable[[Sequence[str]], Awaitable[None]]


class Runner(Protocol):
    """Runs a stack's playbook over a cluster's nodes."""

    async def run_template(self, order: RunTemplate, log: LogSink) -> RunStats:
        """Run to the end. `log` gets the lines as they come, in order. Raises Failure when a node failed."""
        ...


@dataclass(frozen=True)
class Secret:
    """One secret as the store has it now. `version` is the store's own mark of it, equal only when nothing was written.

    The fields are left out of `repr`, so that no log and no traceback shows them.
    """

    fields: Mapping[str, str] = field(repr=False)
    version: str


class Secrets(Protocol):
    """The site's secrets by reference, e.g. bmc/fra1-r1-gpu-01. Nothing is cached: what was rotated is seen at once.

    Errors name the reference, never the value: Failure "secret_missing", "secret_unreadable", "secret_denied",
    "secret_store_sealed", "secret_store_standby", "secret_store_unreachable" (also when it is too slow),
    "secret_conflict" and "secret_read_only". A write whose answer did not come is Unanswered
    "secret_write_unanswered": read again to see which it was.
    """

    async def read(self, ref: str) -> Secret:
        """The secret as it is now."""
        ...

    async def write(self, ref: str, fields: Mapping[str, str], *, replaces: str | None) -> str:
        """Write a new version, whole or not at all; returns its version.

        `replaces` is the version that was read, None when there must be none yet; else "secret_conflict".
        """
        ...

    async def refs(self, prefix: str = "") -> tuple[str, ...]:
        """All references below `prefix` ("bmc/"), sorted."""
        ...

    async def remove(self, ref: str) -> None:
        """Destroy the secret with all its versions. One that is not there is a success."""
        ...


@dataclass(frozen=True)
class Site:
    """One site's adapters."""

    bare_metal: BareMetal
    access: NodeAccess
    runner: Runner
    dhcp: Dhcp | None = None  # None: the site's addresses are given by somebody else.
    bmc_scan: BmcScan | None = None
    secrets: Secrets | None = None
    accounts: Accounts | None = None
    placement: Placement | None = None  # None: nobody else schedules onto the site's machines.
