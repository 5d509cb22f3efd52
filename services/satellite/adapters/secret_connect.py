"""Secrets in 1Password behind a Connect server, over its SDK: an item's title is the reference.

One vault holds the site's secrets. The fields of an item are told by their labels; those we write are concealed. Two
items of one title are nobody's to choose between. Connect knows no compare-and-set, so a write reads the version
right before: the site's lease keeps a second satellite away, a person in the same second is seen at the next read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import httpx
from onepasswordconnectsdk.client import AsyncClient
from onepasswordconnectsdk.config import ClientConfig
from onepasswordconnectsdk.errors import OnePasswordConnectSDKError
from onepasswordconnectsdk.models import Field, Item, ItemVault

from services.satellite.adapters import secret_refs
from services.satellite.adapters.secret_refs import check_ref
from services.satellite.errors import Failure, SiteError
from services.satellite.ports import Secret

V = TypeVar("V")
_STORE = "1Password Connect"
_TAG = "slipway"
_PURPOSES = {"username": "USERNAME", "password": "PASSWORD"}


@dataclass(frozen=True)
class ConnectAddress:
    """A Connect server and the vault's id. `token_file` holds the access token, mode 600."""

    url: str
    vault_id: str
    token_file: Path
    ca_file: Path | None = None
    timeout_seconds: float = 10.0


class _Status(Exception):
    """The server's answer was no success."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"HTTP {status}")


async def _refuse(response: httpx.Response) -> None:
    """Look at an answer before the SDK does: it keeps few failures' status and takes a page of HTML for a list."""
    if response.status_code >= 400:
        raise _Status(response.status_code)
    if response.status_code != HTTPStatus.NO_CONTENT:
        json.loads(await response.aread())


class ConnectSecrets:
    """See `services.satellite.ports.Secrets`."""

    def __init__(self, address: ConnectAddress) -> None:
        self._at = address

    async def read(self, ref: str) -> Secret:
        """See the port."""
        item = await self._item(ref)
        if item is None:
            raise secret_refs.missing(ref, _STORE)
        return Secret(secret_refs.text_fields(ref, _fields(item)), str(item.version))

    async def write(self, ref: str, fields: Mapping[str, str], *, replaces: str | None) -> str:
        """See the port."""
        there = await self._item(ref)
        if (None if there is None else str(there.version)) != replaces:
            raise secret_refs.conflict(ref, _STORE)
        vault = self._at.vault_id
        wanted = Item(
            title=ref,
            category="LOGIN",
            tags=[_TAG],
            vault=ItemVault(id=vault),
            fields=[_field(name, value) for name, value in fields.items()],
        )
        if there is None:
            await self._ask(ref, lambda client: client.create_item(vault, wanted), writing=True)
        else:
            item_id = str(there.id)
            await self._ask(ref, lambda client: client.update_item(item_id, vault, wanted), writing=True)
        now = await self.read(ref)  # What Connect's cache answers from here on, not what it promised.
        if dict(now.fields) != dict(fields):
            raise secret_refs.conflict(ref, _STORE)
        return now.version

    async def refs(self, prefix: str = "") -> tuple[str, ...]:
        """See the port."""
        found = await self._items(prefix or "/")
        titles = {str(item.title) for item in found}
        return tuple(sorted(t for t in titles if t.startswith(prefix) and secret_refs.well_formed(t)))

    async def remove(self, ref: str) -> None:
        """See the port."""
        item = await self._item(ref)
        if item is not None:
            item_id = str(item.id)
            await self._ask(ref, lambda client: client.delete_item(item_id, self._at.vault_id), writing=True)

    async def _items(self, ref: str, query: str | None = None) -> list[Any]:
        found = await self._ask(ref, lambda client: client.get_items(self._at.vault_id, query))
        if not isinstance(found, list) or any(not item.title or not item.id for item in found):
            raise secret_refs.unreachable(ref, _STORE, "its list is not one of items", writing=False)
        return found

    async def _item(self, ref: str) -> Any:
        """The one item of this title, None when there is none."""
        query = f'title eq "{check_ref(ref)}"'
        found = await self._items(ref, query)
        same = [item for item in found if item.title == ref]
        if len(same) > 1:
            raise Failure(
                "secret_unreadable",
                f"{_STORE} has {len(same)} items called {ref!r} in the site's vault.",
                "Rename or delete all but the one that is right.",
            )
        if not same:
            return None
        item_id = str(same[0].id)
        return await self._ask(ref, lambda client: client.get_item_by_id(item_id, self._at.vault_id))

    def _client(self, ref: str) -> AsyncClient:
        try:
            token = self._at.token_file.read_text().strip()
        except OSError as error:
            raise secret_refs.denied(ref, _STORE, f"{self._at.token_file}: {error.strerror}.") from error
        config = ClientConfig(
            ca_file=str(self._at.ca_file) if self._at.ca_file else None,
            timeout=self._at.timeout_seconds,
            event_hooks={"response": [_refuse]},
        )
        return AsyncClient(self._at.url, token, config)

    async def _ask(self, ref: str, question: Any, *, writing: bool = False) -> Any:
        """The server's answer. A client for each question reads the token's file anew, so a changed one is used."""
        client = self._client(ref)
        try:
            async with asyncio.timeout(self._at.timeout_seconds):
                return await _awaited(question(client))
        except _Status as answer:
            raise _failure(ref, answer.status, writing) from answer
        except (TimeoutError, httpx.TimeoutException) as error:
            raise secret_refs.unreachable(ref, _STORE, "it took too long", writing=writing) from error
        except (httpx.HTTPError, OnePasswordConnectSDKError, ValueError, TypeError, AttributeError) as error:
            raise secret_refs.unreachable(ref, _STORE, type(error).__name__, writing=writing) from error
        finally:
            await client.session.aclose()


async def _awaited(answer: Awaitable[V]) -> V:
    return await answer


def _failure(ref: str, status: int, writing: bool) -> SiteError:
    if status in (401, 403):
        return secret_refs.denied(ref, _STORE, "Give the satellite a valid token with a right on the site's vault.")
    if status == 404:
        return secret_refs.missing(ref, _STORE)
    return secret_refs.unreachable(ref, _STORE, f"HTTP {status}", writing=writing)


def _fields(item: Any) -> dict[str, Any]:
    """Label → value of the fields that hold something; a login's empty notes are no field of ours."""
    return {str(field.label): field.value for field in item.fields or [] if field.label and field.value}


def _field(name: str, value: str) -> Field:
    kind = "STRING" if name == "username" else "CONCEALED"
    return Field(id=name, label=name, value=value, type=kind, purpose=_PURPOSES.get(name))
