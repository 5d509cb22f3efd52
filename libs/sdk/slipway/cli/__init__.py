"""The command line `slipway`: a noun, then a verb. See `slipway --help`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from slipway.cli import (
    auditing,
    catalog,
    checks,
    clusters,
    dead_letters,
    discovery,
    drift,
    history,
    live,
    machine_bulk,
    machine_export,
    machines,
    money,
    operations,
    people,
    replaying,
    restore,
    signing_in,
    subscribers,
    upkeep,
    webhooks,
)
from slipway.cli.exits import EXIT_CODES_HELP, Exit
from slipway.cli.session import CONTEXT

app = typer.Typer(
    name="slipway",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES_HELP,
)


@app.callback()
def root(
    context: Annotated[str | None, typer.Option("--context", help="Which context of the configuration to use.")] = None,
) -> None:
    """Slipway: GPU clusters on bare metal. A noun, then a verb; add --help anywhere.

    [bold]For tenants[/bold]: see what there is, ask for a cluster, log in, give it back.
    \b
      slipway profiles list
      slipway clusters create train-1 --profile h100-sxm-8 --nodes 4 --wait
      slipway clusters ssh train-1
      slipway clusters delete train-1 --wait

    [bold]For operators[/bold]: bring racks into service, see what is stuck and why.
    \b
      slipway machines enrol --rack r1 --rack r2 --wait
      slipway machines list --state FAILED --state QUARANTINED
      slipway timeline fra1-r1-u01

    [bold]For programs[/bold]: every command takes --json, and prints the API's own document.
    \b
      slipway clusters list --json | jq -r '.items[].name'
    """
    CONTEXT.set(context)


for noun in (
    *clusters.GROUPS,
    *machines.GROUPS,
    *discovery.GROUPS,
    *operations.GROUPS,
    *catalog.GROUPS,
    *checks.GROUPS,
):
    app.add_typer(noun)
for noun in (
    *money.GROUPS,
    *people.GROUPS,
    *history.GROUPS,
    *subscribers.GROUPS,
    *webhooks.GROUPS,
    *auditing.GROUPS,
    *drift.GROUPS,
    *upkeep.GROUPS,
    *dead_letters.GROUPS,
    *restore.GROUPS,
    *signing_in.GROUPS,
):
    app.add_typer(noun)
people.add_commands(app)
history.add_commands(app)
machine_export.add_commands(machines.machines)
machine_bulk.add_commands(machines.machines, machines.start)
live.add_commands(history.events)
replaying.add_commands(history.events)
signing_in.add_commands(app)


def main() -> None:
    """The entry point of the installed command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.OK)
