"""`slipway machines`: what is there, and what an operator does with it."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from slipway.cli import progress
from slipway.cli.instants import At
from slipway.cli.machine_bulk import preview
from slipway.cli.output import Column, ago, console, exact, print_facts, print_json, print_table, state
from slipway.cli.session import (
    DEFAULT_LIMIT,
    Json,
    Limit,
    Sort,
    Wait,
    group,
    run,
    show_document,
    show_list,
    show_one,
    usage_error,
)
from slipway.client import Client
from slipway.doors import Door
from slipway.models import Document, Drift, Machine, Operation, Started

machines = group("machines", "Physical machines: list, enrol, retry, quarantine, release. (operators)")
GROUPS = (machines,)

Name = Annotated[str, typer.Argument(metavar="MACHINE", help="Name or id of the machine.")]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the machine's history.")]


def _why(machine: Machine) -> str:
    if machine.reason:
        step = f"{machine.failed_step}: " if machine.failed_step else ""
        return step + machine.reason.message
    return "; ".join(f"held: {hold.reason}" for hold in machine.holds)


COLUMNS = (
    Column[Machine]("NAME", lambda m: m.name),
    Column[Machine]("SITE", lambda m: m.site),
    Column[Machine]("RACK", lambda m: m.rack),
    Column[Machine]("PROFILE", lambda m: m.profile),
    Column[Machine]("STATE", lambda m: state(m.state)),
    Column[Machine]("HEALTH", lambda m: state(m.health), spare=True),
    Column[Machine]("FOR", lambda m: ago(m.state_since), right=True),
    Column[Machine]("TENANT", lambda m: m.tenant, spare=True),
    Column[Machine]("WHY", _why, grows=True),
)


STUCK_COLUMNS = (
    Column[Any]("MACHINE", lambda row: row["name"]),
    Column[Any]("STATE", lambda row: state(row["state"])),
    Column[Any]("FOR", lambda row: ago(datetime.fromisoformat(row["since"])), right=True),
    Column[Any]("OVER", lambda row: Text("yes", "red") if row["over"] else ""),
    Column[Any]("TURN", lambda row: row["turn"], spare=True),
    Column[Any]("WHY", lambda row: row["why"], grows=True),
    Column[Any]("RUN", lambda row: row["command"], grows=True),
)


@machines.command("list")
def list_machines(
    state_: Annotated[list[str] | None, typer.Option("--state", "-s", help="In this state; may be repeated.")] = None,
    health: Annotated[list[str] | None, typer.Option("--health", help="HEALTHY, SUSPECT, FAILED, UNKNOWN.")] = None,
    site: Annotated[list[str] | None, typer.Option("--site", help="At this site; may be repeated.")] = None,
    rack: Annotated[list[str] | None, typer.Option("--rack", help="In this rack; may be repeated.")] = None,
    profile: Annotated[list[str] | None, typer.Option("--profile", help="Of this profile; may be repeated.")] = None,
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Used by this tenant.")] = None,
    held: Annotated[bool | None, typer.Option("--held/--not-held", help="Only machines that somebody holds.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Words in name, serial, MAC, tag, ….")] = None,
    sort: Sort = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List machines with their state, and why those are stuck that are.

    \b
      slipway machines list
      slipway machines list --rack r1 --state FAILED --state QUARANTINED
      slipway machines list --held -q "gpu-04 r12"
      slipway machines list --json | jq -r '.items[] | select(.eligible) | .name'
    """
    show_list(
        lambda client: client.machines.pages(
            state=state_,
            health=health,
            site=site,
            rack=rack,
            profile=profile,
            tenant=tenant,
            held=None if held is None else ("yes" if held else "no"),
            q=search,
            sort=sort,
        ),
        COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="No machines match. Is the source of truth read? See: slipway sources list",
    )


@machines.command("show")
def show_machine(machine: Name, at: At = None, as_json: Json = False) -> None:
    """Show one machine: state, reason and next step, hardware, proofs; with --at as it was then.

    \b
      slipway machines show fra1-r1-u01
      slipway machines show fra1-r1-u01 --at 2026-11-30T10:00Z
    """
    show_one(lambda client: client.machines.get(machine, at=at), _render, as_json=as_json)


def _rotated(machine: Machine, then: datetime | None) -> str | None:
    at = machine.credentials_rotated_at
    return f"rotated {ago(at, then)} ago" if at else None


def _render(machine: Machine) -> None:
    reason = machine.reason
    where = f"{machine.site} / {machine.rack}"
    then = machine.as_of_event.at if machine.as_of_event else None
    gpus = f"{machine.gpu_count} × {machine.gpu_model}" if machine.gpu_count else ""
    print_facts(
        [
            ("Machine", Text(machine.name, "bold")),
            ("Id", machine.id),
            ("State", Text.assemble(state(machine.state), f"  for {ago(machine.state_since, then)}")),
            ("Failed step", machine.failed_step),
            ("Why", Text(reason.message, "red") if reason else None),
            ("Next", reason.next_step if reason else None),
            ("Holds", "; ".join(f"{hold.reason} (by {hold.owner}, {hold.id})" for hold in machine.holds)),
            ("Differs", "; ".join(_differs(drift) for drift in machine.drifts)),
            ("Health", state(machine.health)),
            ("May be claimed", "yes" if machine.eligible else "no"),
            ("Where", where),
            ("Profile", machine.profile),
            ("Hardware", " · ".join(filter(None, (machine.device_type, gpus, machine.serial)))),
            ("BMC", machine.bmc_address),
            (
                "Power",
                f"{machine.power_state}, seen {ago(machine.observed_at, then)} ago" if machine.observed_at else None,
            ),
            ("Ironic", machine.provision_state),
            ("Tenant", machine.tenant if machine.tenant != "-" else None),
            ("Cluster", machine.cluster_id),
            ("Credentials", _rotated(machine, then)),
            ("Sanitised", exact(machine.sanitised_at)),
            ("Validated", exact(machine.validated_at)),
            ("Operation", machine.operation_id),
            ("As of", machine.as_of_event.told() if machine.as_of_event else None),
        ]
    )


def _differs(drift: Drift) -> str:
    return f"{drift.field}: {drift.ours} here, {drift.theirs or '(blank)'} in {drift.source}; {drift.repair}"


@machines.command("enrol")
def enrol(
    rack: Annotated[list[str] | None, typer.Option("--rack", help="Every EXPECTED machine of this rack.")] = None,
    machine: Annotated[list[str] | None, typer.Option("--machine", "-m", help="This machine, by name or id.")] = None,
    site: Annotated[str | None, typer.Option("--site", help="Only racks and machines of this site.")] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Enrol machines: inspected, compared with what they should be, sanitised, validated, AVAILABLE.

    A machine with a part missing ends in FAILED with a reason a technician can act on; the others go on.
    \b
      slipway machines enrol --rack r1 --rack r2 --wait
      slipway machines enrol --machine fra1-r1-u01
    """
    if not rack and not machine:
        usage_error("Nothing to enrol was named.", "Name racks (--rack) or machines (--machine).")
    start(
        lambda client: client.machines.enrol(racks=rack or (), machines=machine or (), site=site),
        wait=wait,
        as_json=as_json,
    )


@machines.command("rotate-credentials")
def rotate_credentials(
    machine: Annotated[list[str] | None, typer.Argument(metavar="[MACHINE]...", help="Names or ids.")] = None,
    rack: Annotated[list[str] | None, typer.Option("--rack", help="Every enrolled machine of this rack.")] = None,
    site: Annotated[str | None, typer.Option("--site", help="Only racks and machines of this site.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Give BMCs new passwords. Each is stored first and proven before the old one goes; nobody sees it.

    A BMC that refuses, lies or breaks off keeps the password that opens it; the others go on.
    \b
      slipway machines rotate-credentials fra1-r1-u01 --wait
      slipway machines rotate-credentials --rack r1 --dry-run
    """
    if not rack and not machine:
        usage_error("Nothing to rotate was named.", "Name machines, or racks (--rack).")
    wanted: dict[str, Any] = {"racks": rack or (), "machines": machine or (), "site": site}
    if dry_run:
        show_one(partial(_rotate, **wanted, dry_run=True), preview, as_json=as_json)
    else:
        start(partial(_rotate, **wanted), wait=wait, as_json=as_json)


async def _rotate(client: Client, **wanted: Any) -> Started:
    return await client.machines.rotate_credentials(**wanted)


@machines.command("retry")
def retry(machine: Name, wait: Wait = False, as_json: Json = False) -> None:
    """Try the step again in which a machine FAILED.

    \b
      slipway machines retry fra1-r1-u04 --wait
    """
    start(lambda client: client.machines.retry(machine), wait=wait, as_json=as_json)


@machines.command("quarantine")
def quarantine(machine: Name, reason: Reason, as_json: Json = False) -> None:
    """Take a machine out of the pool, with a reason. It is handed to nobody until it is released.

    \b
      slipway machines quarantine fra1-r1-u02 --reason "PSU 2 makes noise, ticket 4711"
    """
    _change(lambda client: client.machines.quarantine(machine, reason), f"{machine} is out of the pool.", as_json)


@machines.command("release")
def release(machine: Name, reason: Reason, wait: Wait = False, as_json: Json = False) -> None:
    """Let a quarantined machine back: it is sanitised and validated first, and AVAILABLE when it passes.

    \b
      slipway machines release fra1-r1-u02 --reason "PSU replaced" --wait
    """
    start(lambda client: client.machines.release(machine, reason), wait=wait, as_json=as_json)


@machines.command("stuck")
def stuck_machines(
    site: Annotated[list[str] | None, typer.Option("--site", help="At this site; may be repeated.")] = None,
    over: Annotated[bool, typer.Option("--over", help="Only what is later than it should be.")] = False,
    as_json: Json = False,
) -> None:
    """List machines that will not go on by themselves: why, whose turn it is, and the command to run.

    \b
      slipway machines stuck
      slipway machines stuck --over --json | jq -r '.items[].command'
    """

    def render(document: Any) -> None:
        print_table(STUCK_COLUMNS, document["items"], "Nothing is stuck.")

    show_document(lambda client: client.machines.stuck(sites=site or (), over=over), render, as_json=as_json)


@machines.command("give-up")
def give_up(machine: Name, reason: Reason, as_json: Json = False) -> None:
    """Give up the step that a machine is in: it is FAILED, with your reason, and can be retried.

    \b
      slipway machines give-up fra1-r1-u02 --reason "the clean hangs, ticket 4711"
    """
    _change(
        lambda client: client.machines.give_up(machine, reason),
        f"{machine} is FAILED. Next: slipway machines retry {machine}",
        as_json,
    )


@machines.command("power")
def power(
    machine: Name,
    wanted: Annotated[str, typer.Argument(metavar="on|off", help="What its power should be.")],
    reason: Reason,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Switch a machine on or off, and see it so. On: only what is deployed for a tenant.

    \b
      slipway machines power fra1-r1-u02 on --reason "its tenant shut it down by mistake" --wait
    """
    if wanted not in ("on", "off"):
        usage_error(f"{wanted!r} is no power state.", "Say on or off.")
    start(lambda client: client.machines.power(machine, wanted, reason), wait=wait, as_json=as_json)


@machines.command("decommission")
def decommission(
    machine: Name,
    reason: Reason,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    without_wipe: Annotated[
        bool, typer.Option("--without-wipe", help="Its disks can't be or need not be wiped; you vouch for it.")
    ] = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Have a machine leave for good: wiped with evidence, removed from its site, RETIRED, offline in NetBox.

    \b
      slipway machines decommission fra1-r1-u02 --reason "its lease ends" --dry-run
      slipway machines decommission fra1-r1-u02 --reason "its lease ends" --wait
    """
    wish: dict[str, Any] = {"machine": machine, "reason": reason, "wipe": not without_wipe}
    if dry_run:
        show_one(partial(_decommission, **wish, dry_run=True), _plan, as_json=as_json)
    else:
        start(partial(_decommission, **wish), wait=wait, as_json=as_json)


async def _decommission(client: Client, **wish: Any) -> Started:
    return await client.machines.decommission(**wish)


def _plan(would: Started) -> None:
    """What decommissioning would do, and what is in its way."""
    problem = would.raw.get("problem") or {}
    steps = [
        ("would" if step.get("done") else "would not", f"{step.get('step')}{_because(step.get('why'))}")
        for step in would.raw.get("steps") or ()
    ]
    print_facts(
        [
            ("Machine", f"{would.raw.get('machine_name')}, {would.raw.get('state')}"),
            *steps,
            ("In its way", Text(str(problem.get("message")), "red") if problem else "nothing"),
            ("Next", problem.get("next_step")),
        ]
    )


def _because(why: object) -> str:
    return f" ({why})" if why else ""


@machines.command("hold")
def hold(machine: Name, reason: Reason, as_json: Json = False) -> None:
    """Keep a machine from use until you remove the hold. Automation never removes it.

    \b
      slipway machines hold fra1-r1-u02 --reason "cabling on Tuesday"
    """
    _change(lambda client: client.machines.hold(machine, reason), f"{machine} is held.", as_json)


@machines.command("unhold")
def unhold(
    machine: Name,
    hold_id: Annotated[str, typer.Argument(help="The hold's id, see 'machines show'.")],
    as_json: Json = False,
) -> None:
    """Remove a hold.

    \b
      slipway machines unhold fra1-r1-u02 hld-0190…
    """
    _change(lambda client: client.machines.unhold(machine, hold_id), f"The hold on {machine} is removed.", as_json)


def _change(action: progress.Action[Document], done: str, as_json: bool) -> None:
    document = run(action)
    if as_json:
        print_json(document.raw)
    else:
        console().print(done)


def start(action: progress.Action[Started], *, wait: bool, as_json: bool) -> None:
    async def begin(client: Client) -> tuple[Started, Operation | None]:
        started = await action(client)
        if not as_json and started.machines:
            console().print(f"{len(started.machines)} machines, operation {started.operation_id}")
        if not wait:
            return started, None
        return started, await progress.watch(client, started.operation_id, door=Door.OPERATOR, quiet=as_json)

    progress.end(*run(begin), as_json=as_json)
