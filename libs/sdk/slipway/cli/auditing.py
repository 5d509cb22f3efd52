"""`slipway audit`: gaps, checkpoints, keys, retention, legal holds. (operators)"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from slipway.cli.exits import Exit
from slipway.cli.output import Column, console, plain_table, print_facts, print_json
from slipway.cli.session import (
    DEFAULT_LIMIT,
    AskedDoor,
    Json,
    Limit,
    Yes,
    confirm,
    group,
    run,
    show_document,
    show_list,
)
from slipway.client import Client
from slipway.models import Document

audit = group("audit", "What is kept: gaps, signed checkpoints, retention, legal holds. (operators)")
retention = group("retention", "How long events are kept.")
holds = group("holds", "Legal holds: what matches one is not removed, however old.")
audit.add_typer(retention)
audit.add_typer(holds)
GROUPS = (audit,)

Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; kept with it.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write here, to check against later.")]
Days = Annotated[int | None, typer.Option("--keep-days", min=30, max=36_500, help="30 to 36500 days.")]


def _of(name: str) -> Callable[[Document], str]:
    return lambda document: str(document.raw.get(name) or "")


CHECKPOINT_COLUMNS = (
    Column[Document]("SERVICE", _of("service")),
    Column[Document]("NUMBER", _of("number"), right=True),
    Column[Document]("DAY", _of("day")),
    Column[Document]("UP TO", _of("last_sequence"), right=True),
    Column[Document]("EVENTS", _of("events"), right=True),
    Column[Document]("DIGEST", _of("digest"), is_id=True),
    Column[Document]("KEY", _of("key_id"), spare=True, is_id=True),
)
HOLD_COLUMNS = (
    Column[Document]("ID", _of("id"), is_id=True),
    Column[Document]("KIND", _of("kind")),
    Column[Document]("VALUE", _of("value")),
    Column[Document]("BY", _of("placed_by"), spare=True),
    Column[Document]("SINCE", _of("placed_at"), spare=True),
    Column[Document]("RELEASED", _of("released_at")),
    Column[Document]("WHY", _of("reason"), grows=True),
)


@audit.command("gaps")
def gaps(as_json: Json = False) -> None:
    """Look for missing sequence numbers and entity versions. Ends with 1 when there is a gap."""
    document: dict[str, Any] = {}

    async def fetch(client: Client) -> Any:
        document.update(await client.audit.gaps())
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
    kept = f"{document.get('events')} events"
    if removed := document.get("removed"):
        kept += f" ({removed} more were removed by retention)"
    console().print(f"{kept}, {len(missing)} gaps" if missing else f"{kept}, no gap")


# -- signatures -------------------------------------------------------------------------------------


@audit.command("checkpoint")
def checkpoint(as_json: Json = False) -> None:
    """Sign every chain that has grown since it was signed last. It is also done once a day."""
    made = run(lambda client: client.audit.make_checkpoint())
    if as_json:
        print_json({"items": made})
        return
    for each in made:
        console().print(f"{each['service']}: signed up to {each['last_sequence']}, {each['events']} events")
    if not made:
        console().print("Nothing has happened since the last checkpoint.")


@audit.command("checkpoints")
def checkpoints(
    service: Annotated[str | None, typer.Option("--service", help="Of this service.")] = None,
    out: Out = None,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List signed checkpoints; with --out keep them where nobody who can change the database can change them.

    \b
      slipway audit checkpoints --out checkpoints.json
      slipway events verify --checkpoints checkpoints.json --key keys.json
    """
    if out is None:
        show_list(lambda client: client.audit.checkpoints(service), CHECKPOINT_COLUMNS, as_json=as_json, limit=limit)
        return

    async def fetch(client: Client) -> list[Any]:
        return [item.raw async for page in client.audit.checkpoints(service) for item in page.items]

    _write(out, {"items": (found := run(fetch))}, f"{len(found)} checkpoints")


@audit.command("keys")
def keys(out: Out = None, door: AskedDoor = None) -> None:
    """Show the public keys that ever signed here, as a JWK Set; with --out keep them to check against later."""
    found = run(lambda client: client.audit.keys(door=door))
    if out is None:
        print_json(found)
    else:
        _write(out, found, f"{len(found['keys'])} keys")


def _write(out: Path, document: Any, what: str) -> None:
    draft = out.with_name(f".{out.name}.part")
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draft.replace(out)
    console(stderr=True).print(f"{what} written to {out}")


# -- retention --------------------------------------------------------------------------------------


@retention.command("show")
def show_retention(as_json: Json = False) -> None:
    """Show how long events are kept: now, soon, and who decided it."""

    def render(document: dict[str, Any]) -> None:
        pending = document.get("pending")
        print_facts(
            [
                ("Kept", _kept(document.get("in_force"))),
                ("Soon", f"{_kept(pending)}, from {pending['in_force_at']} on" if pending else None),
            ]
        )
        if document.get("history"):
            console().print()
            plain_table(document["history"])

    show_document(lambda client: client.audit.retention(), render, as_json=as_json)


def _kept(policy: dict[str, Any] | None) -> Text:
    days = policy.get("keep_days") if policy else None
    return Text("for ever" if days is None else f"{days} days", "bold")


@retention.command("preview")
def preview(keep_days: Days = None, as_json: Json = False) -> None:
    """Show what would be removed now, and what holds keep; nothing is removed.

    \b
      slipway audit retention preview --keep-days 365
    """
    show_document(lambda client: client.audit.preview_retention(keep_days), _render_preview, as_json=as_json)


def _render_preview(document: dict[str, Any]) -> None:
    if document.get("items"):
        plain_table(document["items"])
        console().print()
    days = document.get("keep_days")
    kept = "for ever" if days is None else f"{days} days"
    console().print(f"Kept {kept}: {document['removed']} events would go, {document['held']} are kept by holds.")


@retention.command("set")
def set_retention(
    reason: Reason,
    keep_days: Days = None,
    for_ever: Annotated[bool, typer.Option("--for-ever", help="Remove nothing from now on.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Set how long events are kept. Keeping less comes into force a day later; until then set it back to undo it.

    \b
      slipway audit retention set --keep-days 2555 --reason "seven years, as the books"
      slipway audit retention set --for-ever --reason "case 4711"
    """
    if for_ever == (keep_days is not None):
        raise typer.BadParameter("give --keep-days or --for-ever, one of the two")
    if dry_run:
        preview(keep_days, as_json) if keep_days is not None else console().print("Nothing would be removed.")
        return
    if keep_days is not None:
        found = run(lambda client: client.audit.preview_retention(keep_days))
        confirm(f"{found['removed']} events would be removed for good a day from now. Set it?", yes=yes)
    document = run(lambda client: client.audit.set_retention(keep_days, reason))
    if as_json:
        print_json(document.raw)
    else:
        policy = dict(document.raw)
        console().print(f"Events are kept {_kept(policy).plain} from {policy['in_force_at']} on.")


@retention.command("run")
def run_retention(yes: Yes = False, as_json: Json = False) -> None:
    """Remove what is expired now instead of within the hour. See first: slipway audit retention preview"""
    confirm("Remove expired events for good?", yes=yes)

    async def rounds(client: Client) -> dict[str, int]:
        total, cursor = {"removed": 0, "held": 0}, None
        with console(stderr=True).status("") as status:
            while True:
                step = await client.audit.run_retention(cursor)
                total = {name: total[name] + step[name] for name in total}
                cursor = step["next_cursor"]
                status.update(f"{total['removed']} removed, {total['held']} held  {cursor or ''}")
                if cursor is None:
                    return total

    done = run(rounds)
    if as_json:
        print_json(done)
    else:
        console().print(f"{done['removed']} events removed, {done['held']} kept by holds.")


# -- legal holds ------------------------------------------------------------------------------------


@holds.command("list")
def list_holds(
    everything: Annotated[bool, typer.Option("--all", help="Released ones as well.")] = False,
    limit: Limit = DEFAULT_LIMIT,
    as_json: Json = False,
) -> None:
    """List legal holds that are in force."""
    show_list(
        lambda client: client.audit.holds(in_force=None if everything else True),
        HOLD_COLUMNS,
        as_json=as_json,
        limit=limit,
        nothing="Nothing is held.",
    )


@holds.command("place")
def place(
    reason: Reason,
    entity: Annotated[str | None, typer.Option("--entity", help="Every event of it or that mentions it (id).")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Every event of this tenant.")] = None,
    correlation: Annotated[str | None, typer.Option("--correlation", help="Of this correlation id.")] = None,
    as_json: Json = False,
) -> None:
    """Place a legal hold: from now on nothing that matches is removed.

    \b
      slipway audit holds place --entity clu-0190… --reason "case 4711"
    """
    if sum(value is not None for value in (entity, tenant, correlation)) != 1:
        raise typer.BadParameter("give exactly one of --entity, --tenant and --correlation")
    document = run(
        lambda client: client.audit.place_hold(reason, entity_id=entity, tenant=tenant, correlation_id=correlation)
    )
    if as_json:
        print_json(document.raw)
        return
    console().print(f"Held: {document.raw['kind']} {document.raw['value']} ({document.raw['id']})")
    if not document.raw.get("matches_now"):
        console(stderr=True).print("Note: no event matches it yet; is it spelt right?")


@holds.command("release")
def release(
    hold: Annotated[str, typer.Argument(metavar="HOLD", help="Id, see 'audit holds list'.")],
    reason: Reason,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Release a legal hold. What it kept and is expired goes with the next round; it can't be brought back."""
    confirm("What this hold kept and is expired will be removed for good. Release it?", yes=yes)
    document = run(lambda client: client.audit.release_hold(hold, reason))
    if as_json:
        print_json(document.raw)
    else:
        console().print(f"The hold on {document.raw['kind']} {document.raw['value']} is released.")
