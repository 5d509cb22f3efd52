"""Build a projection anew beside the live one, compare, and put the new one in its place if that was asked for.

A rebuild is a row: how far it has read is committed with what it has applied, so any replica goes on with one whose
process was killed. Memory holds a few batches, whatever the length of the streams. The live projection goes on; only
for the last steps of a swap is it held, by its own lease, so that both stand at the same positions. The swap itself
is one transaction that changes exactly the rows that differ: readers see all of it or nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import orjson
import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from prometheus_client import Gauge
from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.lease import Lease
from libs.bus.pull import Puller
from libs.bus.reading import open_reader, place
from libs.bus.topology import event_stream
from libs.projection.projection import Projection, digest
from libs.projection.projector import get_position, readable
from libs.runtime.database import Database

SILENCE_SECONDS = 10.0
LEASE_SECONDS = 20.0  # Renewed several times within it; a replica goes on this much later when its holder was killed.
IDLE_SECONDS = 5.0  # What begins here wakes it; this is for those whose process is gone.
RETRY_SECONDS = 1.0
ENOUGH = 1000  # Messages in a transaction, and a batch of the reader's more; each batch costs some round trips.
BATCHES_AHEAD = 2
MOST_TRIES = 5
LONG_STATEMENT = timedelta(minutes=30)  # A digest or swap of a large table takes longer than a usual statement may.

log = structlog.get_logger("rebuild")
RUNNING = Gauge("slipway_projection_rebuilding", "1 while a projection is built anew", ["service", "projection"])


class CannotSwap(ValueError):
    """The projection's tables are history: the running role may only add to them."""


class Rebuild:
    """The rebuilds of one projection, as one process sees them."""

    def __init__(self, service: str, projection: Projection, database: Database, js: JetStreamContext, holder: str):
        self.service, self.projection, self.database, self.js = service, projection, database, js
        self.holder = f"{holder}/rebuild"
        self.lease = Lease(service, f"rebuild:{projection.name}", self.holder, LEASE_SECONDS)
        self.live = Lease(service, f"projection:{projection.name}", self.holder, LEASE_SECONDS)
        self._woken = asyncio.Event()
        self._shadow = {"schema_translate_map": {service: f"{service}_rebuild"}}

    # -- asked from outside ---------------------------------------------------------------------

    async def start(self, actor: str, *, swap: bool) -> Mapping[str, Any]:
        """Begin one, or go on with the one that runs (a wish to swap is added to it). Raises CannotSwap."""
        async with self.database.transaction() as conn:
            if swap:
                await self._may_swap(conn)
            await conn.execute(text("SELECT pg_advisory_xact_lock(hashtext(:k))"), {"k": self.lease.name})
            running = await self._row(conn)
            if running is not None and running["state"] == "running":
                await self._set(conn, swap=bool(running["swap"]) or swap)
            else:
                await self._begin(conn, actor, swap=swap)
        self._woken.set()
        found = await self.status()
        assert found is not None
        return found

    async def status(self) -> Mapping[str, Any] | None:
        """The newest rebuild; None when there was none."""
        async with self.database.transaction() as conn:
            return await self._row(conn)

    async def _begin(self, conn: AsyncConnection, actor: str, *, swap: bool) -> None:
        for table in reversed(self.projection.tables):
            await conn.execute(text(f"TRUNCATE {self.service}_rebuild.{table.name}"))
        targets = await self._live_positions(conn)
        await conn.execute(
            text(
                f"""INSERT INTO {self.service}.projection_rebuild
                (projection, state, swap, requested_by, started_at, updated_at, positions, targets, events, seconds)
                VALUES (:p, 'running', :swap, :actor, now(), now(), CAST(:zero AS jsonb), CAST(:targets AS jsonb), 0, 0)
                ON CONFLICT (projection) DO UPDATE SET state = 'running', swap = excluded.swap,
                requested_by = excluded.requested_by, started_at = now(), updated_at = now(),
                positions = excluded.positions, targets = excluded.targets, events = 0, seconds = 0,
                digest_live = NULL, digest_rebuilt = NULL, changes = NULL, error = NULL"""
            ),
            {
                "p": self.projection.name,
                "swap": swap,
                "actor": actor,
                "zero": _json(dict.fromkeys(self.projection.streams, 0)),
                "targets": _json(targets),
            },
        )

    async def _may_swap(self, conn: AsyncConnection) -> None:
        for table in self.projection.tables:
            name = f"{self.service}.{table.name}"
            if not await conn.scalar(text("SELECT has_table_privilege(:t, 'DELETE')"), {"t": name}):
                raise CannotSwap(
                    f"{name} is history that nobody may change; a difference there is a finding to look into"
                )

    # -- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work rebuilds for ever: those begun here, and those whose process is gone."""
        tries = 0
        while True:
            self._woken.clear()
            try:
                await self._work()
                tries = 0
            except Exception as error:
                tries += 1
                log.warning("rebuild_failed", projection=self.projection.name, tries=tries, error=repr(error))
                if tries >= MOST_TRIES:
                    await self._give_up(error)
                    tries = 0
            try:
                async with asyncio.timeout(RETRY_SECONDS if tries else IDLE_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _work(self) -> None:
        async with self.database.transaction() as conn:
            row = await self._row(conn)
            if row is None or row["state"] != "running" or await self.lease.take(conn) is None:
                return
        gauge = RUNNING.labels(self.service, self.projection.name)
        gauge.set(1)
        try:
            await self._advance(row["targets"])
            live, positions = await self._live_digest()
            await self._advance(positions)
            rebuilt = await self._digest_of_shadow()
            async with self.database.transaction() as conn:
                row = await self._row(conn)
                swaps = live != rebuilt and row is not None and row["swap"]
                if not swaps:
                    await self._finish(conn, live, rebuilt, None)
            if swaps:
                await self._swap(live, rebuilt)
        finally:
            gauge.set(0)
            async with self.database.transaction() as conn:
                await self.lease.give_back(conn)

    async def _advance(self, targets: Mapping[str, int]) -> None:
        """Apply what the streams have up to `targets` to the shadow tables, from where it stands."""
        async with self.database.transaction() as conn:
            row = await self._row(conn)
            await conn.execute(
                text(f"UPDATE {self.service}.projection_rebuild SET targets = CAST(:t AS jsonb) WHERE projection = :p"),
                {"t": _json(targets), "p": self.projection.name},
            )
        assert row is not None
        for stream, last in targets.items():
            if last > row["positions"].get(stream, 0):
                await self._advance_stream(stream, int(row["positions"].get(stream, 0)), last)

    async def _advance_stream(self, stream: str, position: int, last: int) -> None:
        renew_at = 0.0  # Two at once are kept apart by the position that `_moved` compares; the lease saves the work.
        async with (
            await open_reader(self.js, event_stream(stream), position + 1) as reader,
            _ahead(reader) as batches,
        ):
            async for found in batches:
                began = time.monotonic()
                messages = [message for message in found if place(message) <= last]
                events = readable(messages, position)
                reached = place(messages[-1]) if messages else last
                async with self.database.engine.connect() as raw:
                    conn = await raw.execution_options(**self._shadow)
                    # Position and rows are lost together, if at all, and nobody reads them yet.
                    await conn.execute(text("SET LOCAL synchronous_commit = off"))
                    if began >= renew_at:
                        if await self.lease.take(conn) is None:
                            raise RuntimeError("another replica goes on with this rebuild")
                        renew_at = began + LEASE_SECONDS / 4
                    if events:
                        await self.projection.take_in(conn, events)
                    await self._moved(conn, stream, position, reached, len(events), time.monotonic() - began)
                    await conn.commit()
                position = reached
                if position >= last:
                    return
        raise TimeoutError(f"{event_stream(stream)} was silent after {position} of {last}")

    async def _moved(
        self, conn: AsyncConnection, stream: str, before: int, after: int, events: int, seconds: float
    ) -> None:
        moved = await conn.execute(
            text(
                f"""UPDATE {self.service}.projection_rebuild SET positions = positions || CAST(:moved AS jsonb),
                events = events + :events, seconds = seconds + :seconds, updated_at = now()
                WHERE projection = :p AND state = 'running'
                AND coalesce(CAST(positions->>CAST(:stream AS text) AS bigint), 0) = :before"""
            ),
            {
                "moved": _json({stream: after}),
                "stream": stream,
                "before": before,
                "events": events,
                "seconds": seconds,
                "p": self.projection.name,
            },
        )
        if moved.rowcount != 1:
            raise RuntimeError(f"the rebuild is not at {before} of {stream} any more: somebody else goes on with it")

    async def _live_positions(self, conn: AsyncConnection) -> dict[str, int]:
        return {s: await get_position(conn, self.service, self.projection.name, s) for s in self.projection.streams}

    async def _live_digest(self) -> tuple[str, dict[str, int]]:
        """The live tables' digest and their positions, in one snapshot; the live projection goes on."""
        async with self.database.engine.connect() as conn:
            await conn.execution_options(isolation_level="REPEATABLE READ")
            async with conn.begin():
                await _allow_long(conn)
                return await digest(conn, self.projection.tables), await self._live_positions(conn)

    async def _digest_of_shadow(self) -> str:
        async with self.database.engine.connect() as raw:
            conn = await raw.execution_options(**self._shadow)
            async with conn.begin():
                await _allow_long(conn)
                return await digest(conn, self.projection.tables)

    # -- the swap -------------------------------------------------------------------------------

    async def _swap(self, live: str, rebuilt: str) -> None:
        """Hold the live projection, catch up with it, replace what differs, and say so, in one transaction."""
        async with self.database.transaction() as conn:
            await self.live.seize(conn)
            positions = await self._live_positions(conn)
        try:
            await self._advance(positions)
            async with self.database.transaction() as conn:
                await _allow_long(conn)
                if await self.live.take(conn) is None or await self._live_positions(conn) != positions:
                    raise RuntimeError("the live projection went on meanwhile; trying again")
                changes = {str(table.name): await self._replace(conn, table) for table in self.projection.tables}
                await self._finish(conn, live, rebuilt, changes)
        finally:
            async with self.database.transaction() as conn:
                await self.live.give_back(conn)

    async def _replace(self, conn: AsyncConnection, table: Table) -> dict[str, int]:
        live, new = f"{self.service}.{table.name}", f"{self.service}_rebuild.{table.name}"
        columns = ", ".join(f'"{column.name}"' for column in table.columns if column.computed is None)
        keys = ", ".join(f'"{column.name}"' for column in table.primary_key.columns)
        removed = await conn.execute(
            text(
                f"""DELETE FROM {live} WHERE ({keys}) IN (
                SELECT {keys} FROM (SELECT {columns} FROM {live} EXCEPT SELECT {columns} FROM {new}) AS wrong)"""
            )
        )
        added = await conn.execute(
            text(f"INSERT INTO {live} ({columns}) SELECT {columns} FROM {new} EXCEPT SELECT {columns} FROM {live}")
        )
        return {"removed": removed.rowcount, "added": added.rowcount}

    # -- its row --------------------------------------------------------------------------------

    async def _row(self, conn: AsyncConnection) -> Mapping[str, Any] | None:
        query = f"SELECT * FROM {self.service}.projection_rebuild WHERE projection = :p"
        row = (await conn.execute(text(query), {"p": self.projection.name})).mappings().first()
        return dict(row) if row is not None else None

    async def _set(self, conn: AsyncConnection, *, swap: bool) -> None:
        await conn.execute(
            text(f"UPDATE {self.service}.projection_rebuild SET swap = :swap WHERE projection = :p"),
            {"swap": swap, "p": self.projection.name},
        )

    async def _finish(self, conn: AsyncConnection, live: str, rebuilt: str, changes: dict[str, Any] | None) -> None:
        await conn.execute(
            text(
                f"""UPDATE {self.service}.projection_rebuild SET state = 'done', digest_live = :live,
                digest_rebuilt = :rebuilt, changes = CAST(:changes AS jsonb), updated_at = now()
                WHERE projection = :p AND state = 'running'"""
            ),
            {
                "live": live,
                "rebuilt": rebuilt,
                "changes": _json(changes) if changes is not None else None,
                "p": self.projection.name,
            },
        )
        log.info("rebuilt", projection=self.projection.name, equal=live == rebuilt, changes=changes)

    async def _give_up(self, error: Exception) -> None:
        async with self.database.transaction() as conn:
            await conn.execute(
                text(
                    f"""UPDATE {self.service}.projection_rebuild
                    SET state = 'failed', error = :error, updated_at = now()
                    WHERE projection = :p AND state = 'running'"""
                ),
                {"error": repr(error)[:2000].replace("\x00", ""), "p": self.projection.name},
            )


async def _allow_long(conn: AsyncConnection) -> None:
    limit = int(LONG_STATEMENT.total_seconds() * 1000)
    for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
        await conn.execute(text(f"SET LOCAL {setting} = {limit}"))


@asynccontextmanager
async def _ahead(reader: Puller) -> AsyncIterator[AsyncIterator[Sequence[Msg]]]:
    """The reader's batches, more of them fetched while some are applied; it ends at a silence."""
    fetched: asyncio.Queue[Sequence[Msg] | Exception] = asyncio.Queue(BATCHES_AHEAD)

    async def fetch() -> None:
        try:
            while found := await reader.next_batch(SILENCE_SECONDS):
                await fetched.put(found)
            await fetched.put(())
        except Exception as error:
            await fetched.put(error)

    async def batches() -> AsyncIterator[Sequence[Msg]]:
        while True:
            found: list[Msg] = []
            more = await fetched.get()
            while more and not isinstance(more, Exception):
                found += more
                if len(found) >= ENOUGH or fetched.empty():
                    break
                more = fetched.get_nowait()
            if found:
                yield found
            if isinstance(more, Exception):
                raise more
            if not more:
                return

    task = asyncio.create_task(fetch())
    try:
        yield batches()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
