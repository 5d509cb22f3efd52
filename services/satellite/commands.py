"""What each site command does with the ports: one short function per command, command in, reply out.

Only `execute` is public. A command that can't be read is REFUSED by name of the wrong field; a bug in an
adapter is UNKNOWN, because nobody can say what it had already ordered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from pydantic import ValidationError

from libs.contracts.dhcp import ReserveAddresses
from libs.contracts.discovery import ScanBmcs
from libs.contracts.envelope import Envelope
from libs.contracts.message import Message, json_data
from libs.contracts.placement import ReserveProvider
from libs.contracts.replies import Reply, ok, refused, unknown
from libs.contracts.site import (
    ApplyCredentials,
    CollectEvidence,
    CredentialsCommand,
    DeliverKeys,
    DeployNode,
    EnrolNode,
    InspectNode,
    PowerNode,
    PrepareCredentials,
    PromoteCredentials,
    ProveCredentials,
    ReleaseNode,
    RemoveNode,
    RunTemplate,
    SanitizeNode,
    SettleCredentials,
)
from libs.contracts.versions import NewerMessage, known_class, parse_version, todays
from services.satellite.bmc_finder import BmcFinder
from services.satellite.collectors import collect
from services.satellite.dhcp import Reservation
from services.satellite.errors import Refusal, SiteError
from services.satellite.ports import Host, LogSink, Site
from services.satellite.rotation import Rotation

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Attempt:
    """The surroundings of one execution. `resumed`: it was begun before this process started."""

    site: Site
    resumed: bool
    log: LogSink
    finder: BmcFinder | None = None


async def _enrol(at: Attempt, command: EnrolNode) -> Reply:
    return ok(provision_state=await at.site.bare_metal.enrol(command))


async def _inspect(at: Attempt, command: InspectNode) -> Reply:
    return ok(**json_data(await at.site.bare_metal.inspect(command.machine_id)))


async def _sanitize(at: Attempt, command: SanitizeNode) -> Reply:
    done = await at.site.bare_metal.sanitize(command, resumed=at.resumed)
    evidence = {
        "steps": list(done.steps),
        "started_at": done.started_at.isoformat(),
        "finished_at": done.finished_at.isoformat(),
        "power_state": done.power_state,
    }
    return ok(run_id=done.run_id, evidence=evidence)


async def _deploy(at: Attempt, command: DeployNode) -> Reply:
    done = await at.site.bare_metal.deploy(command, extra_keys=[at.site.access.public_key()], resumed=at.resumed)
    return ok(**asdict(done.host), provision_state=done.provision_state)


async def _release(at: Attempt, command: ReleaseNode) -> Reply:
    off = await at.site.bare_metal.release(command)
    return ok(power_state="off", observed_at=off.observed_at.isoformat())


async def _power(at: Attempt, command: PowerNode) -> Reply:
    seen = await at.site.bare_metal.power(command)
    return ok(power_state=command.power, observed_at=seen.isoformat())


async def _remove(at: Attempt, command: RemoveNode) -> Reply:
    await at.site.bare_metal.remove(command.machine_id)
    if at.site.placement is not None:
        await at.site.placement.reserve(command.machine_id, command.machine_name, held=False)
        await at.site.placement.remove(command.machine_id, command.machine_name)
    return ok()


async def _reserve_provider(at: Attempt, command: ReserveProvider) -> Reply:
    if at.site.placement is None:
        return ok(managed=False, closed=None, consumers=[])
    found = await at.site.placement.reserve(command.machine_id, command.machine_name, held=command.held)
    if found is None:
        return ok(managed=False, closed=None, consumers=[])
    return ok(managed=True, closed=found.closed, consumers=list(found.consumers))


async def _reserve(at: Attempt, command: ReserveAddresses) -> Reply:
    if at.site.dhcp is None:
        return ok(managed=False, applied=[], refused=[], lasting=False)
    wanted = [Reservation(w.hw_address, w.ip_address, w.hostname) for w in command.reservations]
    done = await at.site.dhcp.reserve(command.machine_id, command.machine_name, wanted)
    names = ("hw_address", "ip_address", "hostname")
    applied = [{name: getattr(one, name) for name in names} for one in done.applied]
    return ok(managed=True, applied=applied, refused=[asdict(one) for one in done.refused], lasting=done.lasting)


async def _scan(at: Attempt, command: ScanBmcs) -> Reply:
    if at.finder is None:
        return refused("no_bmc_ranges", "This site can't scan for BMCs.", "Set SLIPWAY_BMC_RANGES at its satellite.")
    return ok(**asdict(await at.finder.scan(command.networks)))


async def _deliver_keys(at: Attempt, command: DeliverKeys) -> Reply:
    host = Host(command.address, command.ssh_port, command.ssh_host_key)
    return ok(fingerprints=list(await at.site.access.deliver_keys(host, command.ssh_authorized_keys)))


async def _collect(at: Attempt, command: CollectEvidence) -> Reply:
    return ok(evidence=[json_data(evidence) for evidence in await collect(at.site, command)])


async def _run_template(at: Attempt, command: RunTemplate) -> Reply:
    stats = await at.site.runner.run_template(command, at.log)
    return ok(run_id=command.run_id, stats=stats.by_node)


def _rotation(at: Attempt, command: CredentialsCommand) -> Rotation:
    site = at.site
    if site.secrets is None or site.accounts is None:
        raise Refusal("credentials_unsupported", "This site's adapters can't change credentials.", "Do it by hand.")
    return Rotation(site.secrets, site.accounts, command.machine_id, command.machine_name, command.rotation_id)


async def _prepare_credentials(at: Attempt, command: PrepareCredentials) -> Reply:
    await _rotation(at, command).prepare()
    return ok()


async def _apply_credentials(at: Attempt, command: ApplyCredentials) -> Reply:
    return ok(changed=await _rotation(at, command).apply())


async def _prove_credentials(at: Attempt, command: ProveCredentials) -> Reply:
    await _rotation(at, command).prove()
    return ok()


async def _promote_credentials(at: Attempt, command: PromoteCredentials) -> Reply:
    return ok(old_opens=await _rotation(at, command).promote())


async def _settle_credentials(at: Attempt, command: SettleCredentials) -> Reply:
    return ok(kept=await _rotation(at, command).settle())


# The message class fixes the handler's argument; mypy can't say that of a dict, hence Any.
HANDLERS: dict[type[Message], Callable[[Attempt, Any], Awaitable[Reply]]] = {
    EnrolNode: _enrol,
    InspectNode: _inspect,
    SanitizeNode: _sanitize,
    DeployNode: _deploy,
    ReleaseNode: _release,
    PowerNode: _power,
    RemoveNode: _remove,
    ReserveProvider: _reserve_provider,
    ReserveAddresses: _reserve,
    ScanBmcs: _scan,
    DeliverKeys: _deliver_keys,
    CollectEvidence: _collect,
    RunTemplate: _run_template,
    PrepareCredentials: _prepare_credentials,
    ApplyCredentials: _apply_credentials,
    ProveCredentials: _prove_credentials,
    PromoteCredentials: _promote_credentials,
    SettleCredentials: _settle_credentials,
}


def command_of(envelope: Envelope) -> Message | Reply:
    """The command in `envelope`, or the refusal that says what is wrong with it."""
    try:
        read = todays(envelope)
    except NewerMessage:
        read = None
    cls = known_class(read) if read is not None else None
    if read is None or cls is None or cls not in HANDLERS:
        return refused(
            "command_unsupported",
            f"This satellite has no command {envelope.type} version {parse_version(envelope)}.",
            "Update the satellite, or send a command that it knows.",
        )
    try:
        return cls.model_validate(read.data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        return refused("command_invalid", f"{envelope.type}: {field}: {first['msg']}", "Correct the command's sender.")


async def execute(envelope: Envelope, attempt: Attempt) -> Reply:
    """Do what the command says; every way it can end is a reply."""
    command = command_of(envelope)
    if isinstance(command, Reply):
        return command
    try:
        return await HANDLERS[type(command)](attempt, command)
    except SiteError as error:
        return error.reply()
    except Exception as error:  # The last line of defence: a bug must not leave a command without an answer.
        log.exception("command_crashed", command=envelope.type, command_id=envelope.id)
        return unknown(
            "satellite_bug",
            f"{envelope.type}: {type(error).__name__} in the satellite; what it had ordered by then is not known.",
            "Read the machine's present state; the satellite's log has the details under this command's id.",
            command_id=envelope.id,
        )
