"""NetBox through pynetbox, the only place that knows it. Reads follow every page; writes touch our own fields only.

pynetbox blocks, so each call runs in a thread. Every fault of the transport, every 5xx and every answer of an
unexpected shape becomes SourceUnavailable: nothing was learnt, and nothing may be concluded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import pynetbox
import requests
from pynetbox.core.query import ContentError, Request, RequestError

from services.inventory.adapters.records import (
    Document,
    device_records,
    newest_change,
    rack_records,
    site_records,
    type_records,
)
from services.inventory.adapters.source import SourceMisconfigured, SourceUnavailable, Walk, Write
from services.inventory.model.source import DeviceProblem

T = TypeVar("T")

PAGE = 250
# Device ids in one query string; 100 keep the URL below the 8 KiB that proxies allow.
IDS_PER_QUERY = 100
CUSTOM_FIELDS = (
    ("slipway_machine_id", "text", "Slipway's id of this machine"),
    ("slipway_state", "text", "Where the machine is in its life"),
    ("slipway_health", "text", "What is proven about the machine's health"),
    ("slipway_validated_at", "datetime", "When the machine last passed validation"),
)


class _Bounded(requests.adapters.HTTPAdapter):
    """Every request gets a time limit; requests itself waits for ever."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__()

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = self.seconds
        return super().send(request, *args, **kwargs)


class _Pages(Request):  # type: ignore[misc]  # pynetbox has no types
    """A list whose every page must have the shape of one; pynetbox takes a bare [] or {} for a list, too."""

    def _make_call(self, *args: Any, **kwargs: Any) -> Any:
        page = super()._make_call(*args, **kwargs)
        fine = isinstance(page, dict) and isinstance(page.get("results"), list) and isinstance(page.get("count"), int)
        if not fine:
            raise SourceUnavailable(f"NetBox answered {self.base} with no page of a list: {str(page)[:200]}")
        return page


@dataclass
class RestNetBox:
    """A real NetBox. `token` is asked for at every call, so that a renewed one is used without a restart."""

    url: str
    token: Callable[[], str]
    roles: Sequence[str]
    timeout_seconds: float = 20.0
    _fields_made: bool = field(default=False, init=False)

    async def read(self, since: datetime | None) -> Walk:
        return await self._threaded(lambda: self._read(since))

    async def write(self, writes: Sequence[Write]) -> list[str]:
        return await self._threaded(lambda: self._write(writes))

    async def _threaded(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except SourceUnavailable:
            raise
        except RequestError as error:
            raise _translated(error) from error
        except (ContentError, json.JSONDecodeError) as error:
            raise SourceUnavailable(f"NetBox at {self.url} did not answer with JSON") from error
        except requests.RequestException as error:
            raise SourceUnavailable(f"NetBox at {self.url} can't be reached: {type(error).__name__}") from error
        except OSError as error:
            raise SourceMisconfigured(f"the NetBox token can't be read: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceUnavailable(f"NetBox answered in an unexpected shape: {error!r}") from error

    # -- in the thread ----------------------------------------------------------------------------

    def _api(self) -> Any:
        api = pynetbox.api(self.url, token=self.token())
        session = requests.Session()
        session.mount("http://", _Bounded(self.timeout_seconds))
        session.mount("https://", _Bounded(self.timeout_seconds))
        api.http_session = session
        return api

    def _list(self, api: Any, path: str, **filters: Any) -> list[Document]:
        """All pages of a list. Raises SourceUnavailable when they do not add up (NetBox changed while it was read)."""
        request = _Pages(
            base=f"{api.base_url}/{path}/",
            filters={"ordering": "id", **filters},
            http_session=api.http_session,
            token=api.token,
            limit=PAGE,
        )
        found = list(request.get())
        if any(not isinstance(document, dict) or not isinstance(document.get("id"), int) for document in found):
            raise SourceUnavailable(f"NetBox listed something that is no object with an id in {path}")
        different = len({document["id"] for document in found})
        if different != request.count or different != len(found):
            raise SourceUnavailable(f"NetBox counted {request.count} of {path} but gave {different}; reading again")
        return found

    def _read(self, since: datetime | None) -> Walk:
        api = self._api()
        self._make_fields(api)
        devices = self._devices(api, since)
        if since is not None and not devices:
            # The usual poll costs two requests. It concludes nothing from what it did not see.
            return Walk(full=False)
        sites, bad_sites = site_records(self._list(api, "dcim/sites"))
        slugs = {site.slug for site in sites}
        ids = [device.get("id") for device in devices]
        interfaces = list(self._of_devices(api, "dcim/interfaces", ids))
        needs_address = [d.get("id") for d in devices if not d.get("oob_ip")]
        addresses = list(self._of_devices(api, "ipam/ip-addresses", needs_address))
        good, bad = device_records(devices, interfaces, addresses, slugs)
        return Walk(
            full=since is None,
            sites=sites,
            racks=rack_records(self._list(api, "dcim/racks"), slugs),
            device_types=type_records(self._list(api, "dcim/device-types")),
            devices=good,
            problems=(*bad, *(DeviceProblem(f"site:{text}", None, "", text) for text in bad_sites)),
            newest=newest_change([*devices, *interfaces]),
        )

    def _check_roles(self, api: Any) -> None:
        """A role that was renamed would make its machines vanish from every list: stop instead."""
        known = {str(role.get("slug")) for role in self._list(api, "dcim/device-roles")}
        lost = [role for role in self.roles if role not in known]
        if lost:
            raise SourceMisconfigured(
                f"NetBox has no device role {', '.join(lost)} (it has: {', '.join(sorted(known)) or 'none'}); "
                "was it renamed? Rename it back, or set SLIPWAY_NETBOX_ROLES. Nothing was changed."
            )

    def _devices(self, api: Any, since: datetime | None) -> list[Document]:
        if since is None:
            self._check_roles(api)
        common = {"role": list(self.roles), "exclude": "config_context"}
        if since is None:
            return self._list(api, "dcim/devices", **common)
        moment = since.isoformat().replace("+00:00", "Z")
        changed = {d["id"]: d for d in self._list(api, "dcim/devices", last_updated__gte=moment, **common)}
        # A port's new MAC or address does not touch its device's own last_updated.
        ports = self._list(api, "dcim/interfaces", last_updated__gte=moment)
        others = sorted({port["device"]["id"] for port in ports} - set(changed))
        for part in _parts(others):
            changed |= {d["id"]: d for d in self._list(api, "dcim/devices", id=part, **common)}
        return list(changed.values())

    def _of_devices(self, api: Any, path: str, ids: Sequence[Any]) -> Iterator[Document]:
        for part in _parts(ids):
            yield from self._list(api, path, device_id=part)

    def _make_fields(self, api: Any) -> None:
        """Make our custom fields where they are missing (once a process)."""
        if self._fields_made:
            return
        known = {str(made.get("name")) for made in self._list(api, "extras/custom-fields")}
        for name, kind, description in CUSTOM_FIELDS:
            if name not in known:
                api.extras.custom_fields.create(
                    name=name,
                    type=kind,
                    label=name.removeprefix("slipway_").replace("_", " ").capitalize(),
                    description=description,
                    group_name="Slipway",
                    object_types=["dcim.device"],
                )
        self._fields_made = True

    def _write(self, writes: Sequence[Write]) -> list[str]:
        """All in one request; when NetBox refuses it, one by one, so that one bad device does not stop the others."""
        api = self._api()
        bodies = [_body(write) for write in writes]
        url = f"{api.base_url}/dcim/devices/"
        try:
            self._patch(api, url, bodies)
        except RequestError as error:
            if _translated(error).__class__ is SourceUnavailable or len(bodies) == 1:
                raise
            return [self._write_one(api, body) for body in bodies]
        return ["" for _ in bodies]

    def _write_one(self, api: Any, body: Document) -> str:
        try:
            self._patch(api, f"{api.base_url}/dcim/devices/", [body])
        except RequestError as error:
            return str(_translated(error))
        return ""

    @staticmethod
    def _patch(api: Any, url: str, bodies: list[Document]) -> None:
        Request(base=url, http_session=api.http_session, token=api.token).patch(bodies)


def _body(write: Write) -> Document:
    """Only what is ours: fields of others are not sent at all."""
    body: Document = {"id": write.netbox_id, "custom_fields": write.fields}
    if write.status is not None:
        body["status"] = write.status
    return body


def _parts(ids: Sequence[Any]) -> Iterator[list[Any]]:
    for first in range(0, len(ids), IDS_PER_QUERY):
        yield list(ids[first : first + IDS_PER_QUERY])


def _translated(error: RequestError) -> SourceUnavailable:
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
