"""Requests to the API: two doors, one token source, patience with what is briefly away.

A write always carries one Idempotency-Key over all its tries, so that a try whose answer was lost is
never done twice. Refusals (4xx) are raised at once; what nobody answered is tried again a few times.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import httpx

from slipway.doors import Door, Filter
from slipway.errors import ApiError, ConfigurationError, NotSignedIn, Unavailable
from slipway.models import D, Page
from slipway.version import __version__

TRIES = 5
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0  # Longer than the 10 s in which the server itself gives up.
RETRIED_STATUSES = frozenset({502, 503, 504})


class TokenSource(Protocol):
    """Where access tokens come from."""

    async def token(self, door: Door, *, fresh: bool = False) -> str:
        """A token for `door`; with `fresh`, not the one that was just refused. Raises NotSignedIn."""
        ...


@dataclass(frozen=True)
class StaticToken:
    """One token for everything, such as from an environment variable."""

    value: str

    async def token(self, door: Door, *, fresh: bool = False) -> str:
        if fresh:
            raise NotSignedIn("The API refused the given token.", "Get a new token and set SLIPWAY_TOKEN to it.")
        return self.value


@dataclass(frozen=True)
class Response:
    """What the API answered. `document` is None for an empty answer (204, 304)."""

    status: int
    document: Any
    etag: str | None = None
    location: str | None = None
    correlation_id: str = ""


@dataclass
class Transport:
    """Sends requests. `urls` are the doors' addresses including their prefix, such as http://127.0.0.1:8080/v1."""

    urls: Mapping[Door, str]
    tokens: TokenSource
    default_door: Door | None = None
    tries: int = TRIES
    http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=TIMEOUT_SECONDS))

    def door(self, allowed: Sequence[Door], asked: Door | None = None) -> Door:
        """The door to use for something that `allowed` doors offer. Raises ConfigurationError."""
        wanted = asked or (allowed[0] if len(allowed) == 1 else self.default_door)
        if wanted is None:
            wanted = next((door for door in allowed if door in self.urls), allowed[0])
        if wanted not in allowed:
            raise ConfigurationError(
                f"The {wanted} door does not offer this.", f"Use the {' or '.join(allowed)} door (--door)."
            )
        if wanted not in self.urls:
            raise ConfigurationError(
                f"No address of the {wanted} door is configured.",
                f"Set SLIPWAY_{wanted.upper()}_URL, or {wanted}_url in the configuration file.",
            )
        return wanted

    async def request(
        self,
        door: Door,
        method: str,
        path: str,
        *,
        query: Mapping[str, Filter] | None = None,
        json: Any = None,
        idempotency_key: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> Response:
        """One request, tried again while nobody answers. Raises ApiError, NotSignedIn or Unavailable."""
        headers = {"User-Agent": f"slipway-python/{__version__}", "Accept": "application/json"}
        if method != "GET":
            headers["Idempotency-Key"] = idempotency_key or str(uuid.uuid4())
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"' if if_match != "*" else "*"
        if if_none_match is not None:
            headers["If-None-Match"] = if_none_match
        url = self.urls[door].rstrip("/") + path
        request = self.http.build_request(method, url, params=query_params(query or {}), json=json, headers=headers)
        answer = await self._answered(door, request)
        if answer.status_code >= 400:
            raise error_of(answer)
        document = answer.json() if answer.content else None
        return Response(
            answer.status_code,
            document,
            answer.headers.get("ETag"),
            answer.headers.get("Location"),
            answer.headers.get("X-Correlation-Id", ""),
        )

    async def pages(
        self, door: Door, path: str, model: type[D], query: Mapping[str, Filter] | None = None
    ) -> AsyncIterator[Page[D]]:
        """Every page of a list."""
        cursor = None
        while True:
            asked: dict[str, Filter] = {**(query or {})} | ({"cursor": cursor} if cursor else {})
            response = await self.request(door, "GET", path, query=asked)
            page = Page(response.document or {}, model)
            yield page
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    async def lines(self, door: Door, path: str, query: Mapping[str, Filter]) -> tuple[list[str], str | None]:
        """One page of a list as the server's own lines, to the byte, and the cursor of the next page."""
        headers = {"User-Agent": f"slipway-python/{__version__}", "Accept": "application/x-ndjson"}
        url = self.urls[door].rstrip("/") + path
        request = self.http.build_request("GET", url, params=query_params(query), headers=headers)
        answer = await self._answered(door, request)
        if answer.status_code >= 400:
            raise error_of(answer)
        lines = answer.content.decode().split("\n")
        return [line for line in lines if line], answer.headers.get("X-Next-Cursor")

    async def _answered(self, door: Door, request: httpx.Request) -> httpx.Response:
        refused_token = False
        for number in range(1, self.tries + 1):
            last = number == self.tries
            request.headers["Authorization"] = f"Bearer {await self.tokens.token(door, fresh=refused_token)}"
            try:
                answer = await self.http.send(request)
            except httpx.TransportError as error:
                if last:
                    raise _unreachable(request, error) from error
                await _wait(number, None)
                continue
            if answer.status_code == 401 and not refused_token:
                refused_token = True  # It may have expired or been withdrawn: a fresh one is tried once.
                continue
            if answer.status_code in RETRIED_STATUSES and not last:
                await _wait(number, answer.headers.get("Retry-After"))
                continue
            return answer
        raise AssertionError("the last try returns or raises")


async def _wait(tried: int, retry_after: str | None) -> None:
    """Wait before the next try: what the server asked for, else doubling, with jitter so that clients spread."""
    asked = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    doubling = FIRST_WAIT_SECONDS * 2.0 ** (tried - 1)
    await asyncio.sleep(min(max(asked, doubling), LONGEST_WAIT_SECONDS) * random.uniform(0.8, 1.2))


def query_params(query: Mapping[str, Filter]) -> httpx.QueryParams:
    pairs: list[tuple[str, str | int | float | bool | None]] = []
    for name, value in query.items():
        match value:
            case None:
                continue
            case bool():
                pairs.append((name, "true" if value else "false"))
            case str() | int():
                pairs.append((name, str(value)))
            case datetime():
                pairs.append((name, value.isoformat()))
            case _:
                pairs += [(name, str(item)) for item in value]
    return httpx.QueryParams(pairs)


def _unreachable(request: httpx.Request, error: httpx.TransportError) -> Unavailable:
    where = f"{request.url.scheme}://{request.url.netloc.decode()}"
    return Unavailable(
        f"The API at {where} does not answer ({type(error).__name__}: {error}).".replace(": ).", ")."),
        "Check the address and that the system is up (make up), then try again.",
    )


def error_of(answer: httpx.Response) -> ApiError | NotSignedIn | Unavailable:
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if not isinstance(document, dict):
        document = {}
    correlation_id = str(document.get("correlation_id") or answer.headers.get("X-Correlation-Id", ""))
    detail = str(document.get("detail") or f"The API answered {answer.status_code} {answer.reason_phrase}.")
    next_step = str(document.get("next_step") or "")
    if answer.status_code == 401:
        return NotSignedIn(detail, next_step or "Run: slipway login", correlation_id)
    if answer.status_code >= 500:
        return Unavailable(detail, next_step or "Try again in a moment.", correlation_id)
    return ApiError(answer.status_code, document, correlation_id)
