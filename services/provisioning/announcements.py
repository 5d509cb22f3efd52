"""Emit the events of a change of a cluster, each under the version it carries."""

from __future__ import annotations

from libs.bus.context import Context
from services.provisioning.model import Change


def announce(ctx: Context, change: Change) -> None:
    after = change.after
    for version, event in change.events:
        ctx.emit(event, entity_id=after.id, entity_version=version, site=after.site or "-", tenant=after.tenant)
