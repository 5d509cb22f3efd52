"""The relay: numbers a service's committed events and brings them, and its commands, to JetStream.

One lease holder per service (the sequencer) numbers every committed row it can see, in id order, gapless,
and publishes to EVT_<service> with the expected last stream sequence: number N lies at stream sequence N. So
a zombie publisher is refused, a partial failure can't reorder, and a broker that lost its tail shows at the
next publish or check and gets exactly the missing part again. Commands go to their own streams, at least
once, with the message id as de-duplication key; their receivers' inboxes make the effect happen once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from nats.js import JetStreamContext
from prometheus_client import Counter, Gauge
from sqlalchemy import text

from libs.bus.lease import Lease
from libs.bus.topology import event_stream
from libs.contracts.envelope import sequence_text
from libs.runtime.database import Database

BATCH = 1000
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
    SELECT id, tenant FROM {s}.outbox WHERE is_event AND seq IS NULL ORDER BY id LIMIT :batch),
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


@dataclass(frozen=True)
class _Row:
    id: int
    message_id: str
    subject: str
    payload: bytes
    seq: int | None
    tenant_seq: int | None

    def stamped(self) -> bytes:
        """The payload with its numbers, spliced into the JSON object instead of parsing it again."""
        if self.seq is None or self.tenant_seq is None:
            return self.payload
        stamps = f',"sequence":"{sequence_text(self.seq)}","tenantsequence":"{sequence_text(self.tenant_seq)}"}}'
        return self.payload[:-1] + stamps.encode()

    def headers(self) -> dict[str, str]:
        headers = {"Nats-Msg-Id": self.message_id}
        if self.seq is not None:
            headers["Nats-Expected-Last-Sequence"] = str(self.seq - 1)
        return headers


class Outbox:
    """The relay of one service in one process. `wake` it after a commit; `run` it for ever."""

    def __init__(self, service: str, database: Database, js: JetStreamContext, holder: str) -> None:
        self.service, self.database, self.js = service, database, js
        self.stream = event_stream(service)
        self.lease = Lease(service, "sequencer", holder)
        self._woken = asyncio.Event()
        self._resync = True
        self._acknowledged: set[int] = set()

    def wake(self) -> None:
        """Something was committed: look now."""
        self._woken.set()

    async def run(self) -> None:
        """Relay until cancelled; every fault is logged, backed off from and tried again."""
        backoff = 0.1
        checked = 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._woken.clear()
                if self._resync or loop.time() - checked > CHECK_SECONDS:
                    await self._bring_broker_up_to_date()
                    checked = loop.time()
                moved = await self.relay_once()
                backoff = 0.1
            except Exception as error:
                self._resync = True
                log.warning("relay_failed", service=self.service, error=repr(error), retry_in_seconds=backoff)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)
                continue
            if not moved:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await self._woken.wait()

    async def relay_once(self) -> int:
        """Number and publish one batch of events and one of commands. Returns how many were acknowledged."""
        events, commands = await self._next_batch()
        if events:
            await self._publish(events)
        if commands:
            await self._publish(commands)
        return len(events) + len(commands)

    async def _next_batch(self) -> tuple[list[_Row], list[_Row]]:
        """Number what was committed; read it and the commands not sent yet. The lease's row fences all of it."""
        async with self.database.transaction() as conn:
            if await self.lease.take(conn) is None:
                return [], []
            numbered = await conn.execute(text(_NUMBER.format(s=self.service)), {"batch": BATCH})
            events = sorted((_Row(*row) for row in numbered), key=lambda row: row.seq or 0)
            unsent = await conn.execute(
                text(
                    f"SELECT id, message_id, subject, payload, NULL::bigint, NULL::bigint FROM {self.service}.outbox "
                    "WHERE published_at IS NULL AND NOT is_event ORDER BY id LIMIT :batch"
                ),
                {"batch": BATCH},
            )
            return events, [_Row(*row) for row in unsent]

    async def _publish(self, rows: Sequence[_Row]) -> None:
        """Publish pipelined, in order; mark what was acknowledged. Raises on the first refusal."""
        futures = [await self.js.publish_async(row.subject, row.stamped(), headers=row.headers()) for row in rows]
        async with asyncio.timeout(ACK_TIMEOUT_SECONDS):
            results = await asyncio.gather(*futures, return_exceptions=True)
        kept = [row for row, result in zip(rows, results, strict=True) if not isinstance(result, BaseException)]
        await self._mark(kept)
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        if failed is not None:
            raise failed

    async def _mark(self, rows: Sequence[_Row]) -> None:
        if not rows:
            return
        async with self.database.transaction() as conn:
            await conn.execute(
                text(
                    f"UPDATE {self.service}.outbox SET published_at = now() "
                    "WHERE id = ANY(:ids) AND published_at IS NULL"
                ),
                {"ids": [row.id for row in rows]},
            )
        kind = "event" if rows[0].seq is not None else "command"
        PUBLISHED.labels(self.service, kind).inc(len(rows))

    async def _bring_broker_up_to_date(self) -> None:
        """Compare the stream's last sequence with ours; publish whatever it lacks, at the same sequences."""
        async with self.database.transaction() as conn:
            if await self.lease.take(conn) is None:
                return
            await self._measure(conn)
        while True:
            last = (await self.js.stream_info(self.stream)).state.last_seq
            rows = await self._numbered_after(last)
            if not rows:
                break
            if rows[0].seq != last + 1:
                raise RuntimeError(
                    f"{self.stream} ends at {last} but the outbox goes on at {rows[0].seq}: "
                    "the events between are only in the audit store; restore them from there"
                )
            lost = [row for row in rows if row.id in self._acknowledged]
            if lost:
                log.warning("broker_lost_events", service=self.service, first=lost[0].seq, count=len(lost))
                REPUBLISHED.labels(self.service).inc(len(lost))
            await self._publish(rows)
        await self._mark_through(last)
        self._resync = False

    async def _numbered_after(self, last: int) -> list[_Row]:
        async with self.database.transaction() as conn:
            result = await conn.execute(
                text(
                    f"SELECT id, message_id, subject, payload, seq, tenant_seq, published_at "
                    f"FROM {self.service}.outbox WHERE seq > :last ORDER BY seq LIMIT :batch"
                ),
                {"last": last, "batch": BATCH},
            )
            found = list(result)
        self._acknowledged = {row[0] for row in found if row[6] is not None}
        return [_Row(*row[:6]) for row in found]

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
