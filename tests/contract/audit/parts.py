"""Services with roles of their own on the session's PostgreSQL, running in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
from pydantic import SecretStr

from libs.contracts.calls import Call
from libs.contracts.envelope import new_message_id
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedPostgres
from libs.runtime.migrations import migrate, role_statements
from libs.runtime.service import App, Service
from tests.conftest import eventually

PASSWORD = "0" * 16


async def database_of(postgres: EmbeddedPostgres, service: str) -> str:
    """A database of the service alone, migrated by its owner; the url is its running role's."""
    url = await empty_database_of(postgres, service)
    await migrate(owner_url(url, service), service)
    return url


async def empty_database_of(postgres: EmbeddedPostgres, service: str) -> str:
    """The same before its first migration."""
    name = f"books_{service}"
    admin = await asyncpg.connect(postgres.url())
    await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    conn = await asyncpg.connect(postgres.url(name))
    for statement in role_statements(service, PASSWORD, PASSWORD, name):
        await conn.execute(statement)
    await conn.close()
    return f"postgresql://slipway_{service}:{PASSWORD}@127.0.0.1:{postgres.port}/{name}"


def owner_url(url: str, service: str) -> str:
    """The url of the role that owns the service's schema."""
    return url.replace(f"slipway_{service}:", f"slipway_{service}_owner:", 1)


@asynccontextmanager
async def running(service: Service, url: str, nats_url: str) -> AsyncIterator[App]:
    settings = service.settings.model_copy(update={"nats_url": nats_url, "database_url": SecretStr(url)})
    database = Database(url, application_name=service.name)
    app = App(replace(service, settings=settings), database)
    task = asyncio.ensure_future(app.run())

    async def acts() -> bool:
        await asyncio.sleep(0)
        return task.done() or (app.nats is not None and not app.writes.reasons)

    try:
        # A service that starts takes no changes before it has compared itself with its stream.
        await eventually(acts, within_seconds=60, what=f"{service.name} takes changes")
        yield app
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
        if app.nats is not None:
            with contextlib.suppress(Exception):
                await app.nats.close()
        await database.close()


def asked(name: str, params: dict[str, Any] | None = None) -> Call:
    return Call(name=name, actor="user:test", correlation_id=new_message_id(), params=params or {})
