"""Permanent codes of subscription's refusals. Clients rely on them; a code is never re-used for something else."""

from __future__ import annotations

from libs.contracts.calls import Answer, Call, problem
from libs.runtime.params import invalid

SUBSCRIBER_EXISTS = "subscriber.exists"
SUBSCRIBER_LIMIT = "subscriber.too_many"
SUBSCRIBER_OFF = "subscriber.not_configured"
WEBHOOK_EXISTS = "webhook.exists"
WEBHOOK_LIMIT = "webhook.too_many"
WEBHOOK_OFF = "webhook.not_configured"
WEBHOOK_STATE = "webhook.wrong_state"
DELIVERY_STATE = "delivery.wrong_state"
VERSION_CHANGED = "request.version_changed"


def refused_tenant(call: Call, tenant: str) -> Answer | None:
    """At the tenant door things belong to one of the caller's tenants."""
    if call.tenants is None or tenant in call.tenants:
        return None
    return invalid([{"field": "tenant", "message": f"must be one of {', '.join(call.tenants)}"}])


def changed_meanwhile() -> Answer:
    return problem(412, VERSION_CHANGED, "It was changed meanwhile.", "Read it again and decide on what is there now.")
