"""The inbox: every message lands in PostgreSQL once, is acknowledged, and is then worked in order per key.

Landing and working are apart, so that a slow or failing handler never holds the broker up, and attempts,
parking and dead letters are rows that people can see. A batch is handled in one transaction; when any of it
fails, the batch is split and each message gets a transaction of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from prometheus_client import Counter, Gauge
from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.admission import EPOCH_TYPE, Known, Refused, admit, epoch_counts
from libs.bus.context import keep_in_inbox, keep_in_outbox
from libs.bus.dead_letter_gauges import measure_forever
from libs.bus.dead_letters import id_of, letter_row
from libs.bus.errors import Transient, UnknownMessage, cause_of
from libs.bus.memory import note_epochs, read_known
from libs.bus.plans import keep_to_indexes
from libs.bus.pull import ConsumerGone, Puller, client_of
from libs.bus.tables import DEAD, DONE, PENDING, bus_tables
from libs.bus.topology import inbox_consumer, restore_inbox_consumer
from libs.contracts.causes import Cause
from libs.contracts.envelope import Envelope, decode, now_utc
from libs.contracts.replies import REPLY_TYPE
from libs.runtime.database import Database

LAND_BATCH = 500
WORK_BATCH = 100
IDLE_SECONDS = 1.0  # What lands here wakes the worker; this is for retries that come due and for other replicas.
MAX_ATTEMPTS = 8  # With the back-off below: about four minutes before a message is set aside for a human.
# While versions are rolled out, each attempt finds an old replica or a new one, which knows the message. Sixteen
# attempts are some eleven minutes, and all but never made by old ones alone.
MAX_UNKNOWN_ATTEMPTS = 16
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 60.0

log = structlog.get_logger("inbox")
LANDED = Counter("slipway_inbox_landed_total", "Messages taken from the broker", ["service", "stream"])
REFUSED = Counter("slipway_inbox_refused_total", "Messages not let in", ["service", "stream", "cause"])
CONSUMERS_RESTORED = Counter(
    "slipway_inbox_consumers_restored_total",
    "Durables that somebody had deleted and that were made again",
    ["service", "stream"],
)
WORKED = Counter("slipway_inbox_worked_total", "Messages handled", ["service", "outcome"])
LAG = Gauge(
    "slipway_bus_lag_messages", "Messages in the stream that this consumer has not taken yet", ["service", "stream"]
)


@dataclass(frozen=True)
class Received:
    """One landed message under work."""

    inbox_id: int
    envelope: Envelope
    attempts: int


Row = dict[str, Any]

# Of each key the oldest, unless that one waits, is set aside, or is under work elsewhere.
_CLAIM = f"""SELECT i.id, i.payload, i.attempts FROM {{s}}.inbox i
WHERE i.state = {PENDING} AND i.due_at <= clock_timestamp() {{which}}
AND (i.key = '' OR NOT EXISTS (
    SELECT 1 FROM {{s}}.inbox e WHERE e.key = i.key AND e.id < i.id AND e.state IN ({PENDING}, {DEAD})))
ORDER BY i.id LIMIT $1 FOR UPDATE SKIP LOCKED"""
_FINISH = f"UPDATE {{s}}.inbox SET state = {DONE}, done_at = now(), error = NULL WHERE id = ANY($1::bigint[])"

# Handles a batch inside the given transaction; whatever it raises rolls all of it back.
BatchHandler = Callable[[AsyncConnection, Sequence[Received]], Awaitable[None]]


def landing_key(envelope: Envelope) -> str:
    """What keeps messages in order. Replies need none: a saga's row lock serialises them."""
    if envelope.type == REPLY_TYPE:
        return ""
    return envelope.subject


class Inbox:
    """The inbox of one service in one process."""

    def __init__(self, service: str, database: Database, js: JetStreamContext, handle: BatchHandler) -> None:
        self.service, self.database, self.js, self.handle = service, database, js, handle
        self.table = bus_tables(service).inbox
        self._finish = _FINISH.format(s=service)
        self._next, self._this = _CLAIM.format(s=service, which=""), _CLAIM.format(s=service, which="AND i.id = $2")
        self._due = f"SELECT 1 FROM {service}.inbox WHERE state = {PENDING} AND due_at <= clock_timestamp()"
        self._backlog = False
        self._woken = asyncio.Event()

    # -- landing --------------------------------------------------------------------------------

    async def land_forever(self, stream: str) -> None:
        """Take messages of the service's durable on `stream` until cancelled."""
        backoff = 0.1
        while True:
            try:
                client = client_of(self.js)
                async with Puller(client, stream, inbox_consumer(self.service), batch=LAND_BATCH) as puller:
                    while True:
                        await self._land_once(puller, stream)
                        backoff = 0.1
            except ConsumerGone as error:
                log.warning("consumer_gone", service=self.service, stream=stream, error=str(error))
                await self._restore_consumer(stream)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, 5.0)
            except Exception as error:
                log.warning("landing_failed", service=self.service, stream=stream, error=repr(error))
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, 5.0)

    async def _restore_consumer(self, stream: str) -> None:
        """Anybody with the broker's rights may have deleted it; what it had delivered is known here by id."""
        try:
            if await restore_inbox_consumer(self.js, self.service, stream):
                CONSUMERS_RESTORED.labels(self.service, stream).inc()
        except Exception as error:
            # The broker is starting, or the stream is gone: that one is the deployment's to declare.
            log.warning("consumer_not_restored", service=self.service, stream=stream, error=repr(error))

    async def _land_once(self, puller: Puller, stream: str) -> None:
        messages = await puller.next_batch(timeout=5.0)
        if not messages:
            return
        await self.land(stream, messages)
        for message in messages:
            await message.ack()
        LAG.labels(self.service, stream).set(messages[-1].metadata.num_pending)

    async def land(self, stream: str, messages: Sequence[Msg]) -> None:
        """Keep messages; those whose id is already here are known and left alone."""
        on_conflict = insert(self.table).on_conflict_do_nothing(index_elements=["message_id"])
        async with self.database.transaction() as conn:
            rows, refused, raised = self._sorted(stream, messages, await read_known(conn, self.service))
            if rows:
                await keep_in_inbox(conn, self.service, rows)
            for row in refused:
                await self._refuse(conn, stream, row, on_conflict)
            await note_epochs(conn, self.service, raised)
        LANDED.labels(self.service, stream).inc(len(messages))
        self._woken.set()

    def _sorted(
        self, stream: str, messages: Sequence[Msg], known: Known
    ) -> tuple[list[Row], list[Row], dict[str, int]]:
        """What is let in, what is refused, and the epochs that rose, which count for what follows in the batch."""
        epochs, now = dict(known.epochs), now_utc()
        known = Known(known.forgotten_before, epochs)
        raised: dict[str, int] = {}
        rows: list[Row] = []
        refused: list[Row] = []
        for message in messages:
            row: Row = {"subject": message.subject, "payload": message.data, "attempts": 0, "error": None}
            judged = admit(message.subject, message.data, known, now)
            if isinstance(judged, Refused):
                # Under the name of its place: its id is not to be trusted. It holds nobody up: hence no key.
                place = f"{stream}:{message.metadata.sequence.stream}"
                refused.append(
                    {**row, "message_id": place, "key": "", "state": DEAD, "error": judged.error}
                    | {"cause": judged.cause.value, "dead_at": now}
                )
                continue
            if epoch_counts(judged) and judged.epoch > max(1, epochs.get(judged.source, 1)):
                epochs[judged.source] = raised[judged.source] = judged.epoch
            # Keeping its epoch is all that an announcement asks for.
            state = DONE if judged.type == EPOCH_TYPE else PENDING
            rows.append({**row, "message_id": judged.id, "key": landing_key(judged), "state": state})
        return rows, refused, raised

    async def _refuse(self, conn: AsyncConnection, stream: str, row: Row, on_conflict: Insert) -> None:
        """A dead letter at once, unless it is a repeat of a message that was let in or refused before."""
        if await conn.scalar(select(self.table.c.id).where(self.table.c.message_id == id_of(row["payload"]))):
            return
        if await conn.scalar(on_conflict.values(row).returning(self.table.c.id)) is None:
            return
        REFUSED.labels(self.service, stream, row["cause"]).inc()
        log.error(
            "message_refused", service=self.service, place=row["message_id"], cause=row["cause"], error=row["error"]
        )
        letter = letter_row(self.service, row["subject"], row["payload"], 0, Cause(row["cause"]), row["error"])
        await keep_in_outbox(conn, self.service, [letter])

    # -- working --------------------------------------------------------------------------------

    def wake(self) -> None:
        self._woken.set()

    def clear(self) -> None:
        """Forget wake-ups so far: what they were about is looked at next."""
        self._woken.clear()

    async def wait(self) -> None:
        """Wait until something landed here, or is due that landed elsewhere or is tried again."""
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._woken.wait()
                return
            except TimeoutError:
                if await self._something_due():
                    return

    async def _something_due(self) -> bool:
        try:
            return await self.database.any(self._due)
        except Exception:
            return True  # Whoever works on it meets the same fault and deals with it.

    async def work_once(self) -> int:
        """Handle one batch. Returns how many messages were claimed."""
        ids: list[int] = []
        try:
            async with self.database.transaction() as conn:
                received = await self._claim(conn)
                ids = [message.inbox_id for message in received]
                if not received:
                    return 0
                await self.handle(conn, received)
                await self._done(conn, ids)
            WORKED.labels(self.service, "ok").inc(len(ids))
        except Exception as error:
            if not ids:
                raise
            if len(ids) > 1:
                log.info("batch_split", service=self.service, size=len(ids), error=repr(error))
            for inbox_id in ids:
                await self._work_alone(inbox_id)
        return len(ids)

    async def _work_alone(self, inbox_id: int) -> None:
        try:
            async with self.database.transaction() as conn:
                received = await self._claim(conn, inbox_id)
                if not received:
                    return
                await self.handle(conn, received)
                await self._done(conn, [inbox_id])
            WORKED.labels(self.service, "ok").inc()
        except Exception as error:
            await self._failed(inbox_id, error)

    async def _claim(self, conn: AsyncConnection, inbox_id: int | None = None) -> list[Received]:
        claimed: list[Any]
        if inbox_id is not None:
            claimed = list(await conn.exec_driver_sql(self._this, (1, inbox_id)))
        else:
            if self._backlog:
                await keep_to_indexes(conn)
            claimed = list(await conn.exec_driver_sql(self._next, (WORK_BATCH,)))
            self._backlog = len(claimed) == WORK_BATCH
        return [Received(row[0], decode(row[1]), row[2]) for row in claimed]

    async def _done(self, conn: AsyncConnection, ids: Sequence[int]) -> None:
        await conn.exec_driver_sql(self._finish, (list(ids),))

    async def _failed(self, inbox_id: int, error: Exception) -> None:
        """Count the attempt; the last one makes it a dead letter, and later messages of its key wait."""
        async with self.database.transaction() as conn:
            row = (
                await conn.execute(
                    text(
                        f"SELECT attempts, subject, payload FROM {self.service}.inbox "
                        f"WHERE id = :id AND state = {PENDING} FOR UPDATE"
                    ),
                    {"id": inbox_id},
                )
            ).first()
            if row is None:
                return
            attempts = row[0] + 1
            most = MAX_UNKNOWN_ATTEMPTS if isinstance(error, UnknownMessage) else MAX_ATTEMPTS
            dead = attempts >= most and not isinstance(error, Transient)
            wait = min(FIRST_BACKOFF_SECONDS * 2 ** min(attempts - 1, 12), LONGEST_BACKOFF_SECONDS)
            await conn.execute(
                text(
                    f"""UPDATE {self.service}.inbox SET attempts = :attempts, error = :error, state = :state,
                    due_at = clock_timestamp() + make_interval(secs => :wait),
                    cause = :cause, dead_at = CASE WHEN :dead THEN now() END WHERE id = :id"""
                ),
                {
                    "attempts": attempts,
                    "cause": cause_of(error).value if dead else None,
                    "dead": dead,
                    "error": repr(error)[:2000].replace("\x00", ""),
                    "state": DEAD if dead else PENDING,
                    "wait": wait,
                    "id": inbox_id,
                },
            )
            if dead:
                letter = letter_row(self.service, row[1], row[2], attempts, cause_of(error), repr(error)[:2000])
                await keep_in_outbox(conn, self.service, [letter])
        outcome = "dead" if dead else "retry"
        WORKED.labels(self.service, outcome).inc()
        level = log.error if dead else log.warning
        level(
            "message_failed",
            service=self.service,
            inbox_id=inbox_id,
            attempts=attempts,
            outcome=outcome,
            exc_info=error,
        )

    async def measure_forever(self) -> None:
        """Keep the gauges of dead letters true."""
        await measure_forever(self.service, self.database)
