"""`slipway dead-letters`: messages that a service could not handle, and what to do about them. (operators)"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from slipway.cli.money import aware
from slipway.cli.output import Column, console, plain_table, print_facts, print_json, print_table
from slipway.cli.session import Json, Limit, Yes, confirm, group, run, usage_error
from slipway.client import Client
from slipway.models import Document

dead_letters = group("dead-letters", "Messages that a service could not handle. (operators)")
GROUPS = (dead_letters,)

SERVICES = ("inventory", "reservation", "provisioning", "validation", "cost", "identity", "audit", "subscription")
Service = Annotated[str, typer.Argument(help=f"One of {', '.join(SERVICES)}.")]
Letter = Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter.")]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the letter's history.")]
Cause = Annotated[list[str] | None, typer.Option("--cause", help="Of this cause: handler_failed, unreadable, ….")]
Type = Annotated[list[str] | None, typer.Option("--type", help="CloudEvents type, slipway.command.….")]
Key = Annotated[list[str] | None, typer.Option("--key", help="About this thing (id).")]
Error = Annotated[str | None, typer.Option("--error", help="Whose error contains this text.")]
Since = Annotated[datetime | None, typer.Option("--since", help="Set aside at or after this time (UTC).")]
Before = Annotated[datetime | None, typer.Option("--before", help="Set aside before this time (UTC).")]

COLUMNS = (
    Column[dict[str, Any]]("SERVICE", lambda r: str(r.get("service"))),
    Column[dict[str, Any]]("ID", lambda r: str(r.get("id"))),
    Column[dict[str, Any]]("CAUSE", lambda r: Text(str(r.get("cause") or ""), "yellow")),
    Column[dict[str, Any]]("MESSAGE", lambda r: str(r.get("type") or r.get("subject") or "").removeprefix("slipway.")),
    Column[dict[str, Any]]("ABOUT", lambda r: str(r.get("key") or ""), is_id=True),
    Column[dict[str, Any]]("WAITING", lambda r: str(r.get("waiting_behind", "")), right=True),
    Column[dict[str, Any]]("SINCE", lambda r: str(r.get("dead_at") or "")[:19], spare=True),
    Column[dict[str, Any]]("ERROR", lambda r: str(r.get("error") or ""), grows=True),
)


@dead_letters.command("list")
def list_dead_letters(
    service: Annotated[list[str] | None, typer.Option("--service", help="Of this service; all when left out.")] = None,
    cause: Cause = None,
    type_: Type = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    limit: Limit = 200,
    as_json: Json = False,
) -> None:
    """List messages that a service gave up on. WAITING: how many later messages about the same thing it holds up.

    \b
      slipway dead-letters list
      slipway dead-letters list --service inventory --cause handler_failed
    """

    async def fetch(client: Client) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for owner in service or SERVICES:
            pages = client.services.dead_letters(
                owner, cause=cause, type=type_, key=key, error=error, since=aware(since), before=aware(before)
            )
            async for page in pages:
                found += [{"service": owner, **item.raw} for item in page.items]
                if len(found) >= limit:
                    return found[:limit]
        return found

    items = run(fetch)
    if as_json:
        print_json({"items": items, "next_cursor": None})
    else:
        print_table(COLUMNS, items, "No dead letters.")


@dead_letters.command("show")
def show(service: Service, dead_letter: Letter, as_json: Json = False) -> None:
    """Show a dead letter: the message, its error, what waits behind it, and what was done about it."""
    document = run(lambda client: client.services.dead_letter(service, dead_letter)).raw
    if as_json:
        print_json(document)
        return
    fault = document.get("as_it_is")
    verdict = f"can't succeed: {fault['message']}" if fault else "is well formed; handled again when its cause is gone"
    names = ("cause", "error", "attempts", "type", "subject", "key", "message_id", "received_at", "dead_at")
    print_facts([(name, document.get(name)) for name in names] + [("as it is", verdict)])
    for title, rows in (("Waiting behind it", document.get("waiting")), ("Done so far", document.get("history"))):
        if rows:
            console().print(Text(f"\n{title}", "bold"))
            plain_table(rows)
    console().print(Text("\nMessage", "bold"))
    console().print_json(json.dumps(document.get("original")))


@dead_letters.command("redrive")
def redrive(
    service: Service,
    dead_letter: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id; without it, all that match.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Why; kept in the letter's history.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="The message's data instead of the original's: JSON, @FILE or - .")
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", help="The whole message instead of the original: JSON, @FILE or - .")
    ] = None,
    cause: Cause = None,
    type_: Type = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter of the service.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which would be handled again.")] = False,
    as_json: Json = False,
) -> None:
    """Have dead letters handled again, after their cause was removed: one, or all that match.

    \b
      slipway dead-letters redrive inventory 4711
      slipway dead-letters redrive inventory 4711 --data '{"machine_id": "m-1"}' --reason "wrong id"
      slipway dead-letters redrive inventory --error "no route to host" --dry-run
    """
    filters = {"cause": cause, "type": type_, "key": key, "error": error}
    times = {"since": _stamp(since), "before": _stamp(before)}
    if dead_letter is not None:
        if any(filters.values()) or any(times.values()) or everything or dry_run:
            usage_error("An id and a filter.", "Give one id, or filters for many.")
        body = {"data": _document(data, "--data"), "message": _document(message, "--message")}
        document = run(lambda client: client.services.redrive(service, dead_letter, reason=reason, **body))
        if as_json:
            print_json(document.raw)
        else:
            behind = document.raw.get("released") or 0
            console().print(f"{service} handles {dead_letter} again; {behind} waiting behind it follow.")
        return
    if data is not None or message is not None:
        usage_error("Which dead letter?", "An edit is about one: give its id.")
    if not (any(filters.values()) or any(times.values()) or everything):
        usage_error("Which dead letters?", "Give an id, a filter (--cause, --type, --key, --error, …), or --all.")
    wanted = {**filters, **times, "reason": reason, "all": everything or None, "dry_run": dry_run or None}
    _show_many(service, run(lambda client: client.services.redrive_many(service, **wanted)), as_json=as_json)


def _show_many(service: str, document: Document, *, as_json: bool) -> None:
    if as_json:
        print_json(document.raw)
        return
    rows = [{"service": service, **item} for item in document.raw.get("items") or ()]
    print_table(COLUMNS, rows, "Nothing matches.")
    count = document.raw.get("redriven")
    console().print(f"{count} would be handled again." if document.raw.get("dry_run") else f"{count} handled again.")
    refused = document.raw.get("not_redriven") or ()
    if refused:
        console().print(f"{len(refused)} can't succeed as they are; edit or drop them:")
        plain_table(refused)
    if document.raw.get("more"):
        console().print("There are more: run the command again.")


@dead_letters.command("drop")
def drop(service: Service, dead_letter: Letter, reason: Reason, yes: Yes = False, as_json: Json = False) -> None:
    """Give a dead letter up: it is never handled, and what waits behind it goes on. It stays in the history.

    \b
      slipway dead-letters drop inventory 4711 --reason "the machine was sold"
    """
    confirm(f"Give up message {dead_letter} of {service} for good?", yes=yes)
    document = run(lambda client: client.services.drop(service, dead_letter, reason))
    if as_json:
        print_json(document.raw)
    else:
        console().print(f"{dead_letter} is dropped; {document.raw.get('released') or 0} waiting behind it go on.")


def _stamp(when: datetime | None) -> str | None:
    known = aware(when)
    return known.isoformat() if known is not None else None


def _document(given: str | None, option: str) -> dict[str, Any] | None:
    """The JSON object of an option: as text, from @FILE, or from standard input (-)."""
    if given is None:
        return None
    try:
        if given == "-":
            text = sys.stdin.read()
        else:
            text = Path(given[1:]).read_text(encoding="utf-8") if given.startswith("@") else given
        found = json.loads(text)
    except (OSError, ValueError) as error:
        usage_error(f"{option} can't be read: {error}.", "Give a JSON object, @FILE or - for standard input.")
    if not isinstance(found, dict):
        usage_error(f"{option} is no JSON object.", 'Give {"field": value, …}, as `dead-letters show --json` has it.')
    return found
