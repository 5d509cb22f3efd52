"""`slipway events | timeline | audit`: what happened, in order, and the proof that nothing is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from slipway.cli.exits import Exit
from slipway.cli.money import Since, Until, aware
from slipway.cli.output import Column, console, exact, plain_table
from slipway.cli.session import AskedDoor, Json, Limit, group, run, show_document, show_list
from slipway.client import Client
from slipway.models import Event, Page

events = group("events", "Everything that happened: list, export.")
audit = group("audit", "Proofs: no gap, nothing altered. (operators)")
GROUPS = (events, audit)

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
            correlation_id=correlation,
            from_=aware(since),
            to=aware(until),
            sort="-time" if newest else None,
        ),
        COLUMNS,
        as_json=as_json,
        limit=limit,
    )


@events.command("export")
def export(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write here instead of to standard output.")] = None,
    service: Service = None,
    type_: Type = None,
    since: Since = None,
    until: Until = None,
    door: AskedDoor = None,
) -> None:
    """Export events as JSON lines, one CloudEvent a line, exactly as they were published.

    Operators get every service's events by sequence, tenants their own by time.
    \b
      slipway events export --out events.jsonl
      slipway events export --service cost | jq -r .type | sort | uniq -c
    """

    async def write(client: Client) -> int:
        pages = client.events.export(door=door, service=service, type=type_, from_=aware(since), to=aware(until))
        if out is None:
            return await _write_lines(pages, sys.stdout)
        draft = out.with_name(f".{out.name}.part")
        with draft.open("w", encoding="utf-8") as file:
            count = await _write_lines(pages, file)
        draft.replace(out)  # A half-written export would look like a whole one.
        return count

    count = run(write)
    if out is not None:
        console(stderr=True).print(f"{count} events written to {out}")


async def _write_lines(pages: AsyncIterator[Page[Event]], file: Any) -> int:
    count = 0
    async for page in pages:
        for event in page.items:
            file.write(json.dumps(event.raw, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    return count


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


@audit.command("gaps")
def gaps(as_json: Json = False) -> None:
    """Look for missing sequence numbers and entity versions. Ends with 1 when there is a gap."""
    document: dict[str, Any] = {}

    async def fetch(client: Client) -> Any:
        document.update(await client.events.gaps())
        return document

    show_document(fetch, _render_gaps, as_json=as_json)
    if document.get("items") or document.get("entities"):
        raise typer.Exit(Exit.FAILED)


def _render_gaps(document: dict[str, Any]) -> None:
    plain_table(document.get("services") or ())
    missing = [*(document.get("items") or ()), *(document.get("entities") or ())]
    if missing:
        console().print()
        plain_table(missing)
    events_kept = document.get("events")
    console().print(f"{events_kept} events, {len(missing)} gaps" if missing else f"{events_kept} events, no gap")


@audit.command("chain")
def chain(as_json: Json = False) -> None:
    """Recompute every event's digest. Ends with 1 when one is not what was kept."""
    document: dict[str, Any] = {}

    async def fetch(client: Client) -> Any:
        document.update(await client.events.chain())
        return document

    show_document(fetch, lambda found: plain_table(found.get("items") or ()), as_json=as_json)
    if not document.get("intact"):
        raise typer.Exit(Exit.FAILED)


def add_commands(app: typer.Typer) -> None:
    """`slipway timeline`."""
    app.command("timeline")(timeline)
