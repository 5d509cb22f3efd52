"""NetBox's REST API, one request at a time: lists that are whole, writes, and what each fault means.

Lists are read by key (`id__gt`), never by offset: a device that is deleted while a list is read would move another one
past the border of two pages, unseen. Every fault of the transport, every 5xx and every answer of an unexpected shape
becomes SourceUnavailable: nothing was learnt, and nothing may be concluded. Raises RequestError for a 4xx.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import pynetbox
import requests
from pynetbox.core.query import ContentError, Request, RequestError

from services.inventory.adapters.records import Document
from services.inventory.adapters.source import SourceMisconfigured, SourceUnavailable

T = TypeVar("T")

# NetBox gives at most MAX_PAGE_SIZE (1,000 by default) whatever is asked for.
PAGE = 500
# Ids in one query string; 100 keep the URL below the 8 KiB that proxies allow.
IDS_PER_QUERY = 100


class _Bounded(requests.adapters.HTTPAdapter):
    """Every request gets a time limit; requests itself waits for ever."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__()

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = self.seconds
        return super().send(request, *args, **kwargs)


class Rest:
    """A session with one NetBox; blocking."""

    def __init__(self, url: str, token: str, timeout_seconds: float) -> None:
        self.api = pynetbox.api(url, token=token)
        session = requests.Session()
        session.mount("http://", _Bounded(timeout_seconds))
        session.mount("https://", _Bounded(timeout_seconds))
        session.hooks["response"].append(self._note_clock)
        self.api.http_session = session
        self.clock: datetime | None = None

    def _note_clock(self, response: requests.Response, *_: Any, **__: Any) -> None:
        """NetBox's own clock at the first answer: its `last_updated` are compared with no other."""
        if self.clock is None:
            try:
                self.clock = parsedate_to_datetime(response.headers.get("Date", "")).astimezone(UTC)
            except (TypeError, ValueError):
                return

    def every(self, path: str, fields: Sequence[str] = (), **filters: Any) -> list[Document]:
        """Every object of a list, by ascending id. Raises SourceUnavailable when it is not whole."""
        found: list[Document] = []
        last = 0
        while True:
            page = self._page(path, fields, {**filters, "id__gt": last} if last else filters)
            results = page["results"]
            for document in results:
                number = document.get("id") if isinstance(document, dict) else None
                if not isinstance(number, int) or isinstance(number, bool):
                    raise SourceUnavailable(f"NetBox listed something that is no object with an id in {path}")
                if number <= last:
                    raise SourceUnavailable(f"NetBox gave {path} out of order: id {number} after {last}; reading again")
                found.append(document)
                last = number
            if page.get("next") is None:
                _require_count(path, page, results)
                return found
            if not results:
                raise SourceUnavailable(f"NetBox gave an empty page of {path} that is not the last; reading again")

    def _page(self, path: str, fields: Sequence[str], filters: dict[str, Any]) -> Document:
        wanted = {"ordering": "id", "limit": PAGE, **filters}
        if fields:
            wanted["fields"] = ",".join(fields)
        request = Request(
            base=f"{self.api.base_url}/{path}/",
            filters=wanted,
            http_session=self.api.http_session,
            token=self.api.token,
        )
        page = request._make_call()
        fine = isinstance(page, dict) and isinstance(page.get("results"), list) and isinstance(page.get("count"), int)
        if not fine:
            raise SourceUnavailable(f"NetBox answered {path} with no page of a list: {str(page)[:200]}")
        answer: Document = page
        return answer

    def of(self, path: str, key: str, ids: Sequence[Any], fields: Sequence[str] = (), **filters: Any) -> list[Document]:
        """The objects whose `key` is one of `ids`, asked for in parts."""
        found: list[Document] = []
        for part in parts(ids):
            found += self.every(path, fields, **{key: part}, **filters)
        return found

    def patch_devices(self, bodies: list[Document]) -> None:
        """Change devices, all or none."""
        url = f"{self.api.base_url}/dcim/devices/"
        Request(base=url, http_session=self.api.http_session, token=self.api.token).patch(bodies)


def _require_count(path: str, page: Document, results: Sequence[Any]) -> None:
    """The last page says itself how many are left from its key on: it must hold as many."""
    if page["count"] != len(results):
        raise SourceUnavailable(f"NetBox counted {page['count']} of {path} but gave {len(results)}; reading again")


def parts(ids: Sequence[Any]) -> Iterator[list[Any]]:
    for first in range(0, len(ids), IDS_PER_QUERY):
        yield list(ids[first : first + IDS_PER_QUERY])


def translated(error: RequestError) -> SourceUnavailable:
    """4xx: it understood us and said no. Everything else: it is not there."""
    status = error.req.status_code
    words = (
        f"NetBox answered {status} to {error.req.request.method} {error.req.request.path_url}: {str(error.error)[:500]}"
    )
    if status in (401, 403):
        return SourceMisconfigured(f"{words}; check the token and its rights")
    if 400 <= status < 500 and status != 429:
        return SourceMisconfigured(words)
    return SourceUnavailable(words)


def guarded(url: str, work: Callable[[], T]) -> T:
    """Do `work`; whatever goes wrong in it is a SourceUnavailable that says what."""
    try:
        return work()
    except SourceUnavailable:
        raise
    except RequestError as error:
        raise translated(error) from error
    except (ContentError, json.JSONDecodeError) as error:
        raise SourceUnavailable(f"NetBox at {url} did not answer with JSON") from error
    except requests.RequestException as error:
        raise SourceUnavailable(f"NetBox at {url} can't be reached: {type(error).__name__}") from error
    except OSError as error:
        raise SourceMisconfigured(f"the NetBox token can't be read: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise SourceUnavailable(f"NetBox answered in an unexpected shape: {error!r}") from error
