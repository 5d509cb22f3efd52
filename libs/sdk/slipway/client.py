"""The client: a transport, and the API's nouns on it."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx

from slipway.doors import Door
from slipway.resources import Resources
from slipway.transport import TIMEOUT_SECONDS, TRIES, TokenSource, Transport


class Client(Resources):
    """A client of the API.

    >>> async with Client({Door.TENANT: "http://127.0.0.1:8080/v1"}, StaticToken(token)) as slipway:
    ...     started = await slipway.clusters.create(name="train-1", profile="h100-sxm-8", node_count=4, keys=[key])
    ...     operation = await slipway.operations.wait(started.operation_id)

    `tries` is how often a request is sent when nobody answers; `http` may be your own httpx client.
    """

    def __init__(
        self,
        urls: Mapping[Door, str],
        tokens: TokenSource,
        *,
        default_door: Door | None = None,
        tries: int = TRIES,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        own = http or httpx.AsyncClient(timeout=TIMEOUT_SECONDS)
        super().__init__(Transport(urls, tokens, default_door, tries, own))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.transport.http.aclose()
