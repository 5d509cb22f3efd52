"""The outermost layer of a door: correlation id, load limit, time, metrics and one log line a request.

Also the last catch: whatever goes wrong inside, the caller gets a problem document with the
correlation id, and the log has the traceback under the same id.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs.contracts.ids import new_uuid
from services.gateway.problems import Refusal, invalid, problem_response, unavailable
from services.gateway.request_parts import CORRELATION_FORM

log = structlog.get_logger("gateway")
MAX_IN_FLIGHT = 512  # A request holds about 50 kB and waits up to 10 s; beyond this, waiting helps nobody.
STREAM_PATH = "/events/stream"
QUIET_PATHS = frozenset({"/healthz", "/readyz"})
BUCKETS_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
NO_ROUTE = "(none)"


@dataclass(frozen=True)
class RequestMetrics:
    """What is counted about requests, by door, method, route template and status."""

    seconds: Histogram
    in_flight: Gauge
    crashed: Counter
    hooks: Counter


def request_metrics(registry: CollectorRegistry = REGISTRY) -> RequestMetrics:
    labels = ("door", "method", "route", "status")
    return RequestMetrics(
        Histogram(
            "slipway_api_request_seconds",
            "Time to answer a request",
            labels,
            buckets=BUCKETS_SECONDS,
            registry=registry,
        ),
        Gauge("slipway_api_requests_in_flight", "Requests being served", ("door",), registry=registry),
        Counter("slipway_api_crashes_total", "Requests that ended in an error of ours", ("door",), registry=registry),
        Counter(
            "slipway_netbox_hooks_total", "Webhooks of NetBox by what became of them", ("outcome",), registry=registry
        ),
    )


class Edge:
    """ASGI middleware around one door's application."""

    def __init__(self, app: ASGIApp, door: str, metrics: RequestMetrics, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._app = app
        self._door = door
        self._metrics = metrics
        self._max_in_flight = max_in_flight
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        if scope["path"].endswith(STREAM_PATH):
            # It stays open for hours and has limits of its own; it is no request in flight and has no usual time.
            try:
                await self._serve(exchange, receive)
            finally:
                self._log(exchange)
            return
        self._in_flight += 1
        self._metrics.in_flight.labels(self._door).set(self._in_flight)
        try:
            await self._serve(exchange, receive)
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.labels(self._door).set(self._in_flight)
            self._account(exchange)

    async def _serve(self, exchange: _Exchange, receive: Receive) -> None:
        scope = exchange.scope
        with structlog.contextvars.bound_contextvars(correlation_id=exchange.correlation_id):
            try:
                exchange.check()
                if self._in_flight > self._max_in_flight and scope["path"] not in QUIET_PATHS:
                    raise unavailable("gateway.busy", f"More than {self._max_in_flight} requests are being served.", 1)
                await self._app(scope, receive, exchange.send)
            except Refusal as refusal:
                await exchange.refuse(refusal, receive)
            except Exception:
                self._metrics.crashed.labels(self._door).inc()
                log.exception("request_crashed", door=self._door, method=scope["method"], path=scope["path"])
                await exchange.refuse(_crash(), receive)

    def _account(self, exchange: _Exchange) -> None:
        scope, seconds = exchange.scope, time.perf_counter() - exchange.began
        route = getattr(scope.get("route"), "path", NO_ROUTE)
        self._metrics.seconds.labels(self._door, scope["method"], route, str(exchange.status)).observe(seconds)
        if scope["path"] not in QUIET_PATHS:
            self._log(exchange)

    def _log(self, exchange: _Exchange) -> None:
        scope = exchange.scope
        log.info(
            "request",
            door=self._door,
            method=scope["method"],
            path=scope["path"][:200],
            status=exchange.status,
            milliseconds=round((time.perf_counter() - exchange.began) * 1000, 1),
            actor=scope["state"].get("actor"),
            correlation_id=exchange.correlation_id,
        )


class _Exchange:
    """One request and the response that has begun, if any. `status` 499: the caller went away."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.began = time.perf_counter()
        self.status = 499
        self._send = send
        self._sent_ids = Headers(scope=scope).getlist("X-Correlation-Id")
        fits = len(self._sent_ids) == 1 and CORRELATION_FORM.fullmatch(self._sent_ids[0]) is not None
        self.correlation_id = self._sent_ids[0] if fits else new_uuid()
        scope.setdefault("state", {})["correlation_id"] = self.correlation_id

    def check(self) -> None:
        if self._sent_ids and self._sent_ids != [self.correlation_id]:
            message = "must be sent once, with 1 to 128 letters, digits, dots, dashes, colons or underscores"
            raise invalid("header", [{"field": "X-Correlation-Id", "message": message}])

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Correlation-Id"] = self.correlation_id
            headers["X-Content-Type-Options"] = "nosniff"
        await self._send(message)

    async def refuse(self, refusal: Refusal, receive: Receive) -> None:
        if self.status != 499:  # The response has begun; nothing can be added to it.
            return
        response = problem_response(refusal, correlation_id=self.correlation_id, instance=self.scope["path"])
        await response(self.scope, receive, self.send)


def _crash() -> Refusal:
    return Refusal(
        500,
        "gateway.internal_error",
        "The gateway met an error of its own.",
        "Report this with the correlation id; whether anything was done can be seen with a GET.",
    )
