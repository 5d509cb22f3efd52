"""Webhooks: events sent to a URL, signed. Their deliveries that wait or were given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from slipway.collection import Collection, segment
from slipway.doors import Door, Filter
from slipway.errors import Unavailable
from slipway.models import Document, Page
from slipway.subscriptions import instant

LOOK_EVERY_SECONDS = 0.3


class Webhook(Document):
    """`failures` in a row; 0: it works. `signing_key` is there once, when it was made."""

    id: str
    name: str
    tenant: str = "-"
    url: str = ""
    services: list[str] = []
    types: list[str] = []
    entities: list[str] = []
    signature: str = ""
    state: str = ""
    problem: str = ""
    version: int = 0
    failures: int = 0
    failing_since: datetime | None = None
    delivered: int = 0
    waiting: int = 0
    given_up: int = 0
    caught_up: bool = False
    last_delivered_at: datetime | None = None
    last_error: str | None = None
    signing_key: str | None = None


class Delivery(Document):
    """One event that did not get through at once, or a ping."""

    id: int
    kind: str = ""
    message_id: str = ""
    entity_id: str = ""
    type: str = ""
    state: str = ""
    attempts: int = 0
    status: int | None = None
    error: str | None = None
    due_at: datetime | None = None


class Webhooks(Collection[Webhook]):
    async def create(
        self,
        name: str,
        url: str,
        *,
        tenant: str | None = None,
        services: Sequence[str] = (),
        types: Sequence[str] = (),
        entities: Sequence[str] = (),
        signature: str = "hmac",
        begin: str | datetime | None = None,
        door: Door | None = None,
    ) -> Webhook:
        """Make one; the key that checks signatures is in the answer and nowhere else."""
        body = {
            "name": name,
            "url": url,
            "tenant": tenant,
            "services": list(services),
            "types": list(types),
            "entities": list(entities),
            "signature": signature,
            "begin": instant(begin),
        }
        return Webhook.of(await self._write("POST", self._path, body, door=door))

    async def change(self, webhook: str, *, door: Door | None = None, **values: Any) -> Webhook:
        """Change `url`, `services`, `types` or `entities`."""
        return Webhook.of(await self._write("PATCH", self._one(webhook), values, door=door))

    async def pause(self, webhook: str, *, door: Door | None = None) -> Webhook:
        return Webhook.of(await self._write("POST", self._one(webhook, "pause"), door=door))

    async def enable(self, webhook: str, *, door: Door | None = None) -> Webhook:
        """Go on where a paused or disabled one stopped."""
        return Webhook.of(await self._write("POST", self._one(webhook, "enable"), door=door))

    async def rotate(self, webhook: str, *, grace_seconds: int = 0, door: Door | None = None) -> Webhook:
        """A new signing key; for the grace requests carry a signature of each."""
        body = {"grace_seconds": grace_seconds}
        return Webhook.of(await self._write("POST", self._one(webhook, "rotate"), body, door=door))

    async def replay(
        self,
        webhook: str,
        *,
        begin: str | datetime | None = None,
        service: str | None = None,
        after: int | None = None,
        door: Door | None = None,
    ) -> Document:
        """Send again from an instant or the "start", or of one service what comes after a number."""
        body = {"begin": instant(begin), "service": service, "after": after}
        return Document.of(await self._write("POST", self._one(webhook, "replay"), body, door=door))

    async def delete(self, webhook: str, *, door: Door | None = None) -> Document:
        return Document.of(await self._write("DELETE", self._one(webhook), door=door))

    async def test(self, webhook: str, *, door: Door | None = None, within_seconds: float = 60.0) -> Delivery:
        """Send a ping and wait for what becomes of it. Raises Unavailable when nobody sends it in time."""
        started = Document.of(await self._write("POST", self._one(webhook, "test"), door=door))
        path = self._one(webhook, f"deliveries/{started.raw['delivery_id']}")
        began = time.monotonic()
        while (ping := Delivery.of(await self._read(path, door))).state == "WAITING":
            if time.monotonic() - began > within_seconds:
                raise Unavailable(
                    "The ping has not been sent yet.", f"Look later: slipway webhooks deliveries {webhook}"
                )
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        return ping

    async def deliveries(
        self, webhook: str, *, door: Door | None = None, **filters: Filter
    ) -> AsyncIterator[Page[Delivery]]:
        """What waits, was given up, or waited and got through; newest first."""
        async for page in self._transport.pages(self.door(door), self._one(webhook, "deliveries"), Delivery, filters):
            yield page

    async def retry(self, webhook: str, delivery_id: int, *, door: Door | None = None) -> Document:
        """Try one that was given up again."""
        path = self._one(webhook, f"deliveries/{delivery_id}/retry")
        return Document.of(await self._write("POST", path, door=door))

    def _one(self, webhook: str, what: str = "") -> str:
        path = f"{self._path}/{segment(webhook)}"
        return f"{path}/{what}" if what else path
