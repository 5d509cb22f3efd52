"""Things of one kind behind one path: list, show, write. What all nouns have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic
from urllib.parse import quote

from slipway.doors import BOTH, Door, Filter
from slipway.models import D, Page
from slipway.transport import Transport


def segment(value: str) -> str:
    """`value` as one path segment."""
    return quote(value, safe="")


class Collection(Generic[D]):
    """Things of one kind."""

    def __init__(self, transport: Transport, path: str, model: type[D], doors: Sequence[Door] = BOTH) -> None:
        self._transport = transport
        self._path = path
        self._model = model
        self._doors = doors

    def door(self, asked: Door | None = None) -> Door:
        """The door that this collection uses."""
        return self._transport.door(self._doors, asked)

    async def pages(self, *, door: Door | None = None, **filters: Filter) -> AsyncIterator[Page[D]]:
        """Every page of what matches all filters; a filter with several values matches any of them.

        `from_` stands for the API's `from`, which is a word of Python.
        """
        query = {name.rstrip("_"): value for name, value in filters.items()}
        async for page in self._transport.pages(self.door(door), self._path, self._model, query):
            yield page

    async def list(self, *, door: Door | None = None, **filters: Filter) -> AsyncIterator[D]:
        """Every item of what matches, page by page."""
        async for page in self.pages(door=door, **filters):
            for item in page.items:
                yield item

    async def get(self, id_: str, *, door: Door | None = None, at: datetime | None = None) -> D:
        """One thing, now or (a machine, cluster or tenant) as of `at`.

        Raises ApiError: 404 when there is none that you can see, or was none yet; 410 when retention took it.
        """
        return self._model.of(await self._read(f"{self._path}/{segment(id_)}", door, at=at))

    async def _read(self, path: str, door: Door | None = None, **query: Filter) -> Any:
        return (await self._transport.request(self.door(door), "GET", path, query=query)).document

    async def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        door: Door | None = None,
        idempotency_key: str | None = None,
        if_match: str | None = None,
    ) -> Any:
        sent = {name: value for name, value in (body or {}).items() if value is not None} if body is not None else None
        response = await self._transport.request(
            self.door(door), method, path, json=sent, idempotency_key=idempotency_key, if_match=if_match
        )
        return response.document or {}
