"""Placement over its own API, by keystoneauth; its conflicts told apart by the codes that it gives.

A conflict about an allocation is a race: read again, apply again, a bounded number of times. "In use" is none: there
are allocations that we do not know. A provider is only read again when its generation has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import keystoneauth1.exceptions
from keystoneauth1 import adapter, loading, session

from services.satellite.errors import Failure, Refusal, SiteError, Unanswered
from services.satellite.placement import Provider

T = TypeVar("T")
_MICROVERSION = "1.28"  # Consumer generations; of 2018.
_REQUEST_SECONDS = 30
# Everybody who races with us changes a provider once for one machine; more in a row is no race.
_TRIES = 6
_OWNER = "slipway"  # The project and user of our own allocations.
_IN_USE = frozenset({"placement.inventory.inuse", "placement.resource_provider.inuse"})
_BAREMETAL_TOTAL = 1


class RestPlacement:
    """See `services.satellite.placement.Placement`. `sign_in`: {"auth_type": …, …} as keystoneauth names them."""

    def __init__(self, url: str, region: str, sign_in: Callable[[], Mapping[str, Any]]) -> None:
        self._url, self._region, self._sign_in = url, region, sign_in
        self._api: adapter.Adapter | None = None
        self._known: dict[str, Provider] = {}

    async def providers(self, ids: frozenset[str]) -> list[Provider]:
        return await self._asked(lambda: self._providers(ids))

    async def reserve(self, provider_id: str, name: str, *, held: bool) -> Provider | None:
        return await self._asked(lambda: self._reserve(provider_id, name, held))

    async def remove(self, provider_id: str, name: str) -> None:
        await self._asked(lambda: self._remove(provider_id, name))

    # -- what is asked, in a thread ----------------------------------------------------------------

    def _providers(self, ids: frozenset[str]) -> list[Provider]:
        listed = self._get("/resource_providers")["resource_providers"]
        mine = {row["uuid"]: row for row in listed if row["uuid"] in ids}
        self._known = {key: known for key, known in self._known.items() if key in mine}
        for key, row in mine.items():
            known = self._known.get(key)
            if known is None or known.generation != row["generation"] or known.name != row["name"]:
                read = self._read(key, row["name"])
                if read is not None:
                    self._known[key] = read
        return list(self._known.values())

    def _read(self, provider_id: str, name: str) -> Provider | None:
        """The provider now; None when it went meanwhile. Inventories and allocations of one generation."""
        for _ in range(_TRIES):
            inventories = self._get(f"/resource_providers/{provider_id}/inventories", missing=None)
            allocations = self._get(f"/resource_providers/{provider_id}/allocations", missing=None)
            if inventories is None or allocations is None:
                return None
            generation = int(inventories["resource_provider_generation"])
            if generation == int(allocations["resource_provider_generation"]):
                return _provider(provider_id, name, generation, inventories["inventories"], allocations["allocations"])
        raise Unanswered("placement_busy", f"{name}: its resource provider changes all the time.", "Look at Placement.")

    def _reserve(self, provider_id: str, name: str, held: bool) -> Provider | None:
        for _ in range(_TRIES):
            found = self._read(provider_id, name)
            if found is None or found.total == 0:
                return found
            if (provider_id in found.consumers) is held or (held and found.consumers):
                return found
            answer = self._allocate(found) if held else self._send("DELETE", f"/allocations/{provider_id}", None)
            # A conflict is a race with whoever allocates: what is there now decides.
            if answer.status_code not in (204, 404, 409):
                raise _refused(name, answer)
        raise Unanswered(
            "placement_busy",
            f"{name}: somebody else changed its allocations at each of {_TRIES} tries.",
            "Look at who writes to Placement; it is tried again.",
        )

    def _allocate(self, provider: Provider) -> Any:
        """Our own allocation, under the provider's id as consumer. A consumer that is new has no generation at all."""
        path = f"/allocations/{provider.id}"
        known = self._get(path)
        body = {
            "allocations": {provider.id: {"resources": {provider.resource_class: provider.total}}},
            "consumer_generation": known.get("consumer_generation"),
            "project_id": _OWNER,
            "user_id": _OWNER,
        }
        return self._send("PUT", path, body)

    def _remove(self, provider_id: str, name: str) -> None:
        answer = self._send("DELETE", f"/resource_providers/{provider_id}", None)
        if answer.status_code not in (204, 404):
            raise _refused(name, answer)

    # -- HTTP --------------------------------------------------------------------------------------

    async def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(ask)
        except keystoneauth1.exceptions.ClientException as error:
            if getattr(error, "http_status", None) in (401, 403):
                raise Failure(
                    "placement_denied",
                    "Placement refuses the satellite's credentials.",
                    "Correct the file that SLIPWAY_PLACEMENT_CREDENTIALS_FILE names.",
                ) from error
            raise Unanswered("placement_unreachable", f"Placement does not answer: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Unanswered("placement_unreadable", f"Placement's answer can't be read: {error!r}") from error

    def _connected(self) -> adapter.Adapter:
        if self._api is None:
            options = dict(self._sign_in())
            plugin: Any = loading.get_plugin_loader(str(options.pop("auth_type", "password")))
            signed_in = session.Session(auth=plugin.load_from_options(**options), timeout=_REQUEST_SECONDS)
            self._api = adapter.Adapter(
                signed_in,
                service_type="placement",
                endpoint_override=self._url,
                region_name=self._region,
                default_microversion=_MICROVERSION,
                raise_exc=False,
            )
        return self._api

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        answer = self._connected().request(path, method, json=body, headers={"Accept": "application/json"})
        if answer.status_code in (401, 403):
            raise keystoneauth1.exceptions.Unauthorized(http_status=answer.status_code)
        if answer.status_code >= 500:
            raise keystoneauth1.exceptions.HttpServerError(f"HTTP {answer.status_code}: {answer.text[:200]}")
        return answer

    def _get(self, path: str, **missing: None) -> Any:
        """The document; the value of `missing`, when that is given, for a thing that is not there."""
        answer = self._send("GET", path, None)
        if answer.status_code == 404 and missing:
            return missing["missing"]
        if answer.status_code != 200:
            raise ValueError(f"{path}: HTTP {answer.status_code}: {answer.text[:200]}")
        return answer.json()


def _provider(
    provider_id: str,
    name: str,
    generation: int,
    inventories: Mapping[str, Mapping[str, Any]],
    allocations: Mapping[str, Any],
) -> Provider:
    """A bare-metal provider has one inventory of one; any other is none that a machine of ours could be."""
    of_one = [(kind, row) for kind, row in inventories.items() if row["total"] == _BAREMETAL_TOTAL]
    kind, row = of_one[0] if len(of_one) == 1 else ("", {"total": 0, "reserved": 0})
    return Provider(
        id=provider_id,
        name=name,
        generation=generation,
        resource_class=kind,
        total=int(row["total"]),
        reserved=int(row["reserved"]),
        consumers=tuple(sorted(allocations)),
    )


def _code(answer: Any) -> str:
    try:
        return str(answer.json()["errors"][0].get("code", ""))
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


def _refused(name: str, answer: Any) -> SiteError:
    if answer.status_code == 409 and _code(answer) in _IN_USE:
        return Refusal(
            "placement_in_use",
            f"{name}: somebody has an allocation on its resource provider.",
            "Look for the consumer in Nova: delete its instance, or the allocation when the instance is gone.",
        )
    return Failure("placement_refused", f"{name}: Placement refused: {answer.text[:300]}", "Look at the provider.")
