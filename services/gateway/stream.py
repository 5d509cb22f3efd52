"""The live stream of events as server-sent events: bounded, resumable, and cut with a reason rather than in silence.

A connection pulls from the broker what it can pass on, so a slow client is only behind; one that takes nothing for
`stall_seconds` is cut. Its last id is all that is needed to go on, at any replica, after any break.
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
import structlog
from nats.aio.client import Client
from prometheus_client import Counter, Gauge
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from libs.bus.follow import LOOK_BACK, Followed, Follower, Gap, numbering_for, public_event
from libs.bus.position import BadPosition, Position
from libs.bus.topology import EVENT_SERVICES
from libs.runtime.tasks import end_all
from services.gateway import request_parts
from services.gateway.access import Access, tenants_touchable
from services.gateway.pipeline import Gate, sign_in
from services.gateway.problems import Refusal, invalid, problem_response, unavailable
from services.gateway.routes import Door, Route

MEDIA_TYPE = "text/event-stream"
START = "start"
RETRY_MILLISECONDS = 2000
PIECE_BYTES = 64 * 1024  # What is handed to the socket at once.
LAST_WORD_SECONDS = 2.0  # For saying why a client is cut that takes nothing.
MAX_TENANTS = 20  # An id holds a number for each tenant and service.

log = structlog.get_logger("gateway")
OPEN = Gauge("slipway_stream_connections", "Open streams of events", ["door"])
SENT = Counter("slipway_stream_events_total", "Events sent to streams", ["door"])
ENDED = Counter("slipway_stream_ended_total", "Streams that ended, by reason", ["door", "reason"])


@dataclass(frozen=True)
class StreamLimits:
    """Seconds and counts that bound what one stream, one caller and all of them may cost."""

    heartbeat_seconds: float = 15.0
    stall_seconds: float = 30.0
    most_per_caller: int = 10
    most: int = 200


@dataclass(frozen=True)
class End:
    """Why the server ends a stream: the last frame says it."""

    code: str
    detail: str
    next_step: str = "Connect again with the last id; nothing is lost."


@dataclass
class Streams:
    """The open streams of a gateway. `close` ends all of them, before the process stops."""

    bus: Client
    limits: StreamLimits = field(default_factory=StreamLimits)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    _by_caller: Tally[str] = field(default_factory=Tally)

    def close(self) -> None:
        self.closing.set()

    @contextmanager
    def place(self, actor: str) -> Iterator[None]:
        """A place for one more stream of the caller. Raises Refusal when there is none."""
        if self._by_caller[actor] >= self.limits.most_per_caller:
            raise Refusal(
                429,
                "gateway.too_many_streams",
                f"{actor} has {self._by_caller[actor]} streams open; {self.limits.most_per_caller} are allowed.",
                "Close one, or read several kinds of event from one stream.",
                headers={"Retry-After": "5"},
            )
        if self._by_caller.total() >= self.limits.most:
            raise unavailable("gateway.streams_full", f"{self.limits.most} streams are open here.", 5)
        self._by_caller[actor] += 1
        try:
            yield
        finally:
            self._by_caller[actor] -= 1


@dataclass(frozen=True)
class Wanted:
    """What the stream shows. `tenants` None: everybody's. The rest is looked at event by event, so gaps still show."""

    tenants: tuple[str, ...] | None
    services: tuple[str, ...]
    types: frozenset[str]
    entities: frozenset[str]
    sites: frozenset[str]

    def matches(self, envelope: Mapping[str, Any]) -> bool:
        return (
            (not self.types or envelope["type"] in self.types)
            and (not self.entities or envelope["subject"] in self.entities)
            and (not self.sites or envelope.get("site") in self.sites)
        )


async def serve_stream(streams: Streams, gate: Gate, route: Route, request: Request) -> Response:
    """The stream as a response. Raises Refusal for what is refused before it begins."""
    principal = await sign_in(gate, request)
    access = await gate.access.access(principal, request.state.correlation_id)
    request.state.actor = access.actor
    touchable = tenants_touchable(access, gate.door, route.need)
    query = request_parts.query_values(request, route.query)
    wanted = _wanted(query, touchable)
    position = _position(query, request_parts.single_header(request, "Last-Event-ID"), wanted)

    async def still_allowed() -> End | None:
        if time.time() >= principal.expires_at:
            return End("stream.token_expired", "Your token has expired.", "Sign in and connect with the last id.")
        now = await gate.access.access(principal, request.state.correlation_id)
        if _tenants_now(now, gate.door, route, touchable) != touchable:
            return End("stream.access_changed", "What you may see has changed.")
        return None

    if not streams.bus.is_connected:
        raise unavailable("gateway.bus_unavailable", "The message bus cannot be reached just now.")
    return EventStream(streams, gate.door, access.actor, wanted, position, still_allowed)


def _tenants_now(access: Access, door: Door, route: Route, before: tuple[str, ...] | None) -> tuple[str, ...] | None:
    try:
        return tenants_touchable(access, door, route.need)
    except Refusal:
        return () if before is None else None  # Anything that differs: nothing may be seen any more.


def _wanted(query: Mapping[str, Any], touchable: tuple[str, ...] | None) -> Wanted:
    asked = tuple(query.get("tenant", ()))
    if touchable is not None:
        for tenant in asked:
            if tenant not in touchable:
                known = ", ".join(touchable)
                raise invalid("query", [{"field": "tenant", "message": f"names {tenant!r}; you can see: {known}"}])
    tenants = asked or touchable
    if tenants is not None and len(tenants) > MAX_TENANTS:
        raise invalid("query", [{"field": "tenant", "message": f"more than {MAX_TENANTS} tenants; name some"}])
    return Wanted(
        tenants,
        tuple(query.get("service", ())) or EVENT_SERVICES,
        frozenset(query.get("type", ())),
        frozenset(query.get("entity_id", ())),
        frozenset(query.get("site", ())),
    )


def _position(query: Mapping[str, Any], last_id: str | None, wanted: Wanted) -> Position | None:
    """Where to begin: the header of a client that comes back counts before what its address says."""
    numbering = numbering_for(wanted.tenants)
    field_name, token = ("Last-Event-ID", last_id) if last_id else ("after", query.get("after"))
    if token == START:
        return Position(numbering)
    if token:
        try:
            return Position.parse(token, numbering)
        except BadPosition as error:
            raise invalid("query", [{"field": field_name, "message": str(error)}]) from None
    if since := query.get("since"):
        return Position(numbering, datetime.fromisoformat(since) + LOOK_BACK)
    return None


class EventStream(Response):
    """Sends until the client goes away or the server says why it ends."""

    def __init__(
        self,
        streams: Streams,
        door: Door,
        actor: str,
        wanted: Wanted,
        position: Position | None,
        still_allowed: Callable[[], Any],
    ) -> None:
        super().__init__(status_code=200, media_type=MEDIA_TYPE)
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"
        del self.headers["content-length"]
        self._streams, self._door, self._actor, self._wanted = streams, door, actor, wanted
        self._given, self._still_allowed = position, still_allowed
        self._send: Send

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        try:
            with self._streams.place(self._actor):
                await self._serve(receive)
        except Refusal as refusal:  # Raised before anything was sent.
            correlation_id = scope["state"]["correlation_id"]
            answer = problem_response(refusal, correlation_id=correlation_id, instance=scope["path"])
            await answer(scope, receive, send)

    async def _serve(self, receive: Receive) -> None:
        reason = "client"
        follower = Follower(self._streams.bus.jetstream(), self._wanted.tenants, self._wanted.services, self._given)
        async with _opened(follower):
            OPEN.labels(self._door).inc()
            try:
                await self._send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                reason = await self._until_end(follower, receive)
            finally:
                OPEN.labels(self._door).dec()
                ENDED.labels(self._door, reason).inc()
                log.info("stream_ended", door=self._door, actor=self._actor, reason=reason)

    async def _until_end(self, follower: Follower, receive: Receive) -> str:
        gone = asyncio.create_task(_disconnected(receive))
        feeding = asyncio.create_task(self._feed(follower))
        closing = asyncio.create_task(self._streams.closing.wait())
        try:
            await asyncio.wait({gone, feeding, closing}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return "client"
            end = feeding.result() if feeding.done() else End("stream.restarting", "The gateway is restarting.")
        finally:
            await end_all((gone, feeding, closing))
        return await self._say_goodbye(end)

    async def _feed(self, follower: Follower) -> End:
        """Pass events on until there is a reason to stop."""
        limits = self._streams.limits
        try:
            await self._write(_opening(follower.position))
            looked = time.monotonic()
            while True:
                items = await follower.next_batch(limits.heartbeat_seconds)
                for piece in self._frames(items):
                    await self._write(piece)
                if not items or time.monotonic() - looked > limits.heartbeat_seconds:
                    await self._write(_heartbeat(follower.position))
                if time.monotonic() - looked > min(limits.heartbeat_seconds, 5.0):
                    looked = time.monotonic()
                    if (end := await self._still_allowed()) is not None:
                        return end  # type: ignore[no-any-return]
                if not self._streams.bus.is_connected:
                    return End("stream.bus_unavailable", "The message bus cannot be reached just now.")
        except _Stalled:
            return End("stream.too_slow", f"You took nothing for {limits.stall_seconds:g} s.")
        except Refusal as refusal:
            return End("stream.access_unknown", refusal.detail)
        except Exception as error:
            log.warning("stream_failed", door=self._door, error=repr(error))
            return End("stream.bus_unavailable", "The events cannot be read just now.")

    def _frames(self, items: list[Followed | Gap]) -> Iterator[bytes]:
        """Frames of what matches, in pieces of about PIECE_BYTES; the position moves on over what does not."""
        piece = bytearray()
        for item in items:
            if isinstance(item, Gap):
                piece += _gap(item)
            elif self._wanted.matches(item.envelope):
                envelope = public_event(item.envelope) if self._wanted.tenants is not None else item.envelope
                piece += _frame(item.position, orjson.dumps(envelope))
                SENT.labels(self._door).inc()
            if len(piece) > PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        if piece:
            yield bytes(piece)

    async def _write(self, body: bytes) -> None:
        try:
            async with asyncio.timeout(self._streams.limits.stall_seconds):
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:
            raise _Stalled from None

    async def _say_goodbye(self, end: End) -> str:
        """The last frame; a client that takes nothing may miss it, and its connection is closed all the same."""
        words = {"code": end.code, "detail": end.detail, "next_step": end.next_step}
        frame = _frame(None, orjson.dumps(words), "goodbye")
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._send({"type": "http.response.body", "body": frame, "more_body": False})
        except TimeoutError:
            log.info("stream_cut", door=self._door, actor=self._actor, code=end.code)
        return end.code.removeprefix("stream.")


class _Stalled(Exception):
    """The client takes nothing."""


@asynccontextmanager
async def _opened(follower: Follower) -> AsyncIterator[None]:
    """The follower, opened; a broker that cannot do it now is 503, before anything was sent."""
    try:
        await follower.__aenter__()
    except Exception as error:
        log.warning("stream_not_opened", error=repr(error))
        raise unavailable("gateway.bus_unavailable", "The events cannot be read just now.") from None
    try:
        yield
    finally:
        await follower.__aexit__(None, None, None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _frame(position: Position | None, data: bytes, name: str | None = None) -> bytes:
    """One server-sent event. JSON has no line ends, so one data line holds it."""
    head = b"" if position is None else b"id: " + position.token().encode() + b"\n"
    kind = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + kind + b"data: " + data + b"\n\n"


def _opening(position: Position) -> bytes:
    return f"retry: {RETRY_MILLISECONDS}\nid: {position.token()}\n\n".encode()


def _heartbeat(position: Position) -> bytes:
    """A comment keeps proxies from closing; the id moves on although nothing matched."""
    return f": heartbeat\nid: {position.token()}\n\n".encode()


def _gap(gap: Gap) -> bytes:
    words = {
        "of": gap.key,
        "first": gap.first,
        "last": gap.last,
        "next_step": "These events are not in the broker any more; ask the event store for them (GET /events).",
    }
    return _frame(gap.position, orjson.dumps(words), "gap")
