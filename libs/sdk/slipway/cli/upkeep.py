"""`slipway sources | projections`: how the system itself is doing. (operators)"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from slipway.cli.exits import Exit
from slipway.cli.output import Column, console, plain_table, print_json, print_table
from slipway.cli.session import Json, Yes, confirm, group, run, show_list, usage_error
from slipway.client import Client
from slipway.models import Document

sources = group("sources", "Sources of truth: how old is what we know? (operators)")
projections = group("projections", "Copies built from events: list, rebuild and compare. (operators)")
GROUPS = (sources, projections)

SERVICES = ("inventory", "reservation", "provisioning", "validation", "cost", "identity", "audit", "subscription")
SOURCE_COLUMNS = (
    Column[Document]("SOURCE", lambda d: str(d.raw.get("name", ""))),
    Column[Document](
        "STATE", lambda d: Text("healthy", "green") if d.raw.get("healthy") else Text("failing", "bold red")
    ),
    Column[Document]("LAST GOOD DATA", lambda d: str(d.raw.get("last_good_at") or "never")),
    Column[Document]("DEVICES", lambda d: str(d.raw.get("devices_seen", "")), right=True),
    Column[Document]("PROBLEMS", lambda d: str(len(d.raw.get("problems") or ())), right=True),
    Column[Document]("LAST ERROR", lambda d: str(d.raw.get("last_error") or ""), grows=True),
)


@sources.command("list")
def list_sources(as_json: Json = False) -> None:
    """List sources of truth: the age of the last good data, and the last error."""
    show_list(lambda client: client.sources.pages(), SOURCE_COLUMNS, as_json=as_json)


@sources.command("read")
def read_source(as_json: Json = False) -> None:
    """Have NetBox read now instead of at its next turn."""
    document = run(lambda client: client.sources.read_now())
    if as_json:
        print_json(document.raw)
    else:
        console().print("NetBox is being read. See: slipway sources list")


@projections.command("list")
def list_projections(
    service: Annotated[list[str] | None, typer.Option("--service", help="Of this service; all when left out.")] = None,
    as_json: Json = False,
) -> None:
    """List projections and how far each has read its streams."""

    async def fetch(client: Client) -> list[Any]:
        found: list[Any] = []
        for name in service or SERVICES:
            found += (await client.services.projections(name)).raw.get("items") or ()
        return found

    items = run(fetch)
    if as_json:
        print_json({"items": items, "next_cursor": None})
    else:
        plain_table(items)


@projections.command("rebuild")
def rebuild(
    service: Annotated[str | None, typer.Argument(help="Service; with --all, left out for all services.")] = None,
    name: Annotated[str | None, typer.Argument(help="Projection, see 'projections list'.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every projection (of the service).")] = False,
    swap: Annotated[
        bool, typer.Option("--swap", help="When it differs, put the new one in the live one's place, in one step.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Build a projection anew from its stream, beside the live one, and compare their digests.

    It goes on when this command or the service is stopped; run it again to see how far it is. Ends with 1 when one
    differs (and was not swapped).
    \b
      slipway projections rebuild reservation pool
      slipway projections rebuild reservation pool --swap
      slipway projections rebuild --all
    """
    if not everything and (service is None or name is None):
        usage_error("Which projection?", "Give a service and a projection, or --all.")
    if swap:
        confirm("Replace rows of the live projection that differ from its events?", yes=yes)

    async def one_or_all(client: Client) -> list[dict[str, Any]]:
        wanted = await _wanted(client, service, None if everything else name)
        found = []
        with rebuilding() as bar:
            for owner, each in wanted:
                task = bar.add_task(f"{owner}.{each}", total=1.0)

                def progressed(document: Document, task: Any = task) -> None:
                    bar.update(task, completed=float(document.raw.get("progress") or 0.0))

                done = await client.services.rebuild(owner, each, swap=swap, on_progress=progressed)
                found.append({"service": owner, **done.raw})
        return found

    results = run(one_or_all)
    if as_json:
        print_json({"items": results} if everything else results[0])
    else:
        print_table(REBUILT_COLUMNS, results, "There are no projections.")
    if not all(result.get("equal") or result.get("changes") for result in results):
        raise typer.Exit(Exit.FAILED)


def rebuilding() -> RichProgress:
    """A bar on standard error: on a terminal alone, gone when it is done."""
    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
        disable=not console(stderr=True).is_terminal,
    )


async def _wanted(client: Client, service: str | None, name: str | None) -> list[tuple[str, str]]:
    if service is not None and name is not None:
        return [(service, name)]
    found: dict[tuple[str, str], None] = {}
    for owner in (service,) if service else SERVICES:
        for item in (await client.services.projections(owner)).items:
            found[(owner, str(item.raw["projection"]))] = None
    return list(found)


def _verdict(result: dict[str, Any]) -> Text:
    if result.get("state") == "failed":
        return Text(f"FAILED: {result.get('error')}", "bold red")
    if result.get("changes"):
        rows = sum(each["removed"] + each["added"] for each in result["changes"].values())
        return Text(f"different, swapped ({rows} row changes)", "yellow")
    return Text("equal", "green") if result.get("equal") else Text("DIFFERENT", "bold red")


REBUILT_COLUMNS = (
    Column[dict[str, Any]]("SERVICE", lambda r: str(r.get("service"))),
    Column[dict[str, Any]]("PROJECTION", lambda r: str(r.get("projection"))),
    Column[dict[str, Any]]("EVENTS", lambda r: str(r.get("events")), right=True),
    Column[dict[str, Any]]("SECONDS", lambda r: str(r.get("seconds")), right=True),
    Column[dict[str, Any]]("DIGESTS", lambda r: _verdict(r)),
    Column[dict[str, Any]]("DIGEST", lambda r: str(r.get("digest_live", ""))[:16]),
)
