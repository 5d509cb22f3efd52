"""Where a reader of all events is: the newest number it has of each publisher, and when the broker kept it.

Numbers that publishers stamp (decision 0009) stay the same when a broker is lost and filled again; sequences of the
stream `EVT`, which gathers all publishers, do not. So a position is made of the former, and a time only says where to
begin to look. A tenant's reader counts by the tenant's own numbers: the others would tell how busy everybody else is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import orjson

MAX_TOKEN_CHARACTERS = 8192  # A hundred publishers' numbers; what a URL may have.


class BadPosition(ValueError):
    """The text is no position of ours, or one of another kind of reader; the message says which."""


class Numbering(StrEnum):
    """Which of an event's numbers is gapless for the reader."""

    SERVICE = "service"  # `sequence`, by publisher: who sees everything.
    TENANT = "tenant"  # `tenantsequence`, by tenant and publisher: who sees some tenants.

    def key(self, envelope: Mapping[str, Any]) -> str:
        """Whose numbers the event belongs to, such as `inventory` or `acme-research/inventory`."""
        service = str(envelope["source"]).rpartition("/")[2]
        return service if self is Numbering.SERVICE else f"{envelope['tenant']}/{service}"

    def number(self, envelope: Mapping[str, Any]) -> int:
        """The event's number, 0 when it has none. Raises ValueError or TypeError when it is no number."""
        name = "sequence" if self is Numbering.SERVICE else "tenantsequence"
        return int(envelope.get(name) or 0)


@dataclass(frozen=True)
class Position:
    """`since` None: before everything that is kept. `seen`: the newest number by key; a key without one is unknown."""

    numbering: Numbering
    since: datetime | None = None
    seen: Mapping[str, int] = field(default_factory=dict)

    def after(self, key: str, number: int, kept_at: datetime) -> Position:
        """The position behind one more event."""
        newest = kept_at if self.since is None else max(kept_at, self.since)
        return Position(self.numbering, newest, {**self.seen, key: number})

    def token(self) -> str:
        """The position as opaque text that fits into a URL and into an SSE id."""
        since = None if self.since is None else int(self.since.timestamp() * 1000)
        packed = orjson.dumps([self.numbering.value[0], since, dict(self.seen)])
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def parse(cls, token: str, numbering: Numbering) -> Position:
        """The position that `token()` gave. Raises BadPosition."""
        try:
            if len(token) > MAX_TOKEN_CHARACTERS:
                raise ValueError(token)
            kind, since, seen = orjson.loads(base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True))
            found = {str(key): int(number) for key, number in dict(seen).items()}
            when = None if since is None else datetime.fromtimestamp(int(since) / 1000, UTC)
        except (ValueError, TypeError, OverflowError, OSError, binascii.Error):
            raise BadPosition("is no id of an event stream; use one that a stream gave, or leave it out") from None
        if kind != numbering.value[0]:
            raise BadPosition("belongs to a stream of another kind (other door, or with and without a tenant)")
        return cls(numbering, when, found)
