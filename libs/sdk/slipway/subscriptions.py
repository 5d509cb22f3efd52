"""Subscribers: durable consumers on the broker with credentials of their own; webhooks: events over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from slipway.collection import Collection, segment
from slipway.doors import Door
from slipway.errors import Unavailable
from slipway.models import Document

LOOK_EVERY_SECONDS = 0.3


class Credentials(BaseModel):
    """All that a NATS client needs to read one subscriber's events, and can do with."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    server: str
    user: str
    password: str
    stream: str
    consumer: str
    inbox_prefix: str


class Subscriber(Document):
    """`behind`: events it has not taken; `lost_before`: not 0 when events were dropped before it took them."""

    id: str
    name: str
    tenant: str = "-"
    subjects: list[str] = []
    state: str = ""
    version: int = 0
    max_ack_pending: int = 0
    behind: int | None = None
    unacknowledged: int | None = None
    redelivered: int | None = None
    lost_before: int | None = None
    last_seen_at: datetime | None = None
    measured_at: datetime | None = None
    credentials: Credentials | None = None


def instant(begin: str | datetime | None) -> str | None:
    """Where to begin, as the API takes it."""
    return begin.isoformat() if isinstance(begin, datetime) else begin


class Subscribers(Collection[Subscriber]):
    async def create(
        self,
        name: str,
        *,
        subjects: Sequence[str] = (),
        tenant: str | None = None,
        begin: str | datetime | None = None,
        door: Door | None = None,
        **limits: int,
    ) -> Subscriber:
        """Make one; its credentials are in the answer and nowhere else. `begin`: "now", "start" or an instant."""
        body = {"name": name, "subjects": list(subjects), "tenant": tenant, "begin": instant(begin), **limits}
        return Subscriber.of(await self._write("POST", self._path, body, door=door))

    async def rotate(self, subscriber: str, *, grace_seconds: int = 0, door: Door | None = None) -> Subscriber:
        """New credentials; the old ones end at once, or after the grace."""
        path = f"{self._path}/{segment(subscriber)}/rotate"
        return Subscriber.of(await self._write("POST", path, {"grace_seconds": grace_seconds}, door=door))

    async def delete(self, subscriber: str, *, door: Door | None = None) -> Document:
        return Document.of(await self._write("DELETE", f"{self._path}/{segment(subscriber)}", door=door))

    async def usable(self, subscriber: str, *, door: Door | None = None, within_seconds: float = 30.0) -> Subscriber:
        """The subscriber when its consumer has been made. Raises Unavailable."""
        began = time.monotonic()
        while (found := await self.get(subscriber, door=door)).state != "ACTIVE":
            if time.monotonic() - began > within_seconds:
                raise Unavailable(
                    f"The consumer of {found.name} has not been made within {within_seconds:g} s.",
                    f"It is made when the broker answers; watch: slipway subscribers show {found.name}",
                )
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        return found
