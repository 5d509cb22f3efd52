"""The relay: numbers a service's committed events and brings them, and its commands, to JetStream.

One lease holder per service (the sequencer) numbers every committed row it can see, in id order, gapless,
and publishes to EVT_<service> with the expected last stream sequence: number N lies at stream sequence N. So
a zombie publisher is refused, a partial failure can't reorder, and a broker that lost its tail shows at the
next publish or check and gets exactly the missing part again. It also makes one acknowledgement enough for many
events: the last of a chain can only be kept if all before it were. Commands go to their own streams, at least
once, with the message id as de-duplication key; their receivers' inboxes make the effect happen once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import structlog
from nats.js import JetStreamContext
from prometheus_client import Counter, Gauge
from sqlalchemy import text

from libs.bus import foreign
from libs.bus.archive import Archive
from libs.bus.gate import Gate
from libs.bus.lease import Lease
from libs.bus.plans import keep_to_indexes
from libs.bus.pull import client_of
from libs.bus.refill import LostForGood, last_numbered, refill_events
from libs.bus.topology import event_stream
from libs.contracts.envelope import sequence_text
from libs.runtime.database import Database, driver_of

BATCH = 1000
TURN = 50
CHAIN_BYTES = 4 * 1024 * 1024
PACE_SECONDS = 0.01  # Between two looks: one that follows the last at once waits for what commits meanwhile.
IDLE_SECONDS = 1.0  # How often an idle relay looks without being woken (another process may have committed).
CHECK_SECONDS = 3.0  # How often the broker is asked whether it still holds our last acknowledged event.
ACK_TIMEOUT_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 5.0

log = structlog.get_logger("outbox")
PUBLISHED = Counter("slipway_outbox_published_total", "Messages acknowledged by the broker", ["service", "kind"])
REPUBLISHED = Counter("slipway_outbox_republished_total", "Events the broker had lost and got again", ["service"])
OLDEST = Gauge("slipway_outbox_oldest_seconds", "Age of the oldest message not yet acknowledged", ["service"])
WAITING = Gauge("slipway_outbox_waiting", "Messages not yet acknowledged", ["service"])

_NUMBER = """
WITH q AS MATERIALIZED (
    SELECT id, tenant FROM {s}.outbox WHERE is_event AND seq IS NULL ORDER BY id LIMIT $1),
counts AS (
    SELECT tenant, count(*) AS n FROM q GROUP BY tenant
    UNION ALL SELECT '*', count(*) FROM q HAVING count(*) > 0),
bases AS (
    INSERT INTO {s}.tenant_sequence AS t (tenant, last) SELECT tenant, n FROM counts
    ON CONFLICT (tenant) DO UPDATE SET last = t.last + excluded.last RETURNING tenant, last),
numbered AS (
    SELECT q.id,
        (SELECT b.last - c.n FROM bases b JOIN counts c USING (tenant) WHERE b.tenant = '*')
            + row_number() OVER (ORDER BY q.id) AS seq,
        b.last - c.n + row_number() OVER (PARTITION BY q.tenant ORDER BY q.id) AS tenant_seq
    FROM q JOIN counts c ON c.tenant = q.tenant JOIN bases b ON b.tenant = q.tenant)
UPDATE {s}.outbox o SET seq = n.seq, tenant_seq = n.tenant_seq FROM numbered n WHERE o.id = n.id
RETURNING o.id, o.message_id, o.subject, o.payload, o.seq, o.tenant_seq
"""


_UNSENT = """SELECT id, message_id, subject, payload, NULL::bigint AS seq, NULL::bigint AS tenant_seq
FROM {s}.outbox WHERE published_at IS NULL AND NOT is_event ORDER BY id LIMIT $1"""
_WORK = """SELECT 1 FROM {s}.outbox WHERE is_event AND seq IS NULL
UNION ALL SELECT 1 FROM {s}.outbox WHERE published_at IS NULL AND NOT is_event"""
_AFTER = """SELECT id, message_id, subject, payload, seq, tenant_seq, published_at IS NOT NULL AS acknowledged
FROM {s}.outbox WHERE seq > $1 ORDER BY seq LIMIT $2"""
# Whether the broker may have refused an event whose place it says is taken.
_UNSURE = "SELECT 1 FROM {s}.outbox WHERE is_event AND published_at IS NULL AND seq <= :last LIMIT 1"
_MARK = "UPDATE {s}.outbox SET published_at = now() WHERE id = ANY($1::bigint[]) AND published_at IS NULL"

Row = Mapping[str, Any]  # id, message_id, subject, payload, seq, tenant_seq; the numbers are None for a command.


@dataclass(frozen=True)
class _Batch:
    """What one look at the outbox found."""

    events: Sequence[Row]
    commands: Sequence[Row]

    def __len__(self) -> int:
        return len(self.events) + len(self.commands)

    @property
    def full(self) -> bool:
        return len(self.events) == BATCH or len(self.commands) == BATCH


def stamped(row: Row) -> bytes:
    """An event's payload with its numbers, spliced into the JSON object instead of parsing it again."""
    stamps = f',"sequence":"{sequence_text(row["seq"])}","tenantsequence":"{sequence_text(row["tenant_seq"])}"}}'
    return bytes(row["payload"][:-1]) + stamps.encode()


def _neighbours(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows up to the first gap; what lies in it comes first: from the archive, or a void number's filler."""
    for number, row in enumerate(rows):
        if row["seq"] != rows[0]["seq"] + number:
            return rows[:number]
    return rows


def chains(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The events in pieces of bounded size: so much is on its way before an acknowledgement is awaited."""
    first, size = 0, 0
    for number, row in enumerate(rows):
        size += len(row["payload"])
        if size >= CHAIN_BYTES:
            yield rows[first : number + 1]
            first, size = number + 1, 0
    if first < len(rows):
        yield rows[first:]


class Outbox:
    """The relay of one service in one process. `wake` it after a commit; `run` it for ever."""

    def __init__(self, service: str, database: Database, js: JetStreamContext, holder: str) -> None:
        self.service, self.database, self.js = service, database, js
        self.stream = event_stream(service)
        self._number = _NUMBER.format(s=service)
        self._unsent = _UNSENT.format(s=service)
        self._work = _WORK.format(s=service)
        self._unsure = _UNSURE.format(s=service)
        self.lease = Lease(service, "sequencer", holder)
        self.gate = Gate()  # Shut while nobody knows whether this database may publish (libs/runtime/history.py).
        self.archive: Archive | None = None
        self._woken = asyncio.Event()
        self._resync = True
        self._backlog = False
        self._acknowledged: list[int] = []  # Rows that the broker has and that are not marked yet.

    def wake(self) -> None:
        """Something was committed: look now."""
        self._woken.set()

    async def run(self) -> None:
        """Relay until cancelled; every fault is logged, backed off from and tried again."""
        backoff = 0.1
        checked = looked = 0.0
        woken = True
        loop = asyncio.get_running_loop()
        while True:
            await self.gate.wait()
            await asyncio.sleep(max(0.0, looked + PACE_SECONDS - loop.time()))
            looked = loop.time()
            try:
                self._woken.clear()
                if self._resync or loop.time() - checked > CHECK_SECONDS:
                    await self._mark()
                    await self._bring_broker_up_to_date()
                    checked = loop.time()
                if not woken:
                    await self._mark()
                if woken or await self.database.any(self._work):
                    await self.relay_all()
                backoff = 0.1
            except Exception as error:
                self._resync = True
                log.warning("relay_failed", service=self.service, error=repr(error), retry_in_seconds=backoff)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)
                continue
            woken = await self._wait()

    async def _wait(self) -> bool:
        """Wait to be woken; False when nobody did for the idle time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                return await self._woken.wait()
        return False

    async def relay_all(self) -> None:
        """Relay until a look finds less than a full batch: who commits more meanwhile wakes us.

        While a full one is on its way to the broker, the next is numbered.
        """
        batch = await self._next_batch()
        while batch:
            # Commands are found by not being marked: while some are on their way, another look would find them again.
            ahead = batch.full and not batch.commands
            following = asyncio.create_task(self._next_batch()) if ahead else None
            try:
                await self._publish(batch)
            except BaseException:
                if following is not None:
                    following.cancel()
                raise
            if not batch.full:
                break
            batch = await (following or self._next_batch())
        # Commands are found by not being marked; events are not, so their marks wait for the next transaction.
        if batch.commands:
            await self._mark()

    async def _next_batch(self) -> _Batch:
        """Number what was committed; read it and the commands not sent yet. The lease's row fences all of it."""
        async with self.database.transaction() as conn:
            if await self.lease.take(conn) is None:
                return _Batch((), ())
            driver = await driver_of(conn)
            await self._mark_with(driver)
            if self._backlog:
                await keep_to_indexes(conn)
            numbered = await driver.fetch(self._number, BATCH)
            commands = await driver.fetch(self._unsent, BATCH)
        batch = _Batch(sorted(numbered, key=_by_number), commands)
        self._backlog = batch.full
        return batch

    async def _publish(self, batch: _Batch) -> None:
        if batch.events:
            await self._publish_events(batch.events)
        if batch.commands:
            await self._publish_commands(batch.commands)

    async def _publish_events(self, rows: Sequence[Row]) -> None:
        """Publish in order. Raises when the broker doesn't hold all of them afterwards."""
        client = client_of(self.js)
        for chain in chains(rows):
            for number, row in enumerate(chain[:-1]):
                if number % TURN == 0:
                    await asyncio.sleep(0)  # Publishing only fills a buffer: others get their turn between.
                await client.publish(row["subject"], stamped(row), headers=_expecting(chain, number))
            last, headers = chain[-1], _expecting(chain, len(chain) - 1)
            await self.js.publish(last["subject"], stamped(last), timeout=ACK_TIMEOUT_SECONDS, headers=headers)
            self._keep(chain, "event")

    async def _publish_commands(self, rows: Sequence[Row]) -> None:
        """Publish pipelined, each acknowledged on its own. Raises on the first refusal, after the others."""
        futures = [
            await self.js.publish_async(row["subject"], row["payload"], headers={"Nats-Msg-Id": row["message_id"]})
            for row in rows
        ]
        async with asyncio.timeout(ACK_TIMEOUT_SECONDS):
            results = await asyncio.gather(*futures, return_exceptions=True)
        kept = [row for row, result in zip(rows, results, strict=True) if not isinstance(result, BaseException)]
        self._keep(kept, "command")
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        if failed is not None:
            await self._mark()
            raise failed

    def _keep(self, rows: Sequence[Row], kind: str) -> None:
        """The broker has them; they are marked with the next transaction."""
        self._acknowledged += [row["id"] for row in rows]
        PUBLISHED.labels(self.service, kind).inc(len(rows))

    async def _mark(self) -> None:
        if self._acknowledged:
            async with self.database.driver() as driver:
                await self._mark_with(driver)

    async def _mark_with(self, driver: asyncpg.Connection[Any]) -> None:
        """A mark that is lost with its transaction is made up for: an event's by the next check with the broker, a
        command's by sending it again, which broker and receiver take for the repeat that it is."""
        if self._acknowledged:
            ids, self._acknowledged = self._acknowledged, []
            await driver.execute(_MARK.format(s=self.service), ids)

    async def _bring_broker_up_to_date(self) -> None:
        """Compare the stream's last sequence with ours; publish whatever it lacks, at the same sequences."""
        async with self.database.transaction() as conn:
            if await self.lease.take(conn) is None:
                return
            await self._measure(conn)
        while True:
            last = (await self.js.stream_info(self.stream)).state.last_seq
            if await self._stepped_over(last):
                continue
            rows = _neighbours(await self._numbered_after(last))
            if await self._refilled(last, rows):
                continue
            if not rows:
                break
            lost = [row for row in rows if row["acknowledged"]]
            if lost:
                log.warning("broker_lost_events", service=self.service, first=lost[0]["seq"], count=len(lost))
                REPUBLISHED.labels(self.service).inc(len(lost))
            # The first alone: if the broker refuses, its answer is the reason, not what follows from it.
            await self._publish_events(rows[:1])
            await self._publish_events(rows[1:])
        await self._mark()
        await self._mark_through(last)
        self._resync = False

    async def _stepped_over(self, last: int) -> bool:
        """Let our events go on after what somebody else wrote at the stream's end. False when there is none."""
        async with self.database.transaction() as conn:
            unsure = await conn.scalar(text(self._unsure), {"last": last})
            ahead = last > await last_numbered(conn, self.service)
        # Not while all goes well: then the last event was acknowledged, and what would follow it shows by itself.
        if not (self._resync or unsure or ahead):
            return False
        found = await foreign.unmatched(self.database, self.js, self.service, last)
        if not found:
            return False
        async with self.database.transaction() as conn:
            if await self.lease.take(conn) is None:
                raise RuntimeError("another replica has the lease")
            await foreign.step_over(conn, self.service, found)
        return True

    async def _refilled(self, last: int, rows: Sequence[Row]) -> bool:
        """Put back what only the archive still has of what comes after `last`. False when there is no such thing."""
        async with self.database.transaction() as conn:
            until = int(rows[0]["seq"]) - 1 if rows else await last_numbered(conn, self.service)
            void = await foreign.voids(conn, self.service, last + 1, last + 1)
        if until <= last:
            return False
        if void:
            await foreign.fill(self.js, self.service, last + 1)
            return True
        if self.archive is None:
            raise LostForGood(f"{self.stream} ends at {last}, the outbox after {until}, and no archive is known")
        await refill_events(self.js, self.stream, self.archive, last + 1, until)
        return True

    async def _numbered_after(self, last: int) -> Sequence[Row]:
        async with self.database.driver() as driver:
            rows: list[Row] = await driver.fetch(_AFTER.format(s=self.service), last, BATCH)
            return rows

    async def _mark_through(self, last: int) -> None:
        """Rows at or below the stream's last sequence are there, whether or not we saw the acknowledgement."""
        async with self.database.transaction() as conn:
            await conn.execute(
                text(
                    f"UPDATE {self.service}.outbox SET published_at = now() "
                    "WHERE published_at IS NULL AND seq IS NOT NULL AND seq <= :last"
                ),
                {"last": last},
            )

    async def _measure(self, conn: Any) -> None:
        row = (
            await conn.execute(
                text(
                    f"SELECT count(*), coalesce(extract(epoch FROM now() - min(created_at)), 0) "
                    f"FROM {self.service}.outbox WHERE published_at IS NULL"
                )
            )
        ).one()
        WAITING.labels(self.service).set(row[0])
        OLDEST.labels(self.service).set(float(row[1]))


def _by_number(row: Row) -> int:
    return int(row["seq"])


def _expecting(chain: Sequence[Row], number: int) -> dict[str, str]:
    """An event is kept only right after the one before it.

    By its place and, inside of a chain, by its id: a foreign message that takes the place of one event would otherwise
    let the next one in, and the last one's acknowledgement would stand for an event that is nowhere.
    """
    row = chain[number]
    headers = {"Nats-Msg-Id": row["message_id"], "Nats-Expected-Last-Sequence": str(row["seq"] - 1)}
    if number:
        headers["Nats-Expected-Last-Msg-Id"] = chain[number - 1]["message_id"]
    return headers
