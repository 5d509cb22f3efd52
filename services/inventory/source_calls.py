"""Writes of the gateway about the source: a webhook of NetBox has come."""

from __future__ import annotations

import structlog
from prometheus_client import Counter

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call
from libs.runtime.calls import CallHandlers
from services.inventory import source_store
from services.inventory.adapters.netbox_hook import hint_of

HINTS = Counter("slipway_netbox_hints_total", "Webhooks of NetBox by whether they name a device", ["outcome"])

log = structlog.get_logger("inventory")


async def netbox_hook(ctx: Context, call: Call) -> Answer:
    """Have the devices that the webhook points at read again soon; 202 also when it points at none."""
    hint = hint_of(call.params.get("document"))
    HINTS.labels("device" if hint.netbox_ids else "ignored").inc()
    if hint.netbox_ids:
        await source_store.hint(ctx.conn, hint.netbox_ids, hint.why, ctx.now)
    else:
        log.info("netbox_hook_ignored", why=hint.why)
    return Answer(status=202, body={"read_again": list(hint.netbox_ids), "why": hint.why})


SOURCE_CALLS: CallHandlers = {"netbox_hook": netbox_hook}
