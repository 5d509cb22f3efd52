"""The audit store as a service's archive: is it there, and what did we lose? Asked over request-reply."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from nats.aio.client import Client

from libs.contracts.calls import Answer, Call
from libs.contracts.envelope import BadMessage, Envelope, decode, new_message_id

OWNER = "audit"
MOST_AT_ONCE = 2000
ANSWER_SECONDS = 10.0


class ArchiveUnavailable(RuntimeError):
    """The audit service does not answer, or with a fault. Nothing is known, so nothing may be removed."""


def digest_of(events: Iterable[tuple[int, str]]) -> str:
    """SHA-256 over (sequence, message id) in order."""
    total = hashlib.sha256()
    for sequence, message_id in events:
        total.update(f"{sequence} {message_id}\n".encode())
    return total.hexdigest()


class Archive:
    """The archive of one service's events."""

    def __init__(self, service: str, client: Client) -> None:
        self.service, self._client = service, client

    async def holds(self, events: Sequence[tuple[int, str]]) -> bool:
        """Whether exactly these (sequence, id), neighbours in order, are archived. At most MOST_AT_ONCE."""
        assert 0 < len(events) <= MOST_AT_ONCE
        body = await self._ask("archived", events[0][0], events[-1][0])
        return bool(body.get("count") == len(events) and body.get("digest") == digest_of(events))

    async def events(self, first: int, last: int) -> list[Envelope]:
        """Archived events from `first` on, in order, as many as one answer carries; none when `first` is not there."""
        body = await self._ask("archived_events", first, last)
        try:
            found = [decode(text.encode()) for text in body.get("items", [])]
        except BadMessage as error:
            raise ArchiveUnavailable(f"the archive's event from {first} on can't be read: {error}") from error
        return found if found and found[0].stream_sequence == first else []

    async def _ask(self, name: str, first: int, last: int) -> dict[str, Any]:
        call = Call(
            name=name,
            actor=f"system:{self.service}",
            correlation_id=new_message_id(),
            params={"service": self.service, "first": first, "last": last},
        )
        try:
            reply = await self._client.request(
                f"qry.{OWNER}.{name}", call.model_dump_json().encode(), timeout=ANSWER_SECONDS
            )
            answer = Answer.model_validate_json(reply.data)
        except Exception as error:
            raise ArchiveUnavailable(f"the audit service did not answer: {error!r}") from error
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise ArchiveUnavailable(f"the audit service answered {answer.status}: {answer.body}")
        return answer.body


def subject_of(event: Envelope) -> str:
    """The subject of an event, from its envelope alone: a newer type than this code knows is put back too."""
    service, entity, name = event.type.removeprefix("slipway.").split(".", 2)
    version = (event.dataschema or "").removesuffix(".json").rpartition(".v")[2] or "1"
    return f"evt.{event.site}.{event.tenant}.{service}.{entity}.{name}.v{version}"
