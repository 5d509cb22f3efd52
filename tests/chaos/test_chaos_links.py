"""The harness's links do to a connection what networks do, and to a COMMIT what is worst."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from chaos.links import Link
from libs.runtime.embedded import EmbeddedPostgres
from tests.conftest import eventually

Ask = Callable[[bytes], Awaitable[bytes]]


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    """A link to a server that says everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Link("echo", server.sockets[0].getsockname()[1]) as made:
        yield made


async def connect(link: Link) -> Ask:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)

    async def ask(data: bytes) -> bytes:
        writer.write(data)
        return await reader.read(1000)

    return ask


async def test_a_whole_link_passes_bytes_on(link: Link) -> None:
    ask = await connect(link)
    assert await ask(b"hello") == b"hello"


async def test_a_cut_link_ends_connections_and_refuses_new_ones_until_mended(link: Link) -> None:
    ask = await connect(link)
    assert await ask(b"hello") == b"hello"
    link.cut()
    assert await _answer(ask) == b""
    assert await _answer(await connect(link)) == b""
    link.mend()
    assert await (await connect(link))(b"again") == b"again"
    assert link.connections_cut == 1


async def _answer(ask: Ask) -> bytes:
    try:
        return await ask(b"?")
    except ConnectionError:
        return b""


async def test_a_stalled_link_keeps_the_connection_and_its_bytes(link: Link) -> None:
    ask = await connect(link)
    assert await ask(b"hello") == b"hello"
    link.stall()
    waiting = asyncio.ensure_future(ask(b"later"))
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    link.mend()
    assert await waiting == b"later"


async def test_a_slow_link_keeps_the_order(link: Link) -> None:
    ask = await connect(link)
    link.slow(0.05)
    began = asyncio.get_running_loop().time()
    assert [await ask(bytes([n])) for n in range(3)] == [bytes([n]) for n in range(3)]
    assert asyncio.get_running_loop().time() - began >= 6 * 0.05  # Three there, three back.


@pytest.mark.parametrize(("how", "kept"), [("before", 0), ("after", 1)])
async def test_a_commit_is_broken_and_the_client_never_learns_what_became_of_it(
    postgres: EmbeddedPostgres, how: str, kept: int
) -> None:
    table = f"broken_{how}"
    watcher = await asyncpg.connect(postgres.url())
    await watcher.execute(f"CREATE TABLE {table} (n integer)")
    async with Link("pg", postgres.port) as link:
        client = await asyncpg.connect(postgres.url().replace(f":{postgres.port}/", f":{link.port}/"))
        async with client.transaction():
            await client.execute(f"INSERT INTO {table} VALUES (0)")
        link.break_commits(how, 1)  # type: ignore[arg-type]
        with pytest.raises((ConnectionError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
            async with client.transaction():
                await client.execute(f"INSERT INTO {table} VALUES (1)")
        assert link.commits_broken == 1

        async def open_connections() -> bool:
            count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE $1 AND pid <> pg_backend_pid()"
            return await watcher.fetchval(count, f"INSERT INTO {table}%") == 0

        await eventually(open_connections, what="the server has let the broken connection go")
        assert await watcher.fetchval(f"SELECT count(*) FROM {table} WHERE n = 1") == kept
        # Only the next COMMIT was to be broken.
        second = await asyncpg.connect(postgres.url().replace(f":{postgres.port}/", f":{link.port}/"))
        async with second.transaction():
            await second.execute(f"INSERT INTO {table} VALUES (2)")
        await second.close()
    await watcher.close()
