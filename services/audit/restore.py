"""Put events of an export back: `python -m services.audit.restore FILE`.

Reads JSON Lines or Parquet as `slipway events export` writes them, adds what is missing, leaves what is there, and
refuses what the chain contradicts. Safe to repeat and to break off: each batch is one transaction. It runs beside the
service, under the lock that the projector takes, and needs the running role's SLIPWAY_DATABASE_URL only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from slipway.exports import ExportFile, UnreadableExport
from slipway.proof import without_digest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.topology import EVENT_SERVICES
from libs.contracts.envelope import BadMessage, Envelope, decode
from libs.runtime.database import Database
from services.audit.keeping import Refused, keep
from services.audit.projections import apply_operations
from services.audit.record import canonical, type_of
from services.audit.settings import Settings

BATCH = 500
MAX_SHOWN = 20


class BadLine(ValueError):
    """A line is no event of ours; the message names the line and what is wrong."""


@dataclass
class Restored:
    """What became of the file's events."""

    new: int = 0
    known: int = 0
    removed: int = 0
    refused: list[Refused] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    service: str
    event: Envelope
    digest: str | None


def parse(number: int, line: str) -> Line:
    """One line of an export. Raises BadLine."""
    own, digest = without_digest(line)
    try:
        event = decode(own.encode())
    except BadMessage as error:
        raise BadLine(f"line {number}: {error}") from error
    service = type_of(event.type).service
    if service not in EVENT_SERVICES or not event.stream_sequence:
        raise BadLine(f"line {number}: {event.type} has no number of a service of ours")
    if canonical(event) != own:
        raise BadLine(f"line {number}: the event is not in the form in which it was exported; use the file as it was")
    return Line(service, event, digest)


def batches(lines: Iterable[str]) -> Iterator[list[Line]]:
    """Lines of one service at a time, at most BATCH. Raises BadLine."""
    parsed = (parse(number, line) for number, line in enumerate(lines, 1))
    for _, group in itertools.groupby(parsed, key=lambda line: line.service):
        while batch := list(itertools.islice(group, BATCH)):
            yield batch


async def restore(database: Database, lines: Iterable[str], *, dry_run: bool, done: Progress | None = None) -> Restored:
    """Put the lines' events back, batch by batch; with `dry_run` in one transaction that is rolled back at the end."""
    restored = Restored()
    task = done.add_task("restore", total=None) if done is not None else None
    async with database.engine.connect() as conn:
        for batch in batches(lines):
            await _restore_batch(conn, batch, restored)
            if not dry_run:
                await conn.commit()
            if done is not None and task is not None:
                done.advance(task, len(batch))
        await conn.rollback()
    return restored


async def _restore_batch(conn: AsyncConnection, batch: list[Line], restored: Restored) -> None:
    service = batch[0].service
    digests = {line.event.stream_sequence: line.digest for line in batch if line.digest is not None}
    await _lock(conn, service)
    kept = await keep(conn, service, [line.event for line in batch], digests)
    await apply_operations(conn, kept.new)
    restored.new += len(kept.new)
    restored.known += kept.known
    restored.removed += kept.removed
    restored.refused += kept.refused


async def _lock(conn: AsyncConnection, service: str) -> None:
    """The lock of the service's position: the projector takes it too, before it adds to the chain."""
    row = {"service": service}
    await conn.execute(
        text(
            "INSERT INTO audit.projection_position (projection, stream, position) VALUES ('events', :service, 0) "
            "ON CONFLICT DO NOTHING"
        ),
        row,
    )
    await conn.execute(
        text(
            "SELECT position FROM audit.projection_position WHERE projection = 'events' AND stream = :service "
            "FOR UPDATE"
        ),
        row,
    )


def _report(restored: Restored, console: Console, *, dry_run: bool) -> int:
    verb = "would be put back" if dry_run else "put back"
    console.print(
        f"{restored.new} events {verb}, {restored.known} were there, {restored.removed} stay removed by retention, "
        f"{len(restored.refused)} refused",
        soft_wrap=True,
    )
    for refused in restored.refused[:MAX_SHOWN]:
        event = refused.envelope
        console.print(
            f"refused: {type_of(event.type).service} {event.stream_sequence} ({event.id}): {refused.why}",
            soft_wrap=True,
        )
    if len(restored.refused) > MAX_SHOWN:
        console.print(f"… and {len(restored.refused) - MAX_SHOWN} more")
    return 1 if restored.refused else 0


async def _run(file: ExportFile, url: str, console: Console, *, dry_run: bool) -> int:
    database = Database(url, application_name="audit-restore")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            restored = await restore(database, file.lines(), dry_run=dry_run, done=progress)
    finally:
        await database.close()
    return _report(restored, console, dry_run=dry_run)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.audit.restore", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, help="an export of events, .jsonl or .parquet")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    given = parser.parse_args(arguments)
    console = Console(stderr=True, highlight=False, markup=False)
    url = Settings().database_url.get_secret_value()
    if not url:
        console.print("Which database? Set SLIPWAY_DATABASE_URL to that of the audit service's running role.")
        return 2
    try:
        return asyncio.run(_run(ExportFile(given.file), url, console, dry_run=given.dry_run))
    except (UnreadableExport, BadLine) as error:
        console.print(f"{given.file}: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
