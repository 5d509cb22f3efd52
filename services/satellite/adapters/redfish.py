"""Direct Redfish reads of one machine's system, for what Ironic does not hold and what must not be cached.

BMCs answer blanks, nulls, error documents in front of the real one, and collections without members. A blank
or missing value stays unknown; an answer that is not one JSON document is an error that says so, never half
read. This module only reads: every change goes through Ironic.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from services.satellite.errors import Failure

Document = dict[str, Any]
_REQUEST_SECONDS = 20.0
_PARALLEL = 4  # BMCs are small computers: more requests at once make some of them answer 503.
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_PAGES = 20
# A BMC that is busy or has just restarted says so for a moment; a resource may appear late (case: jobs after POST).
_PASSING = frozenset({429, 500, 502, 503, 504})


class RedfishSystem:
    """The system at `url` (…/redfish/v1/Systems/<id>). `name` is for messages. Use as an async context manager.

    `spare` is asked once, when the BMC refuses these credentials: the ones to go on with, None when there are none.
    """

    def __init__(
        self,
        name: str,
        url: str,
        user: str,
        password: str,
        *,
        verify: bool | str = True,
        spare: Callable[[], Awaitable[tuple[str, str] | None]] | None = None,
    ) -> None:
        self._spare = spare
        parts = urlsplit(url)
        self._name = name
        self._path = parts.path.rstrip("/")
        self._gate = asyncio.Semaphore(_PARALLEL)
        self._client = httpx.AsyncClient(
            base_url=f"{parts.scheme}://{parts.netloc}",
            auth=(user, password),
            timeout=_REQUEST_SECONDS,
            verify=verify,
            headers={"Accept": "application/json"},
        )

    async def __aenter__(self) -> RedfishSystem:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def system(self) -> Document:
        """The ComputerSystem itself."""
        return await self.get(self._path)

    async def members(self, *below: str) -> list[Document]:
        """The documents of a collection below the system, e.g. members("Processors")."""
        return await self.collection("/".join((self._path, *below)))

    async def collection(self, path: str) -> list[Document]:
        """The documents of a collection, all its pages. Raises Failure without Members: then nothing is known."""
        links: list[str] = []
        page: str | None = path
        for _ in range(_PAGES):
            document = await self.get(page or path)
            members = document.get("Members")
            if not isinstance(members, list):
                raise self._failure("bmc_invalid_answer", f"{path} is a collection without Members")
            links += _links(members)
            following = document.get("Members@odata.nextLink")
            page = following if isinstance(following, str) else None
            if page is None:
                break
        return list(await asyncio.gather(*(self.get(link) for link in links)))

    async def get(self, path: str) -> Document:
        """One document. Raises Failure: no_such_resource, bmc_denied, bmc_invalid_answer, bmc_unreachable."""
        problem = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_PAUSE_SECONDS * attempt)
            try:
                async with self._gate:
                    answer = await self._client.get(path)
            except httpx.HTTPError as error:
                problem = str(error) or type(error).__name__
                continue
            if answer.status_code == httpx.codes.UNAUTHORIZED and await self._signed_in_anew():
                return await self.get(path)
            if answer.status_code not in _PASSING:
                return self._document(path, answer)
            problem = f"HTTP {answer.status_code}"
        raise self._failure("bmc_unreachable", f"{path}: {problem}, {_ATTEMPTS} times")

    async def _signed_in_anew(self) -> bool:
        """Whether there are other credentials to go on with; they are tried once."""
        spare, self._spare = self._spare, None
        found = await spare() if spare else None
        if found is not None:
            self._client.auth = httpx.BasicAuth(*found)
        return found is not None

    def _document(self, path: str, answer: httpx.Response) -> Document:
        if answer.status_code == 404:
            raise self._failure("no_such_resource", f"the BMC has no {path}")
        if answer.status_code in (401, 403):
            raise self._failure("bmc_denied", f"{path}: the BMC refuses our credentials (HTTP {answer.status_code})")
        if answer.status_code != 200:
            raise self._failure("bmc_invalid_answer", f"{path}: HTTP {answer.status_code}")
        try:
            document = json.loads(answer.content)
        except ValueError as error:
            raise self._failure("bmc_invalid_answer", f"{path}: invalid answer{_first_error(answer.text)}") from error
        if not isinstance(document, dict) or "error" in document:
            raise self._failure("bmc_invalid_answer", f"{path}: invalid answer{_first_error(answer.text)}")
        return document

    def _failure(self, code: str, message: str) -> Failure:
        return Failure(code, f"{self._name}: {message}", "Look at the machine's BMC; reset it when it stays like this.")


def _links(members: Sequence[object]) -> list[str]:
    found = (member.get("@odata.id") for member in members if isinstance(member, dict))
    return [link for link in found if isinstance(link, str)]


def _first_error(text: str) -> str:
    """What an error document at the start of `text` says, for people; "" when there is none."""
    try:
        document, _ = json.JSONDecoder().raw_decode(text.strip())
        said = document["error"]["@Message.ExtendedInfo"][0]["Message"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return f" ({str(said)[:200]})"
