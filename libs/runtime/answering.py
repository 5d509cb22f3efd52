"""Answers requests over NATS request-reply: qry.<service>.<name> are reads, call.<service>.<name> writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import Histogram

from libs.contracts.calls import CALL_PREFIX, QUERY_PREFIX, Answer, Call, problem
from libs.runtime.calls import decode_call, failed_answer

CALLS_AT_ONCE = 8

log = structlog.get_logger("service")
CALLS = Histogram("slipway_call_seconds", "Time to answer a request of the gateway", ["service", "name", "status"])

Run = Callable[[Call], Awaitable[Answer]]


class Answering:
    """The requests of one service in one process. `names` are those that it knows."""

    def __init__(self, service: str, query: Run, call: Run, names: Collection[str]) -> None:
        self.service, self.names = service, names
        self._run = {QUERY_PREFIX: query, CALL_PREFIX: call}
        self._at_once = asyncio.Semaphore(CALLS_AT_ONCE)
        self._answering: set[asyncio.Task[None]] = set()

    async def begin(self, client: Client) -> None:
        """Answer from now on; a request sent before this returns may find no responder and is told so."""
        for prefix in self._run:
            await client.subscribe(f"{prefix}.{self.service}.*", queue=self.service, cb=self._take)
        await client.flush()

    async def _take(self, message: Msg) -> None:
        await self._at_once.acquire()
        task = asyncio.create_task(self._answer(message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        task.add_done_callback(lambda _: self._at_once.release())

    async def _answer(self, message: Msg) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        prefix, _, name = message.subject.split(".")
        answer = await self._answer_to(prefix, name, message.data)
        # What nobody knows must not make a series of metrics each.
        shown = name if name in self.names else "unknown"
        CALLS.labels(self.service, shown, str(answer.status)).observe(loop.time() - began)
        with contextlib.suppress(Exception):
            await message.respond(answer.model_dump_json().encode())

    async def _answer_to(self, prefix: str, name: str, payload: bytes) -> Answer:
        call = decode_call(payload)
        if isinstance(call, Answer):
            return call
        if call.name != name:
            # The subject is what its sender was allowed to publish on; the content must not ask for more.
            return problem(400, "request.wrong_subject", f"The call {call.name!r} came on the subject of {name!r}.")
        with structlog.contextvars.bound_contextvars(correlation_id=call.correlation_id):
            try:
                return await self._run[prefix](call)
            except Exception as error:
                log.error("call_failed", name=name, error=repr(error), exc_info=error)
                return failed_answer(error)
