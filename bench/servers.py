"""PostgreSQL and NATS for one measurement: durable as in a deployment, on free ports, gone afterwards."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import structlog

from libs.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from libs.testing.servers import free_port, nats_hub

REPOSITORY = Path(__file__).resolve().parents[1]
PART_LIMIT_SECONDS = 240.0


@dataclass(frozen=True)
class Servers:
    """Both servers of one measurement."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.nats.port}"

    async def database(self, name: str, statements: tuple[str, ...] | list[str] = ()) -> str:
        """A new database after `statements`; returns its address."""
        await execute(self.postgres.url(), f"CREATE DATABASE {name}")
        await execute(self.postgres.url(name), *statements)
        return self.postgres.url(name)


@contextmanager
def postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    """Start one below `folder`; commits are flushed to disk (fsync), as in a deployment."""
    server = EmbeddedPostgres(folder, free_port())
    process = server.start()
    try:
        yield server
    finally:
        process.stop()


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Start both below `folder`."""
    with postgres(folder) as database, nats_hub(folder) as nats:
        yield Servers(database, nats)


async def execute(url: str, *statements: str) -> None:
    """Run statements, each on its own."""
    conn = await asyncpg.connect(url)
    try:
        for statement in statements:
            await conn.execute(statement)
    finally:
        await conn.close()


class Part:
    """A measuring program in a process of its own: it says JSON lines, and starts when told `go`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def said(self) -> dict[str, Any]:
        """Its next line. Raises RuntimeError when it ended instead."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PART_LIMIT_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a measuring process ended early with status {await self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    async def go(self, word: str = "go") -> None:
        """Tell it to begin, or what it waits to know."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()


def part(module: str, *arguments: str) -> AbstractAsyncContextManager[Part]:
    """`program` of `python -m module arguments…`."""
    return program(sys.executable, "-m", module, *arguments)


@asynccontextmanager
async def program(*words: str) -> AsyncIterator[Part]:
    """Run a program; it has said that it is ready when this begins, and is ended afterwards."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    running = Part(process)
    try:
        await running.said()
        yield running
    finally:
        await running.end()


def figures_only() -> None:
    """Standard output is for what `say` says: logs go to standard error, and only errors."""
    errors = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr), wrapper_class=errors)


def say(**what: Any) -> None:
    """One JSON line to the program that started us."""
    print(json.dumps(what), flush=True)


async def told_to_go() -> None:
    """Wait for the word."""
    await asyncio.to_thread(sys.stdin.readline)
