"""The live stream of events: goes on by itself behind the last one, whatever broke on the way.

Each item carries the id that goes on behind it. Keep it with the effect of the event, and nothing is lost or done
twice over a crash of yours either.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

from slipway.doors import Door, Filter
from slipway.errors import ApiError, Unavailable
from slipway.models import Event
from slipway.transport import Transport, error_of, query_params

PATH = "/events/stream"
SILENCE_SECONDS = 60.0  # Four heartbeats: then the connection is dead, whatever TCP says.
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
TOO_MANY = 429


@dataclass(frozen=True)
class Live:
    """One event. `id` goes on behind it."""

    id: str
    event: Event


@dataclass(frozen=True)
class Missed:
    """Numbers `first` to `last` of publisher `of` are not in the broker any more: fetch them with `events.export`."""

    id: str
    of: str
    first: int
    last: int


@dataclass(frozen=True)
class Reconnecting:
    """The stream broke or was ended; it goes on in a moment behind `id`."""

    id: str | None
    code: str
    detail: str


Item = Live | Missed | Reconnecting


async def tail(
    transport: Transport, door: Door, *, after: str | None = None, patience: int | None = None, **filters: Filter
) -> AsyncGenerator[Item, None]:
    """Events behind `after` (an id; "start": everything kept; None: from now on), for ever.

    `patience` is how often in a row nobody may answer before Unavailable is raised; None: never. Refusals (ApiError,
    NotSignedIn) are raised at once.
    """
    last_id, failures, fresh = after, 0, False
    while True:
        try:
            async with aclosing(_connection(transport, door, last_id, fresh, filters)) as items:
                async for item in items:
                    failures, fresh = 0, False
                    if isinstance(item, str):
                        last_id = item
                        continue
                    last_id = item.id or last_id
                    yield item
            failures += 1
            broken = Reconnecting(last_id, "stream.ended", "The connection ended.")
        except _Expired:
            if fresh:
                raise
            fresh = True
            continue
        except (Unavailable, httpx.TransportError) as error:
            failures += 1
            broken = Reconnecting(last_id, "stream.broken", str(error) or type(error).__name__)
            if patience is not None and failures > patience:
                raise
        if failures > 1:
            yield broken
        doubling = FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 10)
        await asyncio.sleep(min(doubling, LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1.0))


class _Expired(Exception):
    """The token was refused or has run out: a fresh one is tried once."""


async def _connection(
    transport: Transport, door: Door, after: str | None, fresh: bool, filters: dict[str, Filter]
) -> AsyncGenerator[Item | str, None]:
    """What one connection gives: items, and ids that moved on without one."""
    headers = {"Authorization": f"Bearer {await transport.tokens.token(door, fresh=fresh)}"}
    query = {name.rstrip("_"): value for name, value in filters.items()}
    url = transport.urls[door].rstrip("/") + PATH
    timeout = httpx.Timeout(30.0, read=SILENCE_SECONDS)
    params = query_params({**query, "after": after})
    async with aconnect_sse(transport.http, "GET", url, headers=headers, params=params, timeout=timeout) as source:
        await _refused(source.response, fresh)
        async for frame in source.aiter_sse():
            item = _item(frame)
            if isinstance(item, Reconnecting) and item.code == "stream.token_expired":
                raise _Expired
            yield item


async def _refused(response: httpx.Response, fresh: bool) -> None:
    if response.status_code < 400:
        return
    await response.aread()
    if response.status_code == 401 and not fresh:
        raise _Expired
    error = error_of(response)
    if isinstance(error, ApiError) and error.status == TOO_MANY:
        raise Unavailable(error.message, error.next_step, error.correlation_id)
    raise error


def _item(frame: ServerSentEvent) -> Item | str:
    if not frame.data:
        return frame.id
    data: dict[str, Any] = json.loads(frame.data)
    match frame.event:
        case "gap":
            return Missed(frame.id, str(data["of"]), int(data["first"]), int(data["last"]))
        case "goodbye":
            return Reconnecting(frame.id or None, str(data["code"]), str(data["detail"]))
        case _:
            return Live(frame.id, Event.of(data))
