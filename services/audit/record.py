"""How an event is kept: its columns, the ids it mentions, and its place in its service's digest chain. Pure.

Invariant: the kept text is the event as it was published, in one canonical form; the digest of an event covers it and
the digest before it, so that a changed or removed event shows from there on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from libs.contracts.envelope import Envelope

FIRST_DIGEST = ""
# Names are mentioned too: an operator looks a machine up by what is written on it.
_NAMING_KEYS = frozenset({"id", "name", "machine_name", "serial", "asset_tag"})
MAX_MENTIONS = 2000  # A cluster of a thousand nodes, each with machine and claim.
MAX_MENTION_CHARACTERS = 200


@dataclass(frozen=True)
class Type:
    """A CloudEvents type of ours, taken apart: slipway.<service>.<entity>.<name>."""

    service: str
    entity: str
    name: str


def type_of(text: str) -> Type:
    """Take a type apart; what is missing is ""."""
    parts = [*text.removeprefix("slipway.").split(".", 2), "", ""]
    return Type(parts[0], parts[1], parts[2])


def mentions(envelope: Envelope) -> list[str]:
    """Every id and name inside the event, its own entity's first, each once."""
    found = dict.fromkeys([envelope.subject])
    for value in _ids_in(envelope.data):
        found[value] = None
        if len(found) >= MAX_MENTIONS:
            break
    return [value for value in found if value]


def _ids_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str):
                if (key in _NAMING_KEYS or key.endswith("_id")) and 0 < len(item) <= MAX_MENTION_CHARACTERS:
                    yield item
            else:
                yield from _ids_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _ids_in(item)


def canonical(envelope: Envelope) -> str:
    """The one text of an event that is kept, exported and digested."""
    return envelope.encode().decode()


def chained(previous: str, text: str) -> str:
    """SHA-256 over the digest before and the event's text, in hex."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()
