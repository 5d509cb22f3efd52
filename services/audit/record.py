"""How an event is kept: its columns, the ids it mentions, and its place in its service's digest chain. Pure.

Invariant: the kept text is the event as it was published, in one canonical form. What chains the texts is
`slipway.proof`, which everybody who holds a copy of the events can run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from libs.contracts.envelope import Envelope

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


def event_row(envelope: Envelope, digest: str) -> dict[str, Any]:
    """The event's row, all of whose columns are in its text as well, except the digest."""
    kind = type_of(envelope.type)
    return {
        "service": kind.service,
        "sequence": envelope.stream_sequence,
        "id": envelope.id,
        "type": envelope.type,
        "entity_kind": kind.entity,
        "entity_id": envelope.subject,
        "entity_version": envelope.entityversion,
        "time": envelope.time,
        "tenant": envelope.tenant,
        "site": envelope.site,
        "actor": envelope.actor,
        "correlation_id": envelope.correlationid,
        "causation_id": envelope.causationid,
        "mentions": mentions(envelope),
        "envelope": canonical(envelope),
        "digest": digest,
    }
