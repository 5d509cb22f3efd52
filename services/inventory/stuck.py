"""Answers which machines are stuck and why, and gives a step up that nobody works on any more."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints
from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.tables import bus_tables
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.envelope import now_utc
from libs.contracts.replies import Problem
from libs.runtime.calls import CallHandlers, QueryHandlers
from libs.runtime.params import parse
from services.inventory import store
from services.inventory.model import renewal
from services.inventory.model.machine import Change
from services.inventory.model.stuck import Stuck, stuck
from services.inventory.queries import ambiguous, machine_body
from services.inventory.states import FAIL, MACHINE, STEP_OF

# A list for people: when more is stuck than this, the first thousand say why.
MOST = 1000
_m = store.machine_table.c
_saga = bus_tables("inventory").saga.c


async def list_stuck(conn: AsyncConnection, call: Call) -> Answer:
    """What is over its limit, waits for a person or is of no use, the worst first. `site`, `over`: filters."""
    sites = call.params.get("site") or []
    rows = await _candidates(conn, sites if isinstance(sites, list) else [sites])
    now = now_utc()
    found = [one for facts, phase in rows if (one := stuck(store.machine_of(facts), phase, now)) is not None]
    if call.params.get("over"):
        found = [one for one in found if one.over]
    found.sort(key=lambda one: (not one.over, one.since))
    return Answer(body={"items": [_body(one) for one in found], "next_cursor": None, "as_of": now.isoformat()})


async def _candidates(conn: AsyncConnection, sites: list[str]) -> list[tuple[dict[str, Any], str]]:
    """(facts, phase of its operation) of every machine that may be stuck."""
    phase = func.coalesce(_saga.phase, "finished")
    unattended = and_(_m.state.in_([state.value for state in STEP_OF]), phase.in_(("finished", "parked")))
    waits = _m.state.in_([state.value for state in MACHINE.human])
    held = func.jsonb_array_length(_m.facts["holds"]) > 0
    useless = and_(_m.state == "AVAILABLE", ~_m.eligible)
    saga = bus_tables("inventory").saga
    statement = (
        select(_m.facts, phase)
        .select_from(store.machine_table.outerjoin(saga, _saga.id == _m.operation_id))
        .where(or_(unattended, waits, held, useless, _m.deadline_at < func.now()))
        .order_by(_m.state_since)
        .limit(MOST)
    )
    if sites:
        statement = statement.where(_m.site.in_(sites))
    return [(facts, "" if phase == "finished" else phase) for facts, phase in await conn.execute(statement)]


def _body(one: Stuck) -> dict[str, Any]:
    machine = one.machine
    return {
        "id": machine.id,
        "name": machine.name,
        "site": machine.site,
        "rack": machine.rack,
        "state": machine.state.value,
        "failed_step": machine.failed_step,
        "operation_id": machine.operation_id,
        "why": one.why,
        "turn": one.turn,
        "since": one.since.isoformat(),
        "limit_seconds": one.limit_seconds,
        "over": one.over,
        "next_step": one.next_step,
        "command": one.command,
    }


class _GivenUp(BaseModel):
    machine_id: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500)]


async def give_up_step(ctx: Context, call: Call) -> Answer:
    """The step that the machine is in has failed, because a person says so: FAILED(step), and its operation ends."""
    wanted = parse(_GivenUp, call.params)
    if isinstance(wanted, Answer):
        return wanted
    found = await store.find(ctx.conn, wanted.machine_id)
    if len(found) > 1:
        return ambiguous(wanted.machine_id, found)
    machine = await store.lock(ctx.conn, found[0].id) if found else None
    if machine is None:
        return not_found("machine", wanted.machine_id)
    if not MACHINE.allows(machine.state, FAIL):
        words = f"{machine.name} is {machine.state}, which is no step of a process of ours."
        return problem(409, "machine.no_step", words, "See what it can do: slipway machines stuck, or show.")
    reason = Problem(code="machine.given_up", message=wanted.reason, details={"owner": call.actor})
    decision = renewal.mark_failed(machine, operation_id=None, problem=reason, now=ctx.now)
    assert isinstance(decision, Change)
    await store.save(ctx, machine, decision)
    if machine.operation_id is not None:
        await ctx.cancel_saga(machine.operation_id, wanted.reason)
    after = decision.machine
    return Answer(body=machine_body(after), etag=f'"{after.version}"')


QUERIES: QueryHandlers = {"list_stuck": list_stuck}
CALLS: CallHandlers = {"give_up_step": give_up_step}
