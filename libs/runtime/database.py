"""The service's own PostgreSQL connection: short transactions, the database's clock, its schema only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

POOL_SIZE = 8  # Kept open. More than that at once are opened and closed again, which costs a process each time.
POOL_OVERFLOW = 8
STATEMENT_TIMEOUT_MS = 30_000
# A transaction that waits for its client is a fault (I/O inside a transaction): end it before it holds others up.
IDLE_IN_TRANSACTION_TIMEOUT_MS = 30_000


class Database:
    """An engine with our defaults. `url` is postgresql://user:password@host:port/database."""

    def __init__(self, url: str, *, application_name: str, pool_size: int = POOL_SIZE) -> None:
        self.engine: AsyncEngine = create_async_engine(
            url.replace("postgresql://", "postgresql+asyncpg://", 1),
            pool_size=pool_size,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=10,
            connect_args={
                "timeout": 10,
                "server_settings": {
                    "application_name": application_name,
                    "jit": "off",
                    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
                    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
                    "timezone": "UTC",
                },
            },
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A connection inside a transaction: committed at the end, rolled back on any error."""
        async with self.engine.begin() as conn:
            yield conn

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        """The driver's connection without a transaction: each statement commits on its own, in one round trip."""
        async with self.engine.connect() as conn:
            yield await driver_of(conn)

    async def any(self, query: str) -> bool:
        """Whether `query` finds a row. One round trip and nothing written: for looking whether there is work at all."""
        async with self.driver() as driver:
            return bool(await driver.fetchval(f"SELECT EXISTS ({query})"))

    async def close(self) -> None:
        await self.engine.dispose()


async def driver_of(conn: AsyncConnection) -> asyncpg.Connection[Any]:
    """The driver's connection below `conn`, for the few statements that many rows go through: it costs a fraction.

    Its statements belong to the transaction once `conn` has executed one (that is when the transaction begins).
    """
    raw = await conn.get_raw_connection()
    driver: asyncpg.Connection[Any] | None = raw.driver_connection
    assert driver is not None
    return driver
