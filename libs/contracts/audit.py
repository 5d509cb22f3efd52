"""Audit: what it says about its own store. Every change of what is kept, and every proof, is an event as well."""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum

from libs.contracts.message import Message, event


class HoldKind(StrEnum):
    """What a legal hold names."""

    ENTITY = "entity"  # An id or name: every event of it, and every event that mentions it.
    TENANT = "tenant"
    CORRELATION = "correlation"


class CheckpointFacts(Message):
    """A signed word on one chain: after `events` events, the last numbered `last_sequence`, it ends in `digest`.

    `statement` is what was signed, to the byte: JSON with sorted keys. `signature` is Ed25519, base64url without
    padding, by the key whose RFC 7638 thumbprint is `key_id`. See docs/architecture/audit.md.
    """

    service: str
    number: int
    day: date
    last_sequence: int
    events: int
    digest: str
    made_at: datetime
    statement: str
    key_id: str
    signature: str


@event("audit", "checkpoint", "signed")
class CheckpointSigned(Message):
    """The chain of one service's events was signed up to a sequence. Keep it where the database's owner can't reach."""

    checkpoint: CheckpointFacts


class RetentionFacts(Message):
    """How long events are kept: `keep_days` after they happened, None for ever. In force from `in_force_at` on."""

    version: int
    keep_days: int | None = None
    reason: str
    set_by: str
    set_at: datetime
    in_force_at: datetime


@event("audit", "retention", "changed")
class RetentionChanged(Message):
    """Somebody decided how long events are kept."""

    retention: RetentionFacts


class HoldFacts(Message):
    """A legal hold: what matches it is not removed, however old, until the hold is released."""

    id: str
    kind: HoldKind
    value: str
    reason: str
    placed_by: str
    placed_at: datetime
    released_by: str | None = None
    released_at: datetime | None = None
    release_reason: str | None = None
    version: int


@event("audit", "hold", "placed")
class HoldPlaced(Message):
    """A legal hold keeps events from being removed."""

    hold: HoldFacts


@event("audit", "hold", "released")
class HoldReleased(Message):
    """A legal hold was released; what it kept goes with the next round of retention."""

    hold: HoldFacts


class RemovalFacts(Message):
    """Expired events of one service that were removed: numbers `first_sequence` to `last_sequence`, `events` in all.

    Their chain goes from `digest_before` to `digest`. `statement` and `signature` as of a checkpoint.
    """

    service: str
    first_sequence: int
    last_sequence: int
    events: int
    digest_before: str
    digest: str
    newest: datetime
    policy_version: int
    statement: str
    key_id: str
    signature: str


@event("audit", "removal", "done")
class RemovalDone(Message):
    """Expired events were removed; this stands for them in their chain."""

    removal: RemovalFacts
