"""`slipway machines bulk`: one action for all machines that match, after a look at which those are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from slipway.cli.output import console, print_facts
from slipway.cli.session import Json, Wait, Yes, run, show_one, usage_error
from slipway.client import Client
from slipway.models import Started

Many = list[str] | None
Preview = Callable[[Started], None]
Start = Callable[..., None]


class Action(StrEnum):
    """What can be done to many machines at once."""

    HOLD = "hold"
    UNHOLD = "unhold"
    QUARANTINE = "quarantine"


def preview(would: Started) -> None:
    """Which machines an action would touch, and why it would leave the others alone."""
    rows = [(str(item.get("name")), "would change") for item in would.machines]
    rows += [(str(item.get("name")), f"left alone: {item.get('reason')}") for item in would.skipped]
    print_facts([*rows, ("", f"{len(would.machines)} machines would change, {len(would.skipped)} would not.")])


def add_commands(machines: typer.Typer, start: Start) -> None:
    """Put `bulk` among the machines' commands; `start` shows an operation as its siblings do."""

    @machines.command("bulk")
    def bulk(
        action: Annotated[Action, typer.Argument(help="hold, unhold (your own holds) or quarantine.")],
        reason: Annotated[str, typer.Option("--reason", "-r", help="Why; kept in each machine's history.")],
        machine: Annotated[Many, typer.Option("--machine", "-m", help="This machine, by name or id.")] = None,
        state: Annotated[Many, typer.Option("--state", "-s", help="In this state; may be repeated.")] = None,
        health: Annotated[Many, typer.Option("--health", help="HEALTHY, SUSPECT, FAILED, UNKNOWN.")] = None,
        site: Annotated[Many, typer.Option("--site", help="At this site; may be repeated.")] = None,
        rack: Annotated[Many, typer.Option("--rack", help="In this rack; may be repeated.")] = None,
        profile: Annotated[Many, typer.Option("--profile", help="Of this profile; may be repeated.")] = None,
        tenant: Annotated[Many, typer.Option("--tenant", help="Used by this tenant; may be repeated.")] = None,
        search: Annotated[str | None, typer.Option("--search", "-q", help="Words in name, serial, MAC, …")] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
        yes: Yes = False,
        wait: Wait = False,
        as_json: Json = False,
    ) -> None:
        """Do one thing to all machines that match. Shows which first, and asks; each has its own outcome.

        \b
          slipway machines bulk hold --rack r12 --reason "cabling on Tuesday" --dry-run
          slipway machines bulk unhold --rack r12 --reason "done" --yes --wait
        """
        filters = {
            "state": state, "health": health, "site": site, "rack": rack, "profile": profile, "tenant": tenant,
            "q": search, "machines": machine,
        }  # fmt: skip
        chosen = {name: value for name, value in filters.items() if value}
        if not chosen:
            usage_error("No machine was chosen.", "Name machines (--machine), or give filters such as --rack.")

        def act(*, dry: bool) -> Callable[[Client], Awaitable[Started]]:
            return lambda client: client.machines.act(action.value, reason, dry_run=dry, **chosen)

        if dry_run:
            show_one(act(dry=True), preview, as_json=as_json)
            return
        if not yes:
            _ask(run(act(dry=True)))
        start(act(dry=False), wait=wait, as_json=as_json)


def _ask(would: Started) -> None:
    """Show the preview on standard error, so that --json stays alone on the other; end when the answer is no."""
    names: list[Any] = [item.get("name") for item in would.machines]
    shown = ", ".join(map(str, names[:20])) + (", …" if len(names) > 20 else "")
    console(stderr=True).print(f"{len(names)} machines would change: {shown}; {len(would.skipped)} would not.")
    typer.confirm("Go on?", abort=True, err=True)
