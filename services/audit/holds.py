"""Legal holds: what matches one is never removed, however old. Placing and releasing are history, and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.contracts.audit import HoldFacts, HoldKind, HoldPlaced, HoldReleased
from libs.contracts.ids import new_id
from services.audit import store

_hold, _release = store.legal_hold, store.legal_hold_release


def selected() -> sa.Subquery:
    """Every hold with its release, if there is one."""
    return (
        sa.select(
            _hold,
            _release.c.released_by,
            _release.c.released_at,
            _release.c.reason.label("release_reason"),
            _release.c.hold_id.is_(None).label("in_force"),
        )
        .outerjoin(_release, _release.c.hold_id == _hold.c.id)
        .subquery("hold")
    )


def facts_of(row: Mapping[Any, Any]) -> HoldFacts:
    names = [name for name in HoldFacts.model_fields if name != "version"]
    return HoldFacts(**{name: row[name] for name in names}, version=1 if row["released_at"] is None else 2)


async def get(conn: AsyncConnection, hold_id: str) -> HoldFacts | None:
    holds = selected()
    row = (await conn.execute(sa.select(holds).where(holds.c.id == hold_id))).mappings().first()
    return facts_of(row) if row is not None else None


async def place(ctx: Context, kind: HoldKind, value: str, reason: str) -> HoldFacts:
    """Hold what matches from now on. What was removed before can't be held any more."""
    facts = HoldFacts(
        id=new_id("hld"),
        kind=kind,
        value=value,
        reason=reason,
        placed_by=ctx.actor,
        placed_at=ctx.now,
        version=1,
    )
    row = {name: getattr(facts, name) for name in ("id", "value", "reason", "placed_by", "placed_at")}
    await ctx.conn.execute(insert(_hold), {**row, "kind": kind.value})
    ctx.emit(HoldPlaced(hold=facts), entity_id=facts.id, entity_version=1)
    return facts


async def release(ctx: Context, hold: HoldFacts, reason: str) -> HoldFacts | None:
    """Release it; None when somebody was faster."""
    row = {"hold_id": hold.id, "reason": reason, "released_by": ctx.actor, "released_at": ctx.now}
    done = await ctx.conn.execute(insert(_release).values(row).on_conflict_do_nothing())
    if done.rowcount != 1:
        return None
    told = {"released_by": ctx.actor, "released_at": ctx.now, "release_reason": reason, "version": 2}
    facts = hold.model_copy(update=told)
    ctx.emit(HoldReleased(hold=facts), entity_id=hold.id, entity_version=2)
    return facts


async def matches(conn: AsyncConnection, kind: HoldKind, value: str) -> bool:
    """Whether the hold keeps anything now."""
    column = {
        HoldKind.ENTITY: store.event.c.mentions.contains([value]),
        HoldKind.TENANT: store.event.c.tenant == value,
        HoldKind.CORRELATION: store.event.c.correlation_id == value,
    }
    return (await conn.execute(sa.select(sa.literal(1)).where(column[kind]).limit(1))).first() is not None
