"""Pull messages of a JetStream consumer with low latency: one lingering request, batches as they come.

nats-py's `fetch(n)` holds what has arrived back until n messages or the time-out are there, which turns every
hop into seconds. Here a request for up to `batch` messages is always open at the server, and `next_batch` returns
whatever has come as soon as anything has. A request that is lost (reconnect, restarted server) is sent again.
"""

from __future__ import annotations

import asyncio
import json
import time
from types import TracebackType

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

REQUEST_SECONDS = 20.0  # How long the server keeps an unfilled request open.
LOST_GRACE_SECONDS = 5.0  # A request that long over its time was lost with its connection.
# Status codes of JetStream's pull protocol (ADR-37): the request ended, nothing is wrong.
_REQUEST_ENDED = {"404", "408", "409"}
_GONE = ("consumer deleted", "consumer not found", "stream deleted", "leadership change", "server shutdown")


class ConsumerGone(RuntimeError):
    """The consumer or its stream is not there (any more), or moved; bind or make it again."""


class Puller:
    """Messages of one consumer. Use as an async context manager."""

    def __init__(
        self,
        client: Client,
        stream: str,
        consumer: str,
        *,
        batch: int = 500,
        domain: str | None = None,
        request_seconds: float = REQUEST_SECONDS,
        max_bytes: int | None = None,
    ) -> None:
        api = f"$JS.{domain}.API" if domain else "$JS.API"
        self._subject = f"{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._client, self._batch = client, batch
        self._queue: asyncio.Queue[Msg] = asyncio.Queue()
        self._open = 0
        self._asked_at = 0.0
        self._request_seconds = request_seconds
        self._max_bytes = max_bytes  # More than the largest message, or that one is never delivered.
        self.heard_at: float | None = None  # time.monotonic() of the last word from the server, messages or status
        self.name = f"{stream}/{consumer}"

    async def __aenter__(self) -> Puller:
        self._inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(self._inbox, cb=self._queue.put, pending_msgs_limit=-1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._client.is_closed:
            await self._subscription.unsubscribe()

    async def next_batch(self, timeout: float) -> list[Msg]:
        """What has come, at least one message; an empty list after `timeout` seconds of silence.

        Raises ConsumerGone when there is no such consumer.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            await self._keep_request_open(loop.time())
            messages = self._drain()
            if messages:
                return messages
            left = end - loop.time()
            if left <= 0:
                return []
            try:
                async with asyncio.timeout(left):
                    message = await self._queue.get()
            except TimeoutError:
                continue
            messages = [message] if self._is_message(message) else []
            messages += self._drain(self._batch - len(messages))
            if messages:
                return messages

    async def waiting(self, timeout: float) -> list[Msg]:
        """What waits at this moment, at most a batch; an empty list: nothing does.

        Not to be mixed with `next_batch`. Raises TimeoutError when the server says nothing for `timeout` seconds.
        """
        request = {"batch": self._batch, "no_wait": True}
        await self._client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)
        messages: list[Msg] = []
        while len(messages) < self._batch:
            async with asyncio.timeout(timeout):
                message = await self._queue.get()
            if not self._is_message(message):
                break  # The request ended: that was all.
            messages.append(message)
        return messages

    def _drain(self, most: int | None = None) -> list[Msg]:
        messages: list[Msg] = []
        while len(messages) < (most or self._batch) and not self._queue.empty():
            message = self._queue.get_nowait()
            if self._is_message(message):
                messages.append(message)
        return messages

    def _is_message(self, message: Msg) -> bool:
        self.heard_at = time.monotonic()
        status = (message.headers or {}).get("Status") if not message.data else None
        if status is None:
            self._open -= 1
            return True
        description = (message.headers or {}).get("Description", "").lower()
        if status == "503" or any(reason in description for reason in _GONE):
            raise ConsumerGone(f"{self.name}: {status} {description or 'no responders'}")
        if status in _REQUEST_ENDED:
            self._open = 0
        return False

    async def _keep_request_open(self, now: float) -> None:
        if self._open > 0 and now - self._asked_at < self._request_seconds + LOST_GRACE_SECONDS:
            return
        request = {"batch": self._batch, "expires": int(self._request_seconds * 1_000_000_000)}
        if self._max_bytes is not None:
            request["max_bytes"] = self._max_bytes
        self._open, self._asked_at = self._batch, now
        await self._client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)


def client_of(js: JetStreamContext) -> Client:
    """The connection behind a JetStream context."""
    client: Client = js._nc
    return client
