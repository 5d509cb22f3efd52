"""Listens on the hub's wire and writes down which event number meant which event: a reader nobody knows of.

It hears what is published, acknowledged or not, for as long as its connection lasts; while the server is down there
is nothing to hear.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import nats
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from chaos.history import Kept
from chaos.wire import FOREIGN
from libs.bus.foreign import FILLER


class Witness:
    """Use as an async context manager; `seen` grows meanwhile."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._address = {"servers": url, "user": user, "password": password}
        self.seen: dict[tuple[str, int, str], None] = {}
        self.heard = 0

    async def __aenter__(self) -> Witness:
        async def ignore(error: Exception) -> None:
            """Broken connections are the point of the exercise."""

        self._client: Client = await nats.connect(
            **self._address, name="chaos-witness", max_reconnect_attempts=-1, reconnect_time_wait=0.3, error_cb=ignore
        )
        await self._client.subscribe("evt.>", cb=self._hear)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with asyncio.timeout(5):
            await self._client.close()

    async def _hear(self, message: Msg) -> None:
        if FOREIGN in (message.headers or {}) or message.data == FILLER:
            return
        self.heard += 1
        event = orjson.loads(message.data)
        service = message.subject.split(".")[3]
        self.seen[service, int(event["sequence"]), str(event["id"])] = None

    def kept(self) -> tuple[Kept, ...]:
        """What each number was seen to mean; more than one line for a number is a rewritten history."""
        return tuple(Kept(service=service, sequence=number, id=id_) for service, number, id_ in self.seen)
