"""`slipway drift`: where the systems disagree about a machine, what it means, and one command that repairs it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from slipway.cli import progress
from slipway.cli.output import Column, ago, console, exact, print_facts, print_json, print_table, state
from slipway.cli.session import (
    DEFAULT_LIMIT,
    Json,
    Limit,
    Sort,
    Wait,
    Yes,
    confirm,
    group,
    run,
    show_document,
    show_list,
    show_one,
)
from slipway.client import Client
from slipway.doors import Door
from slipway.models import Document, Operation, Started, Violation

drift = group("drift", "Where NetBox, Ironic, Placement and Slipway disagree, and how to repair it. (operators)")
GROUPS = (drift,)

Id = Annotated[str, typer.Argument(metavar="ID", help="The violation's id, see 'drift list'.")]
COLUMNS = (
    Column[Violation]("ID", lambda v: v.id, is_id=True),
    Column[Violation]("SEVERITY", lambda v: state(v.severity)),
    Column[Violation]("MACHINE", lambda v: v.name),
    Column[Violation]("SITE", lambda v: v.site, spare=True),
    Column[Violation]("INVARIANT", lambda v: v.invariant),
    Column[Violation]("FOR", lambda v: ago(v.first_seen_at), right=True),
    Column[Violation]("SHOULD BE", lambda v: v.ours, grows=True),
    Column[Violation]("IS", lambda v: v.theirs, grows=True),
)


@drift.command("list")
def list_drift(
    cleared: Annotated[bool, typer.Option("--cleared", help="Those that are over, too.")] = False,
    site: Annotated[list[str] | None, typer.Option("--site", help="At this site; may be repeated.")] = None,
    invariant: Annotated[list[str] | None, typer.Option("--invariant", help="Of this invariant.")] = None,
    severity: Annotated[list[str] | None, typer.Option("--severity", help="critical, warning.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Text in the name or in what is.")] = None,
    sort: Sort = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List where the systems disagree: what should be, what is, and since when.

    \b
      slipway drift list
      slipway drift list --severity critical --site fra1
    """
    states = ["OPEN", "CLEARED"] if cleared else None
    show_list(
        lambda client: client.violations.pages(
            state=states, site=site, invariant=invariant, severity=severity, q=search, sort=sort
        ),
        COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="The systems agree, as far as they were heard. What could not be judged: slipway drift invariants",
    )


@drift.command("show")
def show_drift(violation: Id, as_json: Json = False) -> None:
    """Show one: both values, what it means, and what its repair would do.

    \b
      slipway drift show 5e9b…
    """
    show_one(lambda client: client.violations.get(violation), _render, as_json=as_json)


def _render(violation: Violation) -> None:
    print_facts(
        [
            ("Machine", Text(violation.name, "bold")),
            ("Id", violation.id),
            ("Site", violation.site),
            ("Must be true", violation.title),
            ("Should be", violation.ours),
            ("Is", Text(violation.theirs, "red")),
            ("Severity", state(violation.severity)),
            ("What it means", violation.explanation),
            ("Seen first", exact(violation.first_seen_at)),
            ("Told", exact(violation.opened_at)),
            ("Over", exact(violation.cleared_at)),
            ("Repair", violation.does if not violation.cleared_at else None),
            ("Command", violation.command if not violation.cleared_at else None),
            ("Repaired by", violation.repaired_by),
            ("Operation", violation.repair_operation_id),
        ]
    )


@drift.command("repair")
def repair(
    violation: Id,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do, or why it would not.")] = False,
    yes: Yes = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Repair it by the normal workflow; --dry-run says what that is and whether it would be refused.

    \b
      slipway drift repair 5e9b… --dry-run
      slipway drift repair 5e9b… --wait
    """
    if not dry_run and not yes:
        planned = run(lambda client: client.violations.repair(violation, dry_run=True))
        confirm(f"{planned.raw['name']}: {planned.raw['does']}. Go on?", yes=False)

    async def start(client: Client) -> tuple[Document, Operation | None]:
        begun = await client.violations.repair(violation, dry_run=dry_run)
        operation_id = begun.raw.get("operation_id")
        if not wait or not operation_id:
            return begun, None
        return begun, await progress.watch(client, operation_id, door=Door.OPERATOR, quiet=as_json)

    begun, operation = run(start)
    if operation is not None:
        progress.end(Started.of(begun.raw), operation, as_json=as_json)
    elif as_json:
        print_json(begun.raw)
    elif dry_run:
        console().print(f"It {begun.raw['does']}. Nothing was done.")
    else:
        told = begun.raw.get("operation_id")
        console().print(f"Begun: it {begun.raw['does']}." + (f" Operation {told}" if told else ""))


INVARIANT_COLUMNS = (
    Column[Any]("INVARIANT", lambda row: row["id"]),
    Column[Any]("SEVERITY", lambda row: state(row["severity"])),
    Column[Any]("SITE", lambda row: row["site"]),
    Column[Any]("OPEN", lambda row: str(row["open"]), right=True),
    Column[Any]("JUDGED", lambda row: str(row["judged"]), right=True),
    Column[Any]("NOT KNOWN", lambda row: str(row["unknown"]), right=True),
    Column[Any]("WHY NOT", lambda row: row["why_unknown"], grows=True),
    Column[Any]("MUST BE TRUE", lambda row: row["title"], grows=True, spare=True),
)


@drift.command("invariants")
def invariants(as_json: Json = False) -> None:
    """List what must be true, by site: how many machines were judged, and how many could not be, and why."""

    def render(document: Any) -> None:
        nowhere = {"site": "", "open": 0, "judged": 0, "unknown": 0, "why_unknown": "never looked at"}
        rows = [{**row, **site} for row in document["items"] for site in row["sites"] or [nowhere]]
        print_table(INVARIANT_COLUMNS, rows)

    show_document(lambda client: client.violations.invariants(), render, as_json=as_json)
