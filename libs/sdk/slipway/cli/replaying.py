"""`slipway events replay | replays`: events once more, onto a subject, into a file or into a projection. (operators)"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from slipway.cli.dead_letters import SERVICES
from slipway.cli.exits import Exit
from slipway.cli.exporting import bar, write_file
from slipway.cli.instants import Since, Until
from slipway.cli.output import Column, console, print_json, print_table
from slipway.cli.session import Json, confirm, run, usage_error
from slipway.cli.upkeep import REBUILT_COLUMNS, rebuilding
from slipway.client import Client
from slipway.models import Document

WATCH_SECONDS = 0.5
COLUMNS = (
    Column[Mapping[str, Any]]("SERVICE", lambda r: str(r.get("service"))),
    Column[Mapping[str, Any]]("ID", lambda r: str(r.get("id")), is_id=True),
    Column[Mapping[str, Any]]("STATE", lambda r: Text(str(r.get("state")))),
    Column[Mapping[str, Any]]("DONE", lambda r: f"{float(r.get('progress') or 0):.0%}", right=True),
    Column[Mapping[str, Any]]("PUBLISHED", lambda r: str(r.get("published")), right=True),
    Column[Mapping[str, Any]]("SUBJECT", lambda r: str(r.get("subject"))),
    Column[Mapping[str, Any]]("STARTED", lambda r: str(r.get("started_at"))[:19], spare=True),
)
Service = Annotated[list[str] | None, typer.Option("--service", help="Events of this service; all when left out.")]


def replay(
    to_subject: Annotated[str | None, typer.Option("--to-subject", help="Publish on replay.NAME.>")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write into this file (JSON Lines).")] = None,
    to_projection: Annotated[
        str | None, typer.Option("--to-projection", help="Build SERVICE.NAME anew and swap it in.")
    ] = None,
    service: Service = None,
    first: Annotated[int | None, typer.Option("--from-sequence", min=1, help="From this number on.")] = None,
    last: Annotated[int | None, typer.Option("--to-sequence", min=1, help="Up to this number.")] = None,
    since: Since = None,
    until: Until = None,
    entity: Annotated[list[str] | None, typer.Option("--entity", help="About this thing (id).")] = None,
    type_: Annotated[list[str] | None, typer.Option("--type", help="CloudEvents type, slipway.….")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it has ended.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Replay events: onto subjects of their own, into a file, or into a projection. Services never act on a replay.

    On a subject each event comes as it was published, as replay.NAME.<its own subject>, and stays for a day; readers
    take it from the stream REPLAY. A replay goes on after a restart of its service; Ctrl-C only stops looking.
    \b
      slipway events replay --to-subject search --since 2026-11-30T10:00Z
      slipway events replay --to-subject debug --service inventory --entity m-1 --from-sequence 4000
      slipway events replay --out day.jsonl --since 2026-11-30 --until 2026-12-01
      slipway events replay --to-projection reservation.pool
    """
    if sum(target is not None for target in (to_subject, out, to_projection)) != 1:
        usage_error("Where to?", "Give one of --to-subject NAME, --out FILE and --to-projection SERVICE.NAME.")
    times = {"since": _text(since), "until": _text(until)}
    chosen = {"entity": entity, "type": type_}
    if to_projection is not None:
        if any((service, first, last, since, until, entity, type_)):
            usage_error("A projection needs all its events.", "Leave the filters out.")
        _into_projection(to_projection, yes=yes, as_json=as_json)
    elif out is not None:
        if first is not None or last is not None:
            usage_error("A file is filled by time.", "Use --since and --until.")
        filters = {"service": service, "entity_id": entity, "type": type_, "from": times["since"], "to": times["until"]}
        given = {name: value for name, value in filters.items() if value}
        manifest = run(lambda client: write_file(client, out, "jsonl", given, None))
        if as_json:
            print_json(manifest)
        else:
            console(stderr=True).print(f"{manifest['events']} events written to {out}")
    elif to_subject is not None:
        wanted = {"first": first, "last": last, **times, **chosen}
        _onto_subject(to_subject, service or list(SERVICES), wanted, wait=wait, as_json=as_json)


def _onto_subject(name: str, services: list[str], wanted: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    async def begin(client: Client) -> list[dict[str, Any]]:
        running = {each: await client.services.start_replay(each, name, **wanted) for each in services}
        with bar() as shown:
            tasks = {each: shown.add_task(each, total=1.0) for each in running}
            while wait and any(found.raw["state"] == "running" for found in running.values()):
                await asyncio.sleep(WATCH_SECONDS)
                running = {each: await client.services.replay(each, found.raw["id"]) for each, found in running.items()}
                for each, found in running.items():
                    shown.update(tasks[each], completed=float(found.raw["progress"]))
        return [{"service": each, **found.raw} for each, found in running.items()]

    rows = run(begin)
    if as_json:
        print_json({"items": rows, "next_cursor": None})
    else:
        print_table(COLUMNS, rows, "Nothing to replay.")
        console().print(f"Read it from the stream REPLAY, subject replay.{name}.>")
    if any(row["state"] in ("failed", "cancelled") for row in rows):
        raise typer.Exit(Exit.FAILED)


def _into_projection(target: str, *, yes: bool, as_json: bool) -> None:
    service, _, name = target.partition(".")
    if not service or not name:
        usage_error(f"{target!r} names no projection.", "Give SERVICE.NAME, as `slipway projections list` has them.")
    confirm(f"Replace the rows of {target} that differ from its events?", yes=yes)

    async def work(client: Client) -> dict[str, Any]:
        with rebuilding() as shown:
            task = shown.add_task(target, total=1.0)

            def progressed(document: Document) -> None:
                shown.update(task, completed=float(document.raw.get("progress") or 0.0))

            done = await client.services.rebuild(service, name, swap=True, on_progress=progressed)
        return {"service": service, **done.raw}

    result = run(work)
    if as_json:
        print_json(result)
    else:
        print_table(REBUILT_COLUMNS, [result], "")
    if result.get("state") != "done":
        raise typer.Exit(Exit.FAILED)


def replays(
    service: Service = None,
    cancel: Annotated[
        str | None, typer.Option("--cancel", metavar="ID", help="Stop this one; needs --service.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List replays, newest first, or stop one.

    \b
      slipway events replays
      slipway events replays --service inventory --cancel rpl-0190…
    """
    if cancel is not None:
        if service is None or len(service) != 1:
            usage_error("Whose replay?", "Name its service with --service.")
        stopped = run(lambda client: client.services.cancel_replay(service[0], cancel))
        if as_json:
            print_json(stopped.raw)
        else:
            console().print(f"Stopped at {stopped.raw['position']} of {stopped.raw['last']}.")
        return

    async def fetch(client: Client) -> list[dict[str, Any]]:
        return [
            {"service": each, **item.raw}
            for each in service or SERVICES
            for item in (await client.services.replays(each)).items
        ]

    rows = sorted(run(fetch), key=lambda row: str(row["started_at"]), reverse=True)
    if as_json:
        print_json({"items": rows, "next_cursor": None})
    else:
        print_table(COLUMNS, rows, "No replays.")


def _text(when: datetime | None) -> str | None:
    return when.isoformat() if when is not None else None


def add_commands(events: typer.Typer) -> None:
    """`slipway events replay` and `slipway events replays`."""
    events.command("replay")(replay)
    events.command("replays")(replays)
