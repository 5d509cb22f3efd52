"""Looks at every machine by the clock and tells which invariants do not hold; answers about them; starts repairs.

One replica looks at a time (a lease). A look reads in pages and holds no lock; what it found is written in one
transaction with its events. A look that takes long is followed by a longer pause, so that it never eats the service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog
from prometheus_client import Gauge
from pydantic import BaseModel
from sqlalchemy import case, select
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context, ObservationHandlers
from libs.bus.lease import Lease
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.envelope import now_utc
from libs.contracts.message import json_data
from libs.contracts.site import NodeGone
from libs.contracts.violation import ViolationCleared, ViolationFacts, ViolationOpened
from libs.runtime.calls import CallHandlers, QueryHandlers
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from libs.runtime.service import App, Periodic
from services.inventory import repairs, store, violation_store
from services.inventory.model.invariants import INVARIANTS, REPAIR_WORDS
from services.inventory.model.machine import Refusal
from services.inventory.model.violations import Key, Round, Violation, gone, grace_of, look

ACTOR = "system:invariants"
EVERY_SECONDS = 5.0
# A look that takes t is followed by a pause of this many t: at ten seconds a look, two looks and with them the shortest
# grace stay below a minute, and at most two fifths of one processor are used for it.
PAUSE_FACTOR = 1.5
LEASE_SECONDS = 60.0

log = structlog.get_logger("inventory")
OPEN = Gauge("slipway_violations_open", "Invariants that do not hold", ["invariant"])
LOOK_SECONDS = Gauge("slipway_invariants_look_seconds", "How long the last look at all machines took")


# -- looking ----------------------------------------------------------------------------------------


async def check(app: App) -> None:
    """One look at everything, unless another replica does it or the pause after the last one is not over."""
    if time.monotonic() < app.state.get("invariants_due", 0.0):
        return
    async with app.database.transaction() as conn:
        if await Lease(app.service.name, "invariants", app.holder, LEASE_SECONDS).take(conn) is None:
            return
    began = time.monotonic()
    await check_now(app)
    took = time.monotonic() - began
    LOOK_SECONDS.set(took)
    app.state["invariants_due"] = time.monotonic() + PAUSE_FACTOR * took


async def check_now(app: App) -> None:
    """Judge every machine and every node that is no machine's, and write what came of it."""
    now = now_utc()
    async with app.read() as conn:
        heard = await violation_store.sites(conn, now)
        busy = await violation_store.worked_on(conn)
        known = await violation_store.not_cleared(conn)
        longest = await violation_store.longest(conn)
        found = look(await violation_store.strangers(conn, heard), known, longest, now)
    seen = {violation.subject for violation in (*found.changed, *found.forgotten)}
    after = ""
    while True:
        async with app.read() as conn:
            page = await violation_store.machines(conn, heard, busy, after)
        look(page, known, longest, now, found)
        seen |= {subject.id for subject in page}
        await asyncio.sleep(0)
        if len(page) < violation_store.PAGE:
            break
        after = page[-1].id
    async with app.read() as conn:
        seen |= await violation_store.node_ids(conn)
    ended = gone(known, seen, now)
    found.changed += ended.changed
    found.forgotten += ended.forgotten
    await _write(app, found, known, longest)


async def _write(app: App, found: Round, known: Mapping[Key, Violation], longest: Mapping[Key, Any]) -> None:
    async with app.transaction(actor=ACTOR) as ctx:
        await violation_store.forget(ctx.conn, found.forgotten)
        await violation_store.save(ctx.conn, found.changed)
        await violation_store.save_state(ctx.conn, found.coverage, found.lasted, longest, ctx.now)
        await violation_store.forget_cleared(ctx.conn, ctx.now)
        for violation in found.changed:
            before = known.get((violation.invariant, violation.subject))
            _tell(ctx, violation, before.version if before is not None else 0)
    live = [violation.invariant for violation in found.changed if violation.opened_at and not violation.cleared_at]
    for invariant in INVARIANTS:
        OPEN.labels(invariant.id).set(live.count(invariant.id))


def _tell(ctx: Context, violation: Violation, version_before: int) -> None:
    if violation.version == version_before:
        return
    facts = facts_of(violation)
    event = ViolationCleared(violation=facts) if violation.cleared_at else ViolationOpened(violation=facts)
    log.warning("violation", id=violation.id, invariant=violation.invariant, machine=violation.name,
                theirs=violation.theirs, cleared=violation.cleared_at is not None)  # fmt: skip
    ctx.emit(event, entity_id=violation.id, entity_version=violation.version, site=violation.site)


def facts_of(violation: Violation) -> ViolationFacts:
    """What others may know of a violation that was opened."""
    assert violation.opened_at is not None
    rule = violation.rule
    return ViolationFacts(
        id=violation.id,
        invariant=violation.invariant,
        severity=rule.severity,
        site=violation.site,
        subject=violation.subject,
        name=violation.name,
        ours=violation.ours,
        theirs=violation.theirs,
        repair=rule.repair.value,
        first_seen_at=violation.first_seen_at,
        opened_at=violation.opened_at,
        cleared_at=violation.cleared_at,
        repaired_by=violation.repaired_by,
        repair_operation_id=violation.repair_operation_id,
        version=violation.version,
    )


async def node_gone(ctx: Context, seen: NodeGone) -> None:
    """A site lists a node no more."""
    assert ctx.cause is not None
    await violation_store.node_gone(ctx.conn, ctx.cause.site, seen)


# -- answering --------------------------------------------------------------------------------------

_v = violation_store.violation_table
_open = (
    select(_v, case((_v.c.cleared_at.is_(None), "OPEN"), else_="CLEARED").label("state"))
    .where(_v.c.opened_at.is_not(None))
    .subquery("violations")
)


def _body(row: Mapping[str, Any]) -> dict[str, Any]:
    violation = violation_store.violation_of(row)
    rule = violation.rule
    return {
        **json_data(facts_of(violation)),
        "state": "CLEARED" if violation.cleared_at else "OPEN",
        "last_seen_at": violation.last_seen_at.isoformat(),
        "title": rule.title,
        "explanation": rule.explanation,
        "systems": [system.value for system in rule.systems],
        "does": REPAIR_WORDS[rule.repair],
        "command": f"slipway drift repair {violation.id}",
    }


VIOLATIONS = Listing(
    table=_open,
    key=_open.c.id,
    row=_body,
    filters={
        "state": _open.c.state,
        "invariant": _open.c.invariant,
        "severity": _open.c.severity,
        "site": _open.c.site,
        "subject": _open.c.subject,
    },
    sorts={"opened_at": _open.c.opened_at, "severity": _open.c.severity, "name": _open.c.name},
    default_sort="-opened_at",
    search=(_open.c.name, _open.c.subject, _open.c.theirs),
)


async def list_violations(conn: AsyncConnection, call: Call) -> Answer:
    """Those that are open, unless a state is asked for."""
    asked = call if call.params.get("state") else call.model_copy(update={"params": {**call.params, "state": "OPEN"}})
    return await list_page(conn, VIOLATIONS, asked)


async def get_violation(conn: AsyncConnection, call: Call) -> Answer:
    wanted = str(call.params.get("id", ""))
    row = (await conn.execute(select(_open).where(_open.c.id == wanted))).mappings().first()
    return Answer(body=_body(dict(row))) if row else not_found("violation", wanted)


async def list_invariants(conn: AsyncConnection, call: Call) -> Answer:
    """Every invariant with how its last look went: judged, not known and why, open; by site."""
    table = violation_store.state_table
    rows = (await conn.execute(select(table).order_by(table.c.site))).all()
    counted = (await conn.execute(select(_open.c.invariant, _open.c.site).where(_open.c.state == "OPEN"))).all()
    longest = await violation_store.longest(conn)
    items = []
    for rule in INVARIANTS:
        sites = [
            {
                "site": row.site,
                "judged": row.judged,
                "unknown": row.unknown,
                "why_unknown": row.why,
                "open": sum(1 for one in counted if (one.invariant, one.site) == (rule.id, row.site)),
                "grace_seconds": grace_of(rule, longest[rule.id, row.site]).total_seconds(),
                "checked_at": row.checked_at.isoformat(),
            }
            for row in rows
            if row.invariant == rule.id
        ]
        items.append(
            {
                "id": rule.id,
                "title": rule.title,
                "severity": rule.severity.value,
                "systems": [system.value for system in rule.systems],
                "explanation": rule.explanation,
                "repair": rule.repair.value,
                "does": REPAIR_WORDS[rule.repair],
                "grace_seconds": rule.grace.total_seconds(),
                "sites": sites,
            }
        )
    return Answer(body={"items": items, "next_cursor": None})


# -- repairing --------------------------------------------------------------------------------------


class _Repair(BaseModel):
    id: str
    dry_run: bool = False


async def repair_violation(ctx: Context, call: Call) -> Answer:
    """Start the violation's repair; with `dry_run` do it and take it back, so that a refusal shows as it would."""
    wanted = parse(_Repair, call.params)
    if isinstance(wanted, Answer):
        return wanted
    violation = await violation_store.lock(ctx.conn, wanted.id)
    if violation is None or violation.opened_at is None:
        return not_found("violation", wanted.id)
    if violation.cleared_at is not None:
        since = violation.cleared_at.isoformat(timespec="seconds")
        words = f"{violation.name}: it holds again since {since}."
        return problem(409, "violation.cleared", words, "There is nothing to repair.")
    if wanted.dry_run:
        return await _tried(ctx, violation)
    return await _repaired(ctx, violation)


async def _tried(ctx: Context, violation: Violation) -> Answer:
    outgoing = len(ctx.outgoing)
    async with ctx.conn.begin_nested() as savepoint:
        answer = await _repaired(ctx, violation)
        await savepoint.rollback()
    del ctx.outgoing[outgoing:]
    if answer.status >= 400:
        return answer
    body = {**answer.body, "operation_id": None, "dry_run": True} if isinstance(answer.body, dict) else answer.body
    return Answer(status=200, body=body)


async def _repaired(ctx: Context, violation: Violation) -> Answer:
    machine = await store.lock(ctx.conn, violation.subject)
    operation, decision = await repairs.repair(ctx, violation, machine)
    if isinstance(decision, Refusal):
        cause = decision.reply.problem
        assert cause is not None
        return problem(409, cause.code, cause.message, cause.next_step, details=cause.details)
    await violation_store.set_repaired(ctx.conn, violation.id, ctx.actor, operation)
    body = {"violation": violation.id, "name": violation.name, **repairs.words(violation), "operation_id": operation}
    location = f"/operations/{operation}" if operation else None
    return Answer(status=202 if operation else 200, body=body, location=location)


QUERIES: QueryHandlers = {
    "list_violations": list_violations,
    "get_violation": get_violation,
    "list_invariants": list_invariants,
}
CALLS: CallHandlers = {"repair_violation": repair_violation}
OBSERVATIONS: ObservationHandlers = {NodeGone: node_gone}
PERIODIC = (Periodic("check_invariants", EVERY_SECONDS, check),)
