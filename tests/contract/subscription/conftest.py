"""The subscription service on the broker's real configuration and a database of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from deploy.local import nats_servers
from deploy.local.layout import Ports
from libs.bus.topology import apply_hub, load_topology
from libs.contracts.calls import Answer, Call
from libs.contracts.envelope import new_message_id
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from libs.runtime.service import App
from libs.testing.publisher import Publisher
from services.subscription.app import make_service
from services.subscription.settings import Settings
from tests.conftest import eventually, fresh_database

WEBHOOK_KEY = "test-key-of-more-than-thirty-two-characters"


def free_block() -> Ports:
    for base in range(26_000, 28_000, 20):
        ports = Ports(base)
        try:
            for port in (ports.hub, ports.hub_leaf_listen, ports.hub_monitor):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return ports
    raise AssertionError("no free block of ports")


@dataclass
class Hub:
    """The broker, configured as deployments are."""

    var: Path
    ports: Ports
    server: EmbeddedNats

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.ports.hub}"

    async def connect(self) -> Client:
        """As a service."""
        return await nats.connect(self.url, user="services", password=nats_servers.secret(self.var, "nats-services"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    var, ports = tmp_path_factory.mktemp("hub"), free_block()
    server = nats_servers.hub(var, ports)
    server.start()
    yield Hub(var, ports, server)
    server.process().stop()


@dataclass
class World:
    """A running service, asked as the gateway asks it, and a publisher of events."""

    hub: Hub
    settings: Settings
    database_url: str
    bus: Client
    publisher: Publisher
    app: App = field(init=False)

    async def call(self, name: str, tenants: tuple[str, ...] | None = None, /, **params: Any) -> Answer:
        return await self._ask(f"call.subscription.{name}", name, tenants, params)

    async def query(self, name: str, tenants: tuple[str, ...] | None = None, /, **params: Any) -> Answer:
        return await self._ask(f"qry.subscription.{name}", name, tenants, params)

    async def _ask(self, subject: str, name: str, tenants: tuple[str, ...] | None, params: dict[str, Any]) -> Answer:
        key = params.pop("idempotency_key", None)
        call = Call(
            name=name,
            actor="user:test",
            tenants=tenants,
            correlation_id=new_message_id(),
            idempotency_key=key,
            params=params,
        )
        reply = await self.bus.request(subject, call.model_dump_json().encode(), timeout=30)
        return Answer.model_validate_json(reply.data)

    async def subscriber(self, name: str, tenants: tuple[str, ...] | None = None, **params: Any) -> dict[str, Any]:
        """A new subscriber's credentials, when they work. What is said about itself is left out by the subjects."""
        tenant = params.get("tenant", "*")
        params.setdefault("subjects", [f"evt.*.{tenant}.identity.>"])
        made = await self.call("create_subscriber", tenants, name=name, **params)
        assert made.status == 201, made.body
        await self.active(made.body["id"])
        credentials: dict[str, Any] = made.body["credentials"]
        return credentials

    async def active(self, id_: str) -> None:
        async def is_active() -> bool:
            return bool((await self.query("get_subscriber", id=id_)).body["state"] == "ACTIVE")

        await eventually(is_active, within_seconds=30, what="the consumer is made")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[App]:
        """One more replica."""
        database = Database(self.database_url, application_name="subscription")
        app = App(make_service(self.settings), database)
        task = asyncio.ensure_future(app.run())
        try:
            yield app
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            await app.give_leases_back()
            if app.nats is not None:
                await app.nats.close()
            await database.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(hub: Hub, postgres: EmbeddedPostgres) -> AsyncIterator[World]:
    bus = await hub.connect()
    await apply_hub(bus.jetstream(), load_topology(), ())
    database_url = postgres.url(await fresh_database(postgres, "subscription"))
    settings = Settings(
        nats_url=hub.url,
        nats_user="subscription",
        nats_password=nats_servers.secret(hub.var, "nats-subscription"),
        database_url=database_url,
        subscribers_issuer_seed=nats_servers.subscribers_seed(hub.var),
        webhook_key=WEBHOOK_KEY,
        webhook_plain_http=True,
        webhook_allow_networks="127.0.0.0/8",
        webhook_first_retry_seconds=0.1,
        webhook_longest_retry_seconds=0.5,
        webhook_timeout_seconds=2.0,
        webhook_attempts=4,
    )
    made = World(hub, settings, database_url, bus, Publisher(bus.jetstream()))
    async with made.running() as app:
        made.app = app

        async def answers() -> bool:
            with contextlib.suppress(Exception):
                return (await made.query("list_subscribers")).status == 200
            return False

        await eventually(answers, within_seconds=30)
        yield made
    await bus.close()
