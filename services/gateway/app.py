"""The gateway's process: two doors on two ports, one bus connection, one identity provider.

Starts whether or not the bus and the provider are there, says so in /readyz, and recovers by itself.
The only place that wires things.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import orjson
import structlog
import uvicorn
from fastapi import FastAPI
from nats.aio.client import Client
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from libs.runtime.health import Health
from libs.runtime.logs import set_up_logging
from libs.runtime.tokens import TokenVerifier
from services.gateway.access_cache import IDENTITY_EVENTS, AccessCache
from services.gateway.doors import make_app
from services.gateway.edge import Edge, RequestMetrics, request_metrics
from services.gateway.hooks import NETBOX_PATH, NetBoxHook, hook_secrets
from services.gateway.owners import Owners
from services.gateway.pipeline import Gate, at_other_door, serve
from services.gateway.routes import Door, Route
from services.gateway.settings import Settings
from services.gateway.stream import StreamLimits, Streams, serve_stream

log = structlog.get_logger("gateway")
RECONNECT_WAIT_SECONDS = 1
CONNECT_TIMEOUT_SECONDS = 2
PENDING_BYTES = 1024 * 1024  # While the bus is away we refuse; hardly anything may pile up in the client.
BEAT_SECONDS = 1.0
SHUTDOWN_GRACE_SECONDS = 12  # A little more than an owner may take to answer.


@dataclass(frozen=True)
class Gateway:
    """The running parts: an application for each door, and what readiness looks at."""

    doors: dict[Door, ASGIApp]
    owners: Owners
    access: AccessCache
    verifier: TokenVerifier
    streams: Streams

    def problems(self) -> list[str]:
        """Why requests cannot be served now; empty when they can."""
        found = [] if self.owners.reachable else ["the message bus cannot be reached"]
        if not self.verifier.ready():
            found.append(f"sign-in is unavailable: {self.verifier.problem}")
        return found


async def connect(bus: Client, settings: Settings, cache: AccessCache) -> None:
    """Connect, for as long as it takes, and listen to identity's events from then on."""
    url = settings.nats_url

    async def lost() -> None:
        log.warning("bus_lost", url=url)
        await cache.forget()  # Identity's events may be missed from here on.

    async def back() -> None:
        log.info("bus_back", url=url)
        await cache.forget()

    async def failed(error: Exception) -> None:
        log.debug("bus_error", error=str(error))

    await bus.connect(
        url,
        name="gateway",
        inbox_prefix="_INBOX_gateway",
        user=settings.nats_user or None,
        password=settings.nats_password.get_secret_value() or None,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_WAIT_SECONDS,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        pending_size=PENDING_BYTES,
        disconnected_cb=lost,
        reconnected_cb=back,
        error_cb=failed,
    )
    await bus.subscribe(IDENTITY_EVENTS, cb=cache.forget)
    log.info("bus_connected", url=url)


@contextlib.asynccontextmanager
async def running(settings: Settings, metrics: RequestMetrics | None = None) -> AsyncIterator[Gateway]:
    """The gateway with its background work: bus connection and fresh signing keys."""
    bus = Client()
    owners = Owners(bus, settings.answer_within_seconds)
    cache = AccessCache(owners)
    async with httpx.AsyncClient() as http:
        verifier = TokenVerifier(
            settings.oidc_issuer,
            settings.tenant_audience,
            http,
            cache_file=settings.oidc_keys_file,
            accept_plain_jwt=settings.oidc_plain_jwt,
            allow_plain_http=settings.oidc_plain_http,
        )
        tenant = Gate(Door.TENANT, verifier, cache, owners)
        gates = (tenant, at_other_door(tenant, Door.OPERATOR, settings.operator_audience))
        doors: dict[Door, ASGIApp] = {}
        limits = StreamLimits(
            settings.stream_heartbeat_seconds,
            settings.stream_stall_seconds,
            settings.streams_per_caller,
            settings.streams,
        )
        gateway = Gateway(doors, owners, cache, verifier, Streams(bus, limits))
        metrics = metrics or request_metrics()
        apps = {gate.door: _door_app(gate, gateway) for gate in gates}
        hook = NetBoxHook(owners, hook_secrets(settings.netbox_hook_secret_file), metrics.hooks)
        apps[Door.OPERATOR].router.add_route(NETBOX_PATH, hook.serve, methods=["POST"])
        doors |= {door: Edge(app, door, metrics) for door, app in apps.items()}
        background = [
            asyncio.create_task(connect(bus, settings, cache)),
            asyncio.create_task(verifier.keep_fresh()),
        ]
        try:
            yield gateway
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await bus.close()


def _door_app(gate: Gate, gateway: Gateway) -> FastAPI:
    async def served(route: Route, request: Request) -> Response:
        if route.streams:
            return await serve_stream(gateway.streams, gate, route, request)
        return await serve(gate, route, request)

    async def healthy(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(_: Request) -> Response:
        problems = gateway.problems()
        body = {"status": "unready" if problems else "ready", "problems": problems}
        return Response(orjson.dumps(body), 503 if problems else 200, media_type="application/json")

    app = make_app(gate.door, gate.verifier.audience, served)
    app.router.add_route("/healthz", healthy)
    app.router.add_route("/readyz", ready)
    return app


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SystemExit with a message for a person when the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise SystemExit(f"gateway: cannot listen on {host}:{port} ({error.strerror}); choose another port") from error
    listener.listen(1024)
    return listener


@contextlib.asynccontextmanager
async def _health(settings: Settings, gateway: Gateway) -> AsyncIterator[None]:
    """Metrics and probes on a port of their own, as every process has them."""
    health = Health(settings.metrics_host, settings.metrics_port, gateway.problems)
    health.start()

    async def beat() -> None:
        while True:
            health.beat()
            await asyncio.sleep(BEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.to_thread(health.stop)


class _Server(uvicorn.Server):
    """One of several servers in a process: signals are the process's, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def _server(app: ASGIApp) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_GRACE_SECONDS,
        )
    )


async def main(settings: Settings) -> None:
    """Serve both doors until SIGTERM or SIGINT; requests in progress are finished."""
    listeners = {
        Door.TENANT: listen(settings.host, settings.tenant_port),
        Door.OPERATOR: listen(settings.host, settings.operator_port),
    }
    async with running(settings) as gateway, _health(settings, gateway):
        servers = {door: _server(app) for door, app in gateway.doors.items()}

        def stop() -> None:
            gateway.streams.close()
            for server in servers.values():
                server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        log.info("gateway_listening", tenant_port=settings.tenant_port, operator_port=settings.operator_port)
        await asyncio.gather(*(server.serve([listeners[door]]) for door, server in servers.items()))


def load_settings() -> Settings:
    """The settings from the environment. Raises SystemExit naming what is missing or wrong."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = "; ".join(f"SLIPWAY_{str(item['loc'][0]).upper()}: {item['msg']}" for item in error.errors())
        raise SystemExit(f"gateway: {wrong}") from None


if __name__ == "__main__":
    loaded = load_settings()
    set_up_logging("gateway", loaded.log_format, loaded.log_level)
    asyncio.run(main(loaded))
