"""`slipway restore`: a service whose database was restored from a backup waits here for a human. (operators)"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from slipway.cli.dead_letters import SERVICES, Service
from slipway.cli.exits import Exit
from slipway.cli.output import Column, console, print_facts, print_json, print_table
from slipway.cli.session import Json, Yes, confirm, group, run
from slipway.client import Client

restore = group("restore", "Databases restored from a backup: what they lack, and going on. (operators)")
GROUPS = (restore,)

LOST_COLUMNS = (
    Column[dict[str, Any]]("ENTITY", lambda r: str(r.get("entity"))),
    Column[dict[str, Any]]("ID", lambda r: str(r.get("id")), is_id=True),
    Column[dict[str, Any]]("TENANT", lambda r: str(r.get("tenant")), spare=True),
    Column[dict[str, Any]]("LOST VERSIONS", lambda r: f"{r.get('first_version')}–{r.get('last_version')}"),
    Column[dict[str, Any]]("LAST EVENT", lambda r: str(r.get("last_type"))),
    Column[dict[str, Any]]("AT", lambda r: str(r.get("last_time"))[:19]),
)


@restore.command("show")
def show(
    service: Annotated[str | None, typer.Argument(help=f"One of {', '.join(SERVICES)}; all when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Show which services wait after a restore, and what the stream knows that their databases do not.

    Ends with 1 when one waits.
    \b
      slipway restore show
      slipway restore show inventory --json
    """

    async def fetch(client: Client) -> list[dict[str, Any]]:
        return [dict((await client.services.restore(name)).raw) for name in ([service] if service else SERVICES)]

    found = run(fetch)
    if as_json:
        print_json(found[0] if service else {"items": found, "next_cursor": None})
    else:
        for each in found:
            _render(each)
    if any(each.get("waiting") for each in found):
        raise typer.Exit(Exit.FAILED)


def _render(found: dict[str, Any]) -> None:
    name = str(found.get("service"))
    if not found.get("waiting"):
        console().print(Text.assemble((name, "bold"), f": epoch {found.get('epoch')}, waits for nobody"))
        return
    console().print(Text.assemble((name, "bold"), ": ", ("restored from a backup, waits for you", "bold red")))
    print_facts(
        [
            ("noticed", str(found.get("detected_at"))[:19]),
            ("epoch", found.get("epoch")),
            ("events lost", f"{found.get('lost_events')} ({found.get('own_last')} is the last that it has, "
                            f"{found.get('stream_last')} the stream's)"),
            ("operations that were running", found.get("open_sagas")),
            ("messages set aside", f"{found.get('set_aside_messages')} (slipway dead-letters list --service {name})"),
        ]
    )  # fmt: skip
    print_table(LOST_COLUMNS, found.get("items") or (), "The lost events can't be read.")
    console().print(
        f"Go on with: slipway restore accept {name} --epoch {found.get('epoch')} --reason …   (docs/guides/restore.md)"
    )


@restore.command("accept")
def accept(
    service: Service,
    epoch: Annotated[int, typer.Option("--epoch", min=2, help="The epoch that 'restore show' names.")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why it is right to go on; kept.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have a restored service go on: after the stream's last numbers, with its running operations parked.

    \b
      slipway restore accept inventory --epoch 2 --reason "backup of 02:00, difference checked"
    """
    question = f"Let {service} go on without the events that its database lost?"
    confirm(question, yes=yes)
    document = run(lambda client: client.services.accept_restore(service, epoch, reason)).raw
    if as_json:
        print_json(document)
        return
    console().print(f"{service} goes on after event {document.get('goes_on_after')} in epoch {document.get('epoch')}.")
    console().print(f"{document.get('parked_sagas')} operations wait for you: slipway operations list")
    missing = document.get("not_found_count") or 0
    if missing:
        console().print(f"{missing} things exist in the stream alone; look at each:")
        for name in document.get("not_found") or ():
            console().print(f"  {name}", soft_wrap=True)
