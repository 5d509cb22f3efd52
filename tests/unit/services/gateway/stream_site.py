"""A gateway on real sockets beside a broker with all streams, and clients of its live stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import nats
from httpx_sse import ServerSentEvent, aconnect_sse
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from libs.bus.topology import apply_hub, load_topology
from libs.contracts.identity import TenantFacts, TenantUpdated
from libs.runtime.embedded import EmbeddedNats
from libs.testing.publisher import Publisher
from libs.testing.servers import nats_hub
from services.gateway.app import Gateway, _server, listen, running
from services.gateway.edge import request_metrics
from services.gateway.routes import Door
from services.gateway.settings import Settings
from tests.conftest import eventually
from tests.unit.services.gateway.conftest import Issuer, Owners, free_port

ACME, GLOBEX = "acme-research", "globex-ml"


def updated(tenant: str, name: str = "Research") -> TenantUpdated:
    return TenantUpdated(tenant=TenantFacts(id=tenant, organization_id="acme", name=name, version=1))


@dataclass
class Site:
    """A broker with all streams, a gateway on real sockets, and who publishes."""

    server: EmbeddedNats
    bus: Client
    owners: Owners
    publisher: Publisher
    gateway: Gateway
    urls: dict[Door, str]
    issuer: Issuer
    http: httpx.AsyncClient

    async def say(self, tenant: str = ACME, name: str = "Research", entity: str | None = None) -> str:
        return (await self.publisher.say(updated(tenant, name), entity or tenant, tenant=tenant)).id

    def headers(self, subject: str, last_id: str | None = None, **claims: Any) -> dict[str, str]:
        audience = "slipway-operator" if subject == "operator" else "slipway-api"
        token = {"Authorization": f"Bearer {self.issuer.token(subject, audience, **claims)}"}
        return token | ({"Last-Event-ID": last_id} if last_id else {})

    @asynccontextmanager
    async def stream(
        self, subject: str = "alice", last_id: str | None = None, claims: dict[str, Any] | None = None, **query: Any
    ) -> AsyncIterator[Stream]:
        door = Door.OPERATOR if subject == "operator" else Door.TENANT
        headers = self.headers(subject, last_id, **(claims or {}))
        url = f"{self.urls[door]}/events/stream"
        async with aconnect_sse(self.http, "GET", url, headers=headers, params=query) as source:
            assert source.response.status_code == 200, await source.response.aread()
            yield Stream(source.aiter_sse())


@dataclass
class Stream:
    """What a client gets, one by one."""

    events: Any
    last_id: str = ""

    async def next(self, within_seconds: float = 20.0) -> ServerSentEvent:
        """The next frame that carries data."""
        async with asyncio.timeout(within_seconds):
            while True:
                event: ServerSentEvent = await anext(self.events)
                self.last_id = event.id or self.last_id
                if event.data:
                    return event

    async def ids(self, count: int) -> list[str]:
        return [json.loads((await self.next()).data)["id"] for _ in range(count)]

    async def opened(self) -> Stream:
        """Wait for the first word of the server: from then on everything new is in the stream."""
        async with asyncio.timeout(20):
            event = await anext(self.events)
        self.last_id = event.id
        return self


@asynccontextmanager
async def gateway_on(
    server: EmbeddedNats, issuer: Issuer, ports: dict[Door, int] | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, dict[Door, str]]]:
    url = f"nats://127.0.0.1:{server.port}"
    configured = Settings(nats_url=url, oidc_issuer=issuer.url, **settings)
    async with running(configured, request_metrics(CollectorRegistry())) as gateway:
        ports = ports or {door: free_port() for door in Door}
        servers = {door: _server(app) for door, app in gateway.doors.items()}
        tasks = [asyncio.create_task(servers[door].serve([listen("127.0.0.1", ports[door])])) for door in Door]
        await eventually(holds(lambda: not gateway.problems() and all(s.started for s in servers.values())))
        prefixes = {Door.TENANT: "/v1", Door.OPERATOR: "/operator/v1"}
        yield gateway, {door: f"http://127.0.0.1:{ports[door]}{prefixes[door]}" for door in Door}
        gateway.streams.close()
        for uvicorn_server in servers.values():
            uvicorn_server.should_exit = True
        await asyncio.gather(*tasks)


def holds(check: Callable[[], object]) -> Any:
    """`check` as what `eventually` waits for."""

    async def checked() -> bool:
        return bool(check())

    return checked


@asynccontextmanager
async def stream_site(folder: Path, issuer: Issuer) -> AsyncIterator[Site]:
    with nats_hub(folder) as server:
        bus = await nats.connect(f"nats://127.0.0.1:{server.port}")
        await apply_hub(bus.jetstream(), load_topology(), ())
        owners = Owners(bus)
        await owners.know_people()
        limits: dict[str, Any] = {"stream_heartbeat_seconds": 0.3, "stream_stall_seconds": 0.5, "streams_per_caller": 3}
        async with gateway_on(server, issuer, **limits) as (gateway, urls), httpx.AsyncClient(timeout=30) as http:
            yield Site(server, bus, owners, Publisher(bus.jetstream()), gateway, urls, issuer, http)
        await bus.close()
