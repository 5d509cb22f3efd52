"""TCP links of our own between two parts of the system, that can be cut, held up, slowed, and cut inside a COMMIT.

A `Link` listens on a free loopback port and passes bytes on to a server. What goes wrong on it is what goes wrong on
networks: connections that end, bytes that wait, bytes that come late, a server that is not reached at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

CHUNK_BYTES = 65536
# How asyncpg ends a transaction: a simple query (PostgreSQL's wire protocol, message Q).
COMMIT = b"COMMIT;\x00"

# How long a server's answer to a COMMIT is waited for before the connection is cut all the same.
ANSWER_SECONDS = 5.0

Broken = Literal["before", "after"]


@dataclass(eq=False)
class _Connection:
    """One client's connection and its own one to the server. A muted one hides the server's answers."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    muted: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        for writer in (self.client, self.server):
            # At once, as a cable that is pulled: nothing that is buffered gets through.
            writer.transport.abort()


class Link:
    """Open as an async context manager; `port` is then where clients go instead of to `server_port`."""

    def __init__(self, name: str, server_port: int) -> None:
        self.name, self.server_port = name, server_port
        self.port = 0
        self.connections_cut = 0
        self.commits_broken = 0
        self._connections: set[_Connection] = set()
        self._up = True
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay_seconds = 0.0
        self._break_commits: list[Broken] = []

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._drop_all()

    # -- what can go wrong ----------------------------------------------------------------------

    def cut(self) -> None:
        """End every connection and refuse new ones until `mend`."""
        self._up = False
        self._drop_all()

    def stall(self) -> None:
        """Keep connections open and let no byte through until `mend`."""
        self._flowing.clear()

    def slow(self, seconds: float) -> None:
        """Let every byte come that much later, in order, until `mend`."""
        self._delay_seconds = seconds

    def break_commits(self, how: Broken, times: int) -> None:
        """Cut the connections of the next COMMITs: "before" the server hears of it, or "after", before its answer."""
        self._break_commits += [how] * times

    def mend(self) -> None:
        """As good as new; COMMITs that were to be broken and did not come are forgotten."""
        self._up = True
        self._delay_seconds = 0.0
        self._break_commits.clear()
        self._flowing.set()

    def _drop_all(self) -> None:
        self.connections_cut += len(self._connections)
        for connection in list(self._connections):
            connection.close()

    # -- passing on -----------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._up:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, server_writer)
        self._connections.add(connection)
        try:
            if self._up:
                await self._pass_both_ways(connection, reader, server_reader)
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _pass_both_ways(
        self, connection: _Connection, client: asyncio.StreamReader, server: asyncio.StreamReader
    ) -> None:
        ways = [
            asyncio.create_task(self._to_server(client, connection)),
            asyncio.create_task(self._to_client(server, connection)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _to_server(self, source: asyncio.StreamReader, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if self._break_commits and COMMIT in data:
                    await self._break_commit(data, connection)
                    return
                await self._send(data, connection.server)

    async def _to_client(self, source: asyncio.StreamReader, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if connection.muted:
                    connection.answered.set()
                    continue
                await self._send(data, connection.client)

    async def _send(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._delay_seconds)
        await self._flowing.wait()
        sink.write(data)
        await sink.drain()

    async def _break_commit(self, data: bytes, connection: _Connection) -> None:
        """The client never learns what became of its COMMIT; "after": the server has carried it out."""
        how = self._break_commits.pop(0)
        self.commits_broken += 1
        if how == "before":
            return
        connection.muted = True
        await self._send(data, connection.server)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.answered.wait()
