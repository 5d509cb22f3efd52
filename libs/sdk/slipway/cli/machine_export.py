"""`slipway machines export`: any part of the fleet as CSV or JSON Lines, page by page, however large it is."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from slipway.cli.output import console
from slipway.cli.session import Sort, run
from slipway.client import Client
from slipway.models import Machine

COLUMNS = (
    "id", "name", "site", "rack", "position", "profile", "device_type", "serial", "asset_tag", "bmc_address", "bmc_mac",
    "state", "failed_step", "health", "eligible", "tenant", "cluster_id", "state_since", "observed_at", "sanitised_at",
    "validated_at", "credentials_rotated_at",
)  # fmt: skip
Many = list[str] | None


class Format(StrEnum):
    """How a line looks."""

    CSV = "csv"
    JSON = "json"


def export(
    format_: Annotated[Format, typer.Option("--format", help="csv, or json: one machine on each line.")] = Format.CSV,
    out: Annotated[Path | None, typer.Option("--out", help="Write to this file; default: standard output.")] = None,
    state: Annotated[Many, typer.Option("--state", "-s", help="In this state; may be repeated.")] = None,
    health: Annotated[Many, typer.Option("--health", help="HEALTHY, SUSPECT, FAILED, UNKNOWN.")] = None,
    site: Annotated[Many, typer.Option("--site", help="At this site; may be repeated.")] = None,
    rack: Annotated[Many, typer.Option("--rack", help="In this rack; may be repeated.")] = None,
    profile: Annotated[Many, typer.Option("--profile", help="Of this profile; may be repeated.")] = None,
    tenant: Annotated[Many, typer.Option("--tenant", help="Used by this tenant; may be repeated.")] = None,
    held: Annotated[bool | None, typer.Option("--held/--not-held", help="Only machines that somebody holds.")] = None,
    older_than: Annotated[float | None, typer.Option("--older-than", help="In its state for so many hours.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Words in name, serial, MAC, tag, ….")] = None,
    sort: Sort = None,
) -> None:
    """Write machines as CSV or JSON Lines. Nothing is kept in memory, and a broken pipe or file ends it with an error.

    \b
      slipway machines export > fleet.csv
      slipway machines export --format json --state QUARANTINED --older-than 48 | jq -r .name
    """
    before = None if older_than is None else (datetime.now(UTC) - timedelta(hours=older_than)).isoformat()
    filters: dict[str, Any] = {
        "state": state, "health": health, "site": site, "rack": rack, "profile": profile, "tenant": tenant,
        "held": None if held is None else ("yes" if held else "no"),
        "state_before": before, "q": search, "sort": sort,
    }  # fmt: skip
    if out is None:
        count = run(lambda client: _write(client, sys.stdout, format_, filters))
    else:
        # Whole or not at all: a file of half a fleet looks like a fleet.
        partial = out.with_name(f".{out.name}.partial")
        with partial.open("w", encoding="utf-8", newline="") as file:
            count = run(lambda client: _write(client, file, format_, filters))
        partial.replace(out)
    console(stderr=True).print(f"{count} machines.", style="dim")


def add_commands(machines: typer.Typer) -> None:
    """Put `export` among the machines' commands."""
    machines.command("export")(export)


async def _write(client: Client, file: TextIO, format_: Format, filters: dict[str, Any]) -> int:
    line = _csv(file) if format_ is Format.CSV else _json(file)
    count = 0
    async for page in client.machines.pages(limit="200", **filters):
        for machine in page.items:
            line(machine)
            count += 1
    return count


def _csv(file: TextIO) -> Callable[[Machine], object]:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    return lambda machine: writer.writerow([_cell(machine.raw.get(name)) for name in COLUMNS])


def _cell(value: Any) -> str:
    """Text for a spreadsheet, which must not take a name for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) and text != "-" else text


def _json(file: TextIO) -> Callable[[Machine], object]:
    return lambda machine: file.write(json.dumps(machine.raw, ensure_ascii=False) + "\n")
