"""What this service says, always to the tenant that the subscriber or webhook belongs to."""

from __future__ import annotations

from libs.bus.context import Context
from libs.contracts.subscription import (
    SubscriberFacts,
    SubscriberUpdated,
    WebhookDisabled,
    WebhookFacts,
    WebhookState,
    WebhookUpdated,
)


def emit_subscriber(ctx: Context, facts: SubscriberFacts) -> None:
    """A subscriber as it is now."""
    event = SubscriberUpdated(subscriber=facts)
    ctx.emit(event, entity_id=facts.id, entity_version=facts.version, tenant=facts.tenant)


def emit_webhook(ctx: Context, facts: WebhookFacts) -> None:
    """A webhook as it is now; one that we disable is said by an event of its own."""
    event = WebhookDisabled(webhook=facts) if facts.state is WebhookState.DISABLED else WebhookUpdated(webhook=facts)
    ctx.emit(event, entity_id=facts.id, entity_version=facts.version, tenant=facts.tenant)
