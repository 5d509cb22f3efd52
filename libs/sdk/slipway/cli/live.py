"""`slipway events tail`: what happens, while it happens."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from slipway.cli.history import Entity, Service, Type
from slipway.cli.instants import Since
from slipway.cli.output import console
from slipway.cli.session import AskedDoor, run, usage_error
from slipway.client import Client
from slipway.live import Item, Live, Missed, Reconnecting

GAVE_UP = 8  # Nobody answered for about a minute.


def tail(
    after: Annotated[
        str | None, typer.Option("--after", help="Go on behind this id; `start`: everything that is still kept.")
    ] = None,
    since: Since = None,
    entity: Entity = None,
    service: Service = None,
    type_: Type = None,
    site: Annotated[list[str] | None, typer.Option("--site", help="At this site.")] = None,
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Of this tenant.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many events.")] = None,
    door: AskedDoor = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='One JSON line an event: {"id": …, "event": …}; gaps are lines, too.')
    ] = False,
) -> None:
    """Follow events live, until Ctrl-C. A broken connection goes on by itself behind the last event.

    With --json every line has an id: give the last one that you have dealt with to --after, and nothing is missed.
    \b
      slipway events tail --service provisioning
      slipway events tail --json --after start | jq -r .event.type
      slipway events tail --json --after "$LAST_ID"
    """
    if after is not None and since is not None:
        usage_error("--after and --since both say where to begin.", "Give one of them.")
    show = _show_json if as_json else _show

    async def follow(client: Client) -> None:
        left = count
        tailing = client.events.tail(
            door=door,
            after=after,
            patience=GAVE_UP,
            since=since,
            entity_id=entity,
            service=service,
            type=type_,
            site=site,
            tenant=tenant,
        )
        async with aclosing(tailing) as items:
            async for item in items:
                show(item)
                if left is not None and isinstance(item, Live):
                    left -= 1
                    if not left:
                        return

    run(follow)


def _show(item: Item) -> None:
    match item:
        case Live(event=event):
            console().print(_line(event.time, event.type, event.subject, event.actor), soft_wrap=True)
        case Missed():
            _note(f"{item.of}: events {item.first} to {item.last} are missing here; see: slipway events export")
        case Reconnecting():
            _note(f"{item.detail} Going on in a moment.")


def _line(when: datetime | None, type_: str, subject: str, actor: str) -> Text:
    clock = when.strftime("%H:%M:%S.%f")[:-3] if when else ""
    return Text.assemble(
        (clock, "dim"), "  ", (f"{type_.removeprefix('slipway.'):<40}", "bold"), f"  {subject:<40}  ", (actor, "dim")
    )


def _note(text: str) -> None:
    out: Console = console(stderr=True)
    out.print(Text(text, "yellow"), soft_wrap=True)


def _show_json(item: Item) -> None:
    match item:
        case Live():
            _write({"id": item.id, "event": item.event.raw})
        case Missed():
            _write({"id": item.id, "gap": {"of": item.of, "first": item.first, "last": item.last}})
        case Reconnecting():
            _note(f"{item.detail} Going on in a moment.")


def _write(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()  # Whoever reads a pipe wants it now.


def add_commands(events: typer.Typer) -> None:
    """`slipway events tail`."""
    events.command("tail")(tail)
