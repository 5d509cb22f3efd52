"""How many machines of a profile are free, and why each of the others is not, in words for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.replies import Problem
from services.reservation.errors import NOT_ENOUGH_MACHINES
from services.reservation.store import claim_table, pool_table

# A refusal names this many machines; the counts by reason cover the rest. It has to fit into one message.
MAX_NAMED = 50
FREE = "free"
HELD = "held by a reservation"
TRIED = "given up by this request before"
ON_HOLD = "AVAILABLE, but an operator or a system keeps it on hold"
NO_PROOF = "AVAILABLE, but its proof of health is missing or too old"


@dataclass(frozen=True)
class NotFree:
    """One machine and why it can't be had. `detail` is inventory's own reason, "" when it gave none."""

    machine_id: str
    name: str
    site: str
    why: str
    detail: str


@dataclass(frozen=True)
class Availability:
    """Counts of one profile: `by_reason` sums up to `total`; `free_by_site` sums up to `free`."""

    total: int
    by_reason: dict[str, int]
    free_by_site: dict[str, int]

    @property
    def free(self) -> int:
        return self.by_reason.get(FREE, 0)

    @property
    def most_at_one_site(self) -> int:
        return max(self.free_by_site.values(), default=0)


def why_not(state: str, failed_step: str, *, eligible: bool, held: bool, on_hold: bool) -> str:
    """The reason a machine can't be had now; FREE when it can. A live claim comes first: it explains the rest."""
    if held:
        return HELD
    if state == "FAILED" and failed_step:
        return f"FAILED({failed_step})"
    if state != "AVAILABLE":
        return state
    if on_hold:
        return ON_HOLD
    return FREE if eligible else NO_PROOF


def _held() -> ColumnElement[bool]:
    return exists().where(and_(claim_table.c.machine_id == pool_table.c.machine_id, claim_table.c.live))


def _of(profile: str, site: str | None) -> ColumnElement[bool]:
    mine = pool_table.c.profile == profile
    return mine if site is None else and_(mine, pool_table.c.site == site)


async def count(
    conn: AsyncConnection, profile: str, site: str | None = None, tried: Collection[str] = ()
) -> Availability:
    """Count the profile's machines by reason. `tried` machines are never free for this request."""
    held = _held().label("held")
    was_tried = pool_table.c.machine_id.in_(sorted(tried)).label("tried")
    keys = (pool_table.c.site, pool_table.c.state, pool_table.c.failed_step, pool_table.c.eligible)
    seen = select(*keys, pool_table.c.on_hold, held, was_tried).where(_of(profile, site)).subquery()
    rows = (await conn.execute(select(*seen.c, func.count().label("machines")).group_by(*seen.c))).all()
    by_reason: Counter[str] = Counter()
    free_by_site: Counter[str] = Counter()
    for row in rows:
        reason = why_not(row.state, row.failed_step, eligible=row.eligible, held=row.held, on_hold=row.on_hold)
        if reason == FREE and row.tried:
            reason = TRIED
        by_reason[reason] += row.machines
        if reason == FREE:
            free_by_site[row.site] += row.machines
    return Availability(sum(by_reason.values()), dict(by_reason), dict(free_by_site))


async def not_free(conn: AsyncConnection, profile: str, site: str | None = None) -> list[NotFree]:
    """The first MAX_NAMED machines by name that are not free, each with its reason."""
    held = _held()
    statement = (
        select(pool_table, held.label("held"))
        .where(_of(profile, site), held | ~pool_table.c.eligible)
        .order_by(pool_table.c.name)
        .limit(MAX_NAMED)
    )
    return [
        NotFree(
            machine_id=row.machine_id,
            name=row.name,
            site=row.site,
            why=why_not(row.state, row.failed_step, eligible=row.eligible, held=row.held, on_hold=row.on_hold),
            detail="" if row.held else row.reason,
        )
        for row in (await conn.execute(statement)).all()
    ]


def refusal(profile: str, site: str | None, wanted: int, seen: Availability, machines: list[NotFree]) -> Problem:
    """Why `wanted` machines can't be held: counts by reason in the message, machine by machine in the details."""
    where = f" at site {site}" if site else ""
    if seen.total == 0:
        message = f"There is no machine of profile {profile!r}{where}."
        next_step = "Ask for a profile and site that have machines: GET /profiles/{name}/availability shows them."
    else:
        others = ", ".join(f"{number} {reason}" for reason, number in _sorted(seen.by_reason) if reason != FREE)
        message = (
            f"{wanted} machines of profile {profile!r} were asked for{where}; {seen.free} of {seen.total} are free"
        )
        if site is None and seen.free >= wanted:
            message += f", at most {seen.most_at_one_site} at one site"
        message += f" (the others: {others})." if others else "."
        at_most = seen.most_at_one_site
        smaller = f"Ask for at most {at_most}, or wait" if at_most else "Wait"
        next_step = (
            f"{smaller} until machines that are being sanitised or validated are back; "
            "those QUARANTINED or FAILED need an operator."
        )
    details = {
        "wanted": wanted,
        "free": seen.free,
        "total": seen.total,
        "by_reason": dict(_sorted(seen.by_reason)),
        "machines": [
            {"id": each.machine_id, "name": each.name, "site": each.site, "why": each.why, "detail": each.detail}
            for each in machines
        ],
    }
    return Problem(code=NOT_ENOUGH_MACHINES, message=message, next_step=next_step, details=details)


def _sorted(by_reason: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(by_reason.items(), key=lambda entry: (-entry[1], entry[0]))
