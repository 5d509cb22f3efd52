"""Runs one projection: a lease holder reads its streams from the kept position; batch and position commit together.

The position is the stream sequence, kept beside the tables; the broker's consumer is ephemeral and made anew
from that position, so there is no second position that could disagree. A stream that ends before our position
has lost its tail: its publisher will bring it back at the same sequences, and we wait for what is new.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import structlog
from nats.js import JetStreamContext
from prometheus_client import Counter, Gauge
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.admission import event_objection
from libs.bus.lease import Lease
from libs.bus.reading import open_reader, place
from libs.bus.topology import event_stream
from libs.contracts.causes import Cause
from libs.contracts.envelope import BadMessage, Envelope, decode
from libs.contracts.versions import NewerMessage, todays
from libs.projection.projection import Projection
from libs.runtime.database import Database
from libs.runtime.tasks import TaskSet

LEASE_SECONDS = 8.0
FETCH_TIMEOUT_SECONDS = 2.5  # Well below the lease: it is renewed with every batch and every silence.
STANDBY_SECONDS = 1.0

log = structlog.get_logger("projector")
APPLIED = Counter("slipway_projection_events_total", "Events applied", ["service", "projection"])
POSITION = Gauge("slipway_projection_position", "Stream sequence applied", ["service", "projection", "stream"])
LAG = Gauge("slipway_projection_lag_messages", "Events not applied yet", ["service", "projection", "stream"])
GAPS = Counter(
    "slipway_projection_gaps_total", "Sequence numbers that were missing", ["service", "projection", "stream"]
)
PASSED_OVER = Counter(
    "slipway_projection_passed_over_total",
    "Messages in an event stream that are no event of its owner",
    ["stream", "cause"],
)


class Projector:
    """One projection of one service in one process."""

    def __init__(self, service: str, projection: Projection, database: Database, js: JetStreamContext, holder: str):
        self.service, self.projection, self.database, self.js = service, projection, database, js
        self.lease = Lease(service, f"projection:{projection.name}", holder, LEASE_SECONDS)
        self.caught_up = dict.fromkeys(projection.streams, False)

    async def run(self) -> None:
        """Project all streams until cancelled."""
        async with TaskSet() as tasks:
            for stream in self.projection.streams:
                tasks.add(self._run_stream(stream))
            await tasks.first_end()

    async def _run_stream(self, stream: str) -> None:
        while True:
            try:
                async with self.database.transaction() as conn:
                    held = await self.lease.take(conn) is not None
                    position = await self._position(conn, stream)
                if held:
                    await self._follow(stream, position)
            except NewerMessage as error:
                # A replica of the newer release goes on; without one, the projection waits here and shows as lagging.
                log.warning("projector_stands_back", projection=self.projection.name, stream=stream, error=str(error))
                await self._stand_back()
            except Exception as error:
                log.warning(
                    "projector_failed",
                    service=self.service,
                    projection=self.projection.name,
                    stream=stream,
                    error=repr(error),
                )
            await asyncio.sleep(STANDBY_SECONDS)

    async def _follow(self, stream: str, position: int) -> None:
        """Read on from `position` for as long as the lease is ours."""
        async with await open_reader(self.js, event_stream(stream), position + 1) as reader:
            first = True
            while True:
                messages = await reader.next_batch(FETCH_TIMEOUT_SECONDS)
                if not first and skips(messages, position):
                    # An ephemeral consumer does not deliver twice: what a broken connection swallowed is read anew.
                    raise RuntimeError(f"messages after {position} were lost on the way; reading again")
                first = first and not messages
                events, newer = self._understood(readable(messages, position))
                messages = before(messages, newer)
                async with self.database.transaction() as conn:
                    if await self.lease.take(conn) is None:
                        return
                    if messages:
                        position = await self._apply(conn, stream, position, events, messages)
                if newer is not None:
                    todays(newer)  # Raises NewerMessage.
                self.caught_up[stream] = not messages or messages[-1].metadata.num_pending == 0
                self._measure(stream, position, messages)

    async def _apply(
        self, conn: AsyncConnection, stream: str, position: int, events: Sequence[Envelope], messages: Sequence[Any]
    ) -> int:
        # Locking the position row first: whoever took the lease over meanwhile has moved it, and we stop.
        kept = await self._position(conn, stream, lock=True)
        if kept != position:
            raise RuntimeError(f"the position of {stream} moved from {position} to {kept}: somebody else projects")
        last = max(position, place(messages[-1]))
        missing = last - position - len(events)
        if events and missing > 0:
            GAPS.labels(self.service, self.projection.name, stream).inc(missing)
        if events:
            await self.projection.take_in(conn, events)
            APPLIED.labels(self.service, self.projection.name).inc(len(events))
        await set_position(conn, self.service, self.projection.name, stream, last)
        return last

    def _understood(self, events: list[Envelope]) -> tuple[list[Envelope], Envelope | None]:
        """The events up to the first that only a newer release reads, and that one."""
        if self.projection.as_sent:
            return events, None
        for index, event in enumerate(events):
            try:
                todays(event)
            except NewerMessage:
                return events[:index], event
        return events, None

    async def _stand_back(self) -> None:
        """Let another replica have the lease, and leave it the time to take it."""
        async with self.database.transaction() as conn:
            await self.lease.give_back(conn)
        await asyncio.sleep(LEASE_SECONDS)

    async def _position(self, conn: AsyncConnection, stream: str, *, lock: bool = False) -> int:
        return await get_position(conn, self.service, self.projection.name, stream, lock=lock)

    def _measure(self, stream: str, position: int, messages: Sequence[Any]) -> None:
        POSITION.labels(self.service, self.projection.name, stream).set(position)
        LAG.labels(self.service, self.projection.name, stream).set(messages[-1].metadata.num_pending if messages else 0)


def skips(messages: Sequence[Any], position: int) -> bool:
    """Whether a sequence number is missing between `position` and the messages, or among them."""
    for message in messages:
        sequence = place(message)
        if sequence > position + 1:
            return True
        position = max(position, sequence)
    return False


def before(messages: Sequence[Any], event: Envelope | None) -> list[Any]:
    """The messages before the one that carries `event`; all of them when it is None."""
    if event is None:
        return list(messages)
    return list(itertools.takewhile(lambda message: decode_id(message.data) != event.id, messages))


def decode_id(payload: bytes) -> str | None:
    try:
        return decode(payload).id
    except BadMessage:
        return None


def readable(messages: Sequence[Any], after: int) -> list[Envelope]:
    """The events of messages beyond sequence `after`; what is none of its owner is counted and passed over."""
    events = []
    for message in messages:
        position = place(message)
        if position <= after:
            continue
        try:
            event = decode(message.data)
        except BadMessage as error:
            _passed_over(message, Cause.UNREADABLE, str(error))
            continue
        objection = event_objection(message.subject, position, event)
        if objection is None:
            events.append(event)
        else:
            _passed_over(message, Cause.WRONG_SENDER, objection)
    return events


def _passed_over(message: Any, cause: Cause, error: str) -> None:
    PASSED_OVER.labels(message.metadata.stream, cause.value).inc()
    log.error("no_event", stream=message.metadata.stream, subject=message.subject, cause=cause.value, error=error)


async def get_position(conn: AsyncConnection, service: str, projection: str, stream: str, *, lock: bool = False) -> int:
    row = await conn.scalar(
        text(
            f"SELECT position FROM {service}.projection_position WHERE projection = :p AND stream = :s"
            + (" FOR UPDATE" if lock else "")
        ),
        {"p": projection, "s": stream},
    )
    return int(row or 0)


async def set_position(conn: AsyncConnection, service: str, projection: str, stream: str, position: int) -> None:
    await conn.execute(
        text(
            f"""INSERT INTO {service}.projection_position (projection, stream, position, updated_at)
            VALUES (:p, :s, :n, now())
            ON CONFLICT (projection, stream) DO UPDATE SET position = excluded.position, updated_at = now()"""
        ),
        {"p": projection, "s": stream, "n": position},
    )
