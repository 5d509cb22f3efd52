"""`slipway events | timeline`: what happened, in order, and whether anybody has altered it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slipway.cli.exits import Exit
from slipway.cli.exporting import bar, export
from slipway.cli.instants import Since, Until
from slipway.cli.output import Column, console, exact, plain_table, print_json
from slipway.cli.session import AskedDoor, Json, Limit, fail, group, run, show_list, usage_error
from slipway.client import Client
from slipway.errors import SlipwayError
from slipway.exports import ExportFile, UnreadableExport
from slipway.models import Event
from slipway.verification import Held, Report, read_checkpoints, read_keys, verify_file, verify_online

events = group("events", "Everything that happened: list, follow, export, verify.")
GROUPS = (events,)

COLUMNS = (
    Column[Event]("TIME", lambda e: exact(e.time)),
    Column[Event]("EVENT", lambda e: e.type.removeprefix("slipway.")),
    Column[Event]("ENTITY", lambda e: e.subject, is_id=True),
    Column[Event]("BY", lambda e: e.actor, spare=True),
    Column[Event]("WHAT", lambda e: e.summary, grows=True),
)
TIMELINE_COLUMNS = (
    Column[Event]("TIME", lambda e: exact(e.time)),
    Column[Event]("EVENT", lambda e: e.type.removeprefix("slipway.")),
    Column[Event]("BY", lambda e: e.actor, spare=True),
    Column[Event]("WHAT", lambda e: e.summary, grows=True),
)
Entity = Annotated[list[str] | None, typer.Option("--entity", help="About this thing (id).")]
Service = Annotated[list[str] | None, typer.Option("--service", help="Published by this service.")]
Type = Annotated[list[str] | None, typer.Option("--type", help="CloudEvents type, slipway.….")]


@events.command("list")
def list_events(
    entity: Entity = None,
    service: Service = None,
    type_: Type = None,
    actor: Annotated[list[str] | None, typer.Option("--actor", help="Caused by this person or part.")] = None,
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Of this tenant.")] = None,
    correlation: Annotated[str | None, typer.Option("--correlation", help="Of this correlation id.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List events, oldest first.

    \b
      slipway events list --entity clu-0190…
      slipway events list --newest --limit 20
    """
    show_list(
        lambda client: client.events.pages(
            door=door,
            entity_id=entity,
            service=service,
            type=type_,
            actor=actor,
            tenant=tenant,
            correlation_id=correlation,
            from_=since,
            to=until,
            sort="-time" if newest else None,
        ),
        COLUMNS,
        as_json=as_json,
        limit=limit,
    )


events.command("export")(export)


@events.command("verify")
def verify(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Check this export by itself, without asking anybody.")
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option("--checkpoints", help="Checkpoints that you kept (slipway audit checkpoints --out).")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Public keys that you kept (slipway audit keys --out, or PEM).")
    ] = None,
    service: Annotated[list[str] | None, typer.Option("--service", help="Only this service's chain.")] = None,
    as_json: Json = False,
) -> None:
    """Look for events that were altered, removed or put in, and say where. Ends with 1 when there are any.

    Online it walks what audit keeps (operators); with --file an export, which anybody can check anywhere. Signatures
    are checked here; they say who signed only against a key that you kept (--key).
    \b
      slipway events verify
      slipway events verify --key keys.json --checkpoints checkpoints.json
      slipway events verify --file events.jsonl --key keys.json
    """
    if file is not None and service:
        usage_error("--service is for checking online.", "Leave it out: a file is checked as a whole.")
    try:
        held = Held(read_keys(key) if key else (), read_checkpoints(checkpoints) if checkpoints else ())
        report = _check_file(file, held) if file is not None else run(lambda c: _check_online(c, held, service or ()))
    except UnreadableExport as error:
        fail(error)
    if as_json:
        print_json(report.document())
    else:
        _render_report(report)
    if not report.intact:
        raise typer.Exit(Exit.FAILED)


def _check_file(file: Path, held: Held) -> Report:
    manifest = ExportFile(file).manifest()
    with bar() as progress:
        task = progress.add_task("events", total=manifest["events"] if manifest else None)
        return verify_file(ExportFile(file), held, lambda _, done: progress.update(task, completed=done))


async def _check_online(client: Client, held: Held, services: Sequence[str]) -> Report:
    ends = {chain["service"]: chain["last_sequence"] for chain in await client.audit.chains()}
    if unknown := sorted(set(services) - set(ends)):
        raise SlipwayError(f"There is no chain of {', '.join(unknown)}.", f"There are: {', '.join(sorted(ends))}.")
    with bar() as progress:
        tasks = {
            name: progress.add_task(name, total=end) for name, end in ends.items() if not services or name in services
        }
        return await verify_online(
            client, held, services, lambda service, done: progress.update(tasks[service], completed=done)
        )


def _render_report(report: Report) -> None:
    plain_table(report.services)
    for problem in report.problems:
        console().print()
        where = f"{problem.service} {problem.sequence}".strip() if problem.sequence else problem.service
        console().print(Text.assemble((problem.kind.replace("_", " "), "bold red"), f"  {where}  {problem.message}"))
        console().print(f"  expected  {problem.expected}\n  found     {problem.found}", soft_wrap=True)
    if report.count > len(report.problems):
        console().print(f"… and {report.count - len(report.problems)} more")
    for note in report.notes:
        console(stderr=True).print(f"Note: {note}", style="dim")
    checked = sum(line["checked"] for line in report.services)
    told = "nothing altered, removed or put in" if report.intact else f"{report.count} problems"
    console().print(f"\n{checked} events checked: {told}")


def timeline(
    entity: Annotated[str, typer.Argument(metavar="ID", help="Id or name of a machine, cluster, reservation, ….")],
    full: Annotated[bool, typer.Option("--full", help="With each event's data (--json).")] = False,
    limit: Limit = 1000,
    as_json: Json = False,
) -> None:
    """Show the life of one thing: every event that mentions it, oldest first. (operators)

    \b
      slipway timeline fra1-r1-u01
    """
    show_list(lambda client: client.events.timeline(entity, full=full), TIMELINE_COLUMNS, as_json=as_json, limit=limit)


def add_commands(app: typer.Typer) -> None:
    """`slipway timeline`."""
    app.command("timeline")(timeline)
