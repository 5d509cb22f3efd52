"""`slipway events export`: events into a file that can be checked alone, going on where it was broken off."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from slipway.cli.instants import Since, Until
from slipway.cli.output import console, print_json
from slipway.cli.session import AskedDoor, Json, run, usage_error
from slipway.client import Client
from slipway.doors import Door
from slipway.errors import SlipwayError
from slipway.exports import Draft, Kind, check_format

FORMATS: Mapping[str, Kind] = {"jsonl": "jsonl", "parquet": "parquet"}
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write here instead of to standard output.")]
Format = Annotated[
    str | None, typer.Option("--format", help="jsonl or parquet; by default what the file's name ends with.")
]


def export(
    out: Out = None,
    format_: Format = None,
    service: Annotated[list[str] | None, typer.Option("--service", help="Published by this service.")] = None,
    type_: Annotated[list[str] | None, typer.Option("--type", help="CloudEvents type, slipway.….")] = None,
    entity: Annotated[list[str] | None, typer.Option("--entity", help="About this thing (id).")] = None,
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Of this tenant.")] = None,
    actor: Annotated[list[str] | None, typer.Option("--actor", help="Caused by this person or part.")] = None,
    correlation: Annotated[list[str] | None, typer.Option("--correlation", help="Of this correlation id.")] = None,
    since: Since = None,
    until: Until = None,
    restart: Annotated[bool, typer.Option("--restart", help="From the start, not where it was broken off.")] = False,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Export events, one CloudEvent a line, as they were published; tenants get their own.

    A file gets a manifest beside it, so that it can be checked alone (slipway events verify --file). The same command
    again goes on where it was broken off. Filters may be repeated; all must match.
    \b
      slipway events export --out events.jsonl
      slipway events export --out may.parquet --since 2026-05-01 --until 2026-06-01
      slipway events export --service cost | jq -r .type | sort | uniq -c
    """
    asked: dict[str, Any] = {
        "service": sorted(service or ()),
        "type": sorted(type_ or ()),
        "entity_id": sorted(entity or ()),
        "tenant": sorted(tenant or ()),
        "actor": sorted(actor or ()),
        "correlation_id": sorted(correlation or ()),
        "from": since.isoformat() if since else None,
        "to": until.isoformat() if until else None,
    }
    filters = {name: value for name, value in asked.items() if value}
    if out is None:
        if format_ not in (None, "jsonl"):
            usage_error("Only JSON Lines go to standard output.", "Name a file with --out.")
        run(lambda client: _print_lines(client, filters, door))
        return
    kind = FORMATS.get(format_ or ("parquet" if out.suffix == ".parquet" else "jsonl"))
    if kind is None:
        usage_error(f"{format_!r} is no format of an export.", "Use jsonl or parquet.")
    manifest = run(lambda client: write_file(client, out, kind, filters, door, restart=restart))
    if as_json:
        print_json(manifest)
    else:
        console(stderr=True).print(f"{manifest['events']} events written to {out}")


async def _print_lines(client: Client, filters: Mapping[str, Any], door: Door | None) -> None:
    async for lines, _ in client.events.export(door=door, **filters):
        sys.stdout.writelines(f"{line}\n" for line in lines)


async def write_file(
    client: Client, out: Path, kind: Kind, filters: Mapping[str, Any], door: Door | None, *, restart: bool = False
) -> dict[str, Any]:
    """Write the export and its manifest; returns the manifest."""
    check_format(kind)
    chosen = client.events.door(door)
    draft = Draft(out, {**filters, "door": chosen.value})
    err = console(stderr=True)
    try:
        if restart:
            draft.note.unlink(missing_ok=True)
        if draft.resume():
            err.print(f"Going on after {draft.events} events that an earlier run has written.", style="dim")
        else:
            draft.begin(await _known(client, chosen))
        with _progress() as shown:
            await _fill(client, draft, filters, chosen, shown)
        return draft.finish(kind, await _removals(client, chosen))
    except OSError as error:
        raise SlipwayError(
            f"{error.filename or out} can't be written: {error.strerror}; {draft.events} events are in {draft.part}.",
            "Make room and run the same command again; it goes on from there.",
        ) from None


async def _fill(
    client: Client, draft: Draft, filters: Mapping[str, Any], door: Door, shown: tuple[Progress, TaskID]
) -> None:
    progress, task = shown
    progress.update(task, completed=draft.events)
    if draft.cursor is None and draft.events:
        return  # It was broken off behind the last page.
    async for lines, cursor in client.events.export(door=door, cursor=draft.cursor, **filters):
        draft.add(lines, cursor)
        place = (cursor or "").replace(":", " ")
        progress.update(task, completed=draft.events, description=f"events written  {place}")


async def _known(client: Client, door: Door) -> dict[str, Any]:
    """What the file must reach up to. Tenants get the keys only: a chain is of all tenants."""
    began = datetime.now(UTC).isoformat()
    keys = (await client.audit.keys(door=door))["keys"]
    if door is Door.TENANT:
        return {"began_at": began, "keys": keys, "checkpoints": []}
    checkpoints = [item.raw async for page in client.audit.checkpoints() for item in page.items]
    return {"began_at": began, "keys": keys, "checkpoints": checkpoints}


async def _removals(client: Client, door: Door) -> list[Mapping[str, Any]]:
    """Asked for at the end: what retention took meanwhile is not missed."""
    if door is Door.TENANT:
        return []
    return [item.raw async for page in client.audit.removals() for item in page.items]


class _progress:
    """A spinner with a count on a terminal, nothing elsewhere."""

    def __init__(self) -> None:
        err = console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.completed:>9,.0f} {task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err, disable=not err.is_terminal, transient=True)

    def __enter__(self) -> tuple[Progress, TaskID]:
        self._progress.start()
        return self._progress, self._progress.add_task("events written", total=None)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def bar() -> Progress:
    """A bar for work whose end is known."""
    err = console(stderr=True)
    columns = (TextColumn("{task.description:<14}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    return Progress(*columns, TimeElapsedColumn(), console=err, disable=not err.is_terminal, transient=True)
