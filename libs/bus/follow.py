"""Follow all events from a position on, for readers outside: in order, each once, a missing one shown as a gap.

Reads the stream `EVT` through an ephemeral consumer that the reader itself pulls from: who is slow is merely behind,
and nothing of theirs piles up anywhere. What a broken connection swallowed is read again from the position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

import nats.js.errors
import orjson
import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from prometheus_client import Counter

from libs.bus.position import Numbering, Position
from libs.bus.pull import ConsumerGone, Puller, client_of
from libs.bus.topology import EVENT_SERVICES

STREAM = "EVT"
BATCH = 64
BATCH_BYTES = 1024 * 1024  # With the batch this bounds what one reader holds in memory.
REQUEST_SECONDS = 5.0  # A request lost with a restarted broker is sent again this much later at most, plus a grace.
INACTIVE_SECONDS = 60  # The broker forgets the consumer of a reader that is gone.
# A position's time is the broker's; it may step back a little when its clock is set. What is read twice is left out.
LOOK_BACK = timedelta(seconds=30)

log = structlog.get_logger("follow")
UNREADABLE = Counter("slipway_follow_unreadable_total", "Messages among the events that are no event", ["stream"])


@dataclass(frozen=True)
class Followed:
    """One event: `payload` as it was published, `envelope` parsed, `position` behind it."""

    subject: str
    payload: bytes
    envelope: Mapping[str, Any]
    position: Position


@dataclass(frozen=True)
class Gap:
    """Numbers `first` to `last` of `key` are not in the stream any more (or never came); `position` is behind them."""

    key: str
    first: int
    last: int
    position: Position


class Follower:
    """A reader of the events of `tenants` (None: of everybody) and `services`; use as an async context manager.

    `position` None: only what comes from now on. Its numbering must be `numbering_for(tenants)`.
    """

    def __init__(
        self,
        js: JetStreamContext,
        tenants: Sequence[str] | None,
        services: Sequence[str] = EVENT_SERVICES,
        position: Position | None = None,
    ) -> None:
        self._js, self._tenants, self._services = js, tenants, services
        self._numbering = numbering_for(tenants)
        self.position = position or Position(self._numbering)
        self._from_now = position is None
        self._from_first = position is not None and position.since is None
        self.caught_up = False
        self._puller: Puller | None = None
        self._read_whole = False
        self._delivered = 0
        self._met: set[str] = set()

    async def __aenter__(self) -> Follower:
        await self._open()
        if self._from_now:
            # After the consumer is there: what comes in between is in both, and left out as known.
            self.position = Position(self._numbering, self.position.since, await self._newest())
        self._from_now = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def next_batch(self, timeout: float) -> list[Followed | Gap]:
        """What has come, in order; an empty list after `timeout` seconds of silence. Raises what the broker says."""
        if self._puller is None:
            await self._open()
        assert self._puller is not None
        try:
            messages = await self._puller.next_batch(timeout)
        except ConsumerGone:
            await self._close()  # The next call opens one from the position; the caller decides how often to try.
            return []
        if not messages:
            return []
        found = await self._take(messages)
        self.caught_up = self._puller is not None and messages[-1].metadata.num_pending == 0
        if self.caught_up:
            self._read_whole = False
        return found

    async def _take(self, messages: Sequence[Msg]) -> list[Followed | Gap]:
        found: list[Followed | Gap] = []
        for message in messages:
            self._delivered += 1
            if message.metadata.sequence.consumer != self._delivered:
                log.info("messages_lost_on_the_way", consumer=self._puller and self._puller.name)
                await self._close()
                return found
            envelope = readable(message.data)
            if envelope is None or not _own(message.subject, envelope):
                UNREADABLE.labels(STREAM).inc()
                continue
            key, number = self._numbering.key(envelope), self._numbering.number(envelope)
            missing = self._missing(key, number)
            if missing is not None and key not in self._met and not self._read_whole:
                # The first event of this key since we opened: the time may have led us too far. Look at everything.
                await self._close()
                self._read_whole = True
                return found
            self._met.add(key)
            if number <= self.position.seen.get(key, 0):
                continue
            self.position = self.position.after(key, number, message.metadata.timestamp)
            if missing is not None:
                found.append(Gap(key, *missing, self.position))
            found.append(Followed(message.subject, message.data, envelope, self.position))
        return found

    def _missing(self, key: str, number: int) -> tuple[int, int] | None:
        """The numbers that should have come before this one."""
        last = self.position.seen.get(key)
        if last is None:
            # There was none when we began. Only who reads from the very beginning knows that the first is number 1.
            last = 0 if self._from_first else number - 1
        return (last + 1, number - 1) if number > last + 1 else None

    async def _open(self) -> None:
        since = self.position.since
        config = api.ConsumerConfig(
            filter_subjects=self._subjects(),
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=INACTIVE_SECONDS,
            mem_storage=True,
            deliver_policy=api.DeliverPolicy.NEW if self._from_now else api.DeliverPolicy.ALL,
        )
        if since is not None and not self._read_whole:
            config.deliver_policy = api.DeliverPolicy.BY_START_TIME
            config.opt_start_time = since - LOOK_BACK
        made = await self._js.add_consumer(STREAM, config)
        if self._from_now:
            # By the broker's clock: from here on a break is bridged by reading from this time on.
            self.position = Position(self._numbering, made.created.astimezone(UTC))
        self._delivered, self._met = 0, set()
        client = client_of(self._js)
        puller = Puller(client, STREAM, made.name, batch=BATCH, max_bytes=BATCH_BYTES, request_seconds=REQUEST_SECONDS)
        self._puller = await puller.__aenter__()

    def _subjects(self) -> list[str]:
        services = ["*"] if set(self._services) >= set(EVENT_SERVICES) else self._services
        return [f"evt.*.{tenant}.{service}.>" for tenant in self._tenants or ("*",) for service in services]

    async def _newest(self) -> dict[str, int]:
        """The newest number by key; a key without any event has none."""
        found: dict[str, int] = {}
        for tenant in self._tenants or ("*",):
            for service in self._services:
                try:
                    last = await self._js.get_last_msg(STREAM, f"evt.*.{tenant}.{service}.>", direct=True)
                except nats.js.errors.NotFoundError:
                    continue
                envelope = readable(last.data or b"")
                if envelope is not None:
                    found[self._numbering.key(envelope)] = self._numbering.number(envelope)
        return found

    async def _close(self) -> None:
        if self._puller is not None:
            await self._puller.__aexit__(None, None, None)
            self._puller = None


def public_event(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """The event as a tenant sees it: without the publisher's number, which would tell how busy everybody else is."""
    return {name: value for name, value in envelope.items() if name != "sequence"}


def numbering_for(tenants: Sequence[str] | None) -> Numbering:
    """How a reader of these tenants' events (None: of everybody's) counts."""
    return Numbering.SERVICE if tenants is None else Numbering.TENANT


def _own(subject: str, envelope: Mapping[str, Any]) -> bool:
    """Whether the event is of the service and tenant on whose subject it came: for those the broker vouches."""
    tokens = subject.split(".")
    return len(tokens) > 3 and envelope["source"] == f"/slipway/{tokens[3]}" and envelope["tenant"] == tokens[2]


def readable(payload: bytes) -> dict[str, Any] | None:
    """The event, None for what is none (others may have written into a stream; that must stop nobody)."""
    try:
        envelope = orjson.loads(payload)
        if isinstance(envelope, dict) and all(isinstance(envelope.get(name), str) for name in _NEEDED):
            datetime.fromisoformat(envelope["time"])
            if Numbering.SERVICE.number(envelope) > 0 and Numbering.TENANT.number(envelope) > 0:
                return envelope
    except (ValueError, TypeError):
        pass
    return None


_NEEDED = ("id", "source", "type", "subject", "tenant", "time")
