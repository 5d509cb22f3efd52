"""Subscription: who outside gets events, and how: subscribers (a durable consumer of their own) and webhooks."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from libs.contracts.envelope import NONE_TOKEN
from libs.contracts.message import Message, event


class SubscriberState(StrEnum):
    PENDING = "PENDING"  # Its consumer is being made; credentials work from ACTIVE on.
    ACTIVE = "ACTIVE"
    DELETED = "DELETED"


class WebhookState(StrEnum):
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"  # By its owner.
    DISABLED = "DISABLED"  # By us: it failed for too long, or said that it is gone.
    DELETED = "DELETED"


class Signature(StrEnum):
    HMAC = "hmac"  # A secret that both sides know.
    ED25519 = "ed25519"  # The receiver knows a public key only.


class SubscriberFacts(Message):
    """`tenant` "-": events of the whole installation. `generation` rises when credentials are replaced at once."""

    id: str
    name: str
    tenant: str = NONE_TOKEN
    subjects: tuple[str, ...]
    state: SubscriberState
    max_ack_pending: int
    ack_wait_seconds: int
    generation: int
    created_by: str
    created_at: datetime
    version: int


class WebhookFacts(Message):
    """Empty `services`, `types` and `entities`: every event of the tenant. `problem`: why it is not ACTIVE."""

    id: str
    name: str
    tenant: str = NONE_TOKEN
    url: str
    services: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    signature: Signature
    state: WebhookState
    problem: str = ""
    generation: int
    created_by: str
    created_at: datetime
    version: int


@event("subscription", "subscriber", "updated")
class SubscriberUpdated(Message):
    """A subscriber was made, became usable, got new credentials, or was deleted."""

    subscriber: SubscriberFacts


@event("subscription", "webhook", "updated")
class WebhookUpdated(Message):
    """A webhook was made, changed, paused, enabled, got a new secret, or was deleted."""

    webhook: WebhookFacts


@event("subscription", "webhook", "disabled")
class WebhookDisabled(Message):
    """A webhook failed for too long; nothing more is sent until somebody enables it again."""

    webhook: WebhookFacts
