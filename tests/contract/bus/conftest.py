"""A toy service on a broker and a database of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest

from libs.bus.tables import bus_ddl
from libs.bus.topology import apply_hub, load_topology
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from libs.runtime.service import App, Service
from libs.runtime.tasks import end_all
from libs.testing.servers import nats_hub
from tests.contract.bus.toy import DDL, over_the_bus, toy_service

RunApp = Callable[..., Any]


@dataclass
class Bench:
    """The broker, the database and what runs on them."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    database_url: str
    folder: Path
    apps: list[App] = field(default_factory=list)

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.nats.port}"

    def service(self) -> Service:
        return toy_service(self.nats_url, self.database_url)

    @asynccontextmanager
    async def running(self, holder: str = "one", service: Service | None = None) -> AsyncIterator[App]:
        """The toy service, running; cancelled at the end as a crash would (nothing is given back)."""
        service = service or self.service()
        database = Database(self.database_url, application_name=holder)
        app = App(service, database)
        app.holder = holder
        task = asyncio.ensure_future(app.run())
        try:
            yield app
        finally:
            # Until it has really ended: a cancellation while it starts may be swallowed (libs/runtime/tasks.py).
            await end_all([task])
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            if app.nats is not None:
                with contextlib.suppress(Exception):
                    await app.nats.close()
            await database.close()

    @asynccontextmanager
    async def js(self) -> AsyncIterator[Any]:
        client = await nats.connect(self.nats_url)
        try:
            yield client.jetstream()
        finally:
            await client.close()


_number = 0


@pytest.fixture
async def bench(postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    global _number
    over_the_bus(monkeypatch)
    _number += 1
    name = f"toy_{_number}"
    admin = await asyncpg.connect(postgres.url())
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    conn = await asyncpg.connect(postgres.url(name))
    for statement in ("CREATE SCHEMA inventory", "CREATE SCHEMA inventory_rebuild", *bus_ddl("inventory"), *DDL):
        await conn.execute(statement)
    await conn.close()
    with nats_hub(tmp_path) as server:
        made = Bench(postgres, server, postgres.url(name), tmp_path)
        async with made.js() as js:
            await apply_hub(js, load_topology(), ("fra1",))
        yield made
