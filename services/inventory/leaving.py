"""Decommissioning from outside: the call, and the commands of its process."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from libs.bus.context import CommandHandlers, Context
from libs.contracts.calls import Answer, Call
from libs.contracts.inventory import RecordWiped, RetireMachine
from libs.contracts.replies import Reply, ok
from libs.runtime.calls import CallHandlers
from libs.runtime.params import parse
from services.inventory import departures, store
from services.inventory.calls import one_machine, started
from services.inventory.handlers import no_such_machine
from services.inventory.model import leaving
from services.inventory.model.leaving import Wish
from services.inventory.model.machine import Change, Decision, Machine


class _Leaving(BaseModel):
    machine_id: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500)]
    wipe: Annotated[bool, Field(strict=True)] = True
    dry_run: Annotated[bool, Field(strict=True)] = False


async def decommission(ctx: Context, call: Call) -> Answer:
    """Have a machine leave for good; with `dry_run` only say what would be done and what is in its way."""
    wanted = parse(_Leaving, call.params)
    if isinstance(wanted, Answer):
        return wanted
    machine = await one_machine(ctx, wanted.machine_id, call.if_match)
    if isinstance(machine, Answer):
        return machine
    wish = Wish(wanted.reason, call.actor, wanted.wipe)
    if wanted.dry_run:
        return Answer(body={"dry_run": True, "operation_id": "", **leaving.plan(machine, wish)})
    return started(await departures.start(ctx, machine, wish))


async def record_wiped(ctx: Context, command: RecordWiped) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = leaving.record_wiped(
        machine,
        operation_id=command.operation_id,
        run_id=command.run_id,
        evidence=command.evidence,
        now=ctx.now,
    )
    return await _settle(ctx, machine, decision)


async def retire(ctx: Context, command: RetireMachine) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    return await _settle(ctx, machine, leaving.retire(machine, operation_id=command.operation_id, now=ctx.now))


async def _settle(ctx: Context, machine: Machine, decision: Decision) -> Reply:
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
    return decision.reply or ok(version=machine.version)


CALLS: CallHandlers = {"decommission_machine": decommission}
COMMANDS: CommandHandlers = {RecordWiped: record_wiped, RetireMachine: retire}
