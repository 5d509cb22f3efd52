"""The harness's own connections to the brokers and the database, with the rights of who runs the system."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import nats
from nats.aio.client import Client

from chaos.world import World
from deploy.local import nats_servers
from deploy.local.layout import SITE
from deploy.local.preparation import DATABASE

# Marks what the harness writes in somebody else's place, so that the readers of its histories know it.
FOREIGN = "Chaos-Foreign"
CONNECT_TRIES = 60
CONNECT_WAIT_SECONDS = 0.5


def hub_login(world: World) -> tuple[str, str, str]:
    """Address, user and password of the hub's broker."""
    address = f"nats://127.0.0.1:{world.stack.ports.hub}"
    return address, "services", nats_servers.secret(world.stack.var, "nats-services")


async def _quiet(error: Exception) -> None:
    """A broken connection is the point of the exercise."""


async def _connect(address: str, user: str, password: str) -> Client:
    return await nats.connect(
        address,
        user=user,
        password=password,
        name="chaos",
        max_reconnect_attempts=CONNECT_TRIES,
        reconnect_time_wait=CONNECT_WAIT_SECONDS,
        allow_reconnect=True,
        error_cb=_quiet,
    )


@asynccontextmanager
async def hub(world: World) -> AsyncIterator[Client]:
    """A connection to the hub's broker; waits until it is there."""
    client = await _connect(*hub_login(world))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def leaf(world: World) -> AsyncIterator[Client]:
    """The same to the site's broker."""
    password = nats_servers.secret(world.stack.var, f"nats-satellite-{SITE}")
    client = await _connect(f"nats://127.0.0.1:{world.stack.ports.leaf}", "satellite", password)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def database(world: World) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection to the hub's database."""
    connection = await asyncpg.connect(world.stack.postgres.url(DATABASE), timeout=30)
    try:
        yield connection
    finally:
        await connection.close()
