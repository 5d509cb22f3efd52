"""Actions for many machines at once: chosen by name or by the filters of lists, previewed, then one operation.

Every machine is decided on by itself when its turn comes, so the preview promises nothing: what is no longer possible
is named in the operation's result, and the others go on.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from libs.bus.context import CommandHandlers, Context
from libs.contracts.calls import Answer, Call, problem
from libs.contracts.ids import new_id
from libs.contracts.inventory import ActOnMachine, BulkAction
from libs.contracts.replies import Reply, ok
from libs.runtime.calls import CallHandlers
from libs.runtime.pages import conditions_of
from libs.runtime.params import invalid, parse
from services.inventory import store
from services.inventory.calls import Enrolment, Name, Reason, named_machines
from services.inventory.handlers import no_such_machine
from services.inventory.model.bulk import decide, left_alone
from services.inventory.model.machine import Change, Machine
from services.inventory.queries import MACHINES

# Machines are decided on one by one in transactions of their own; more are better chosen in parts.
MOST = 2000
_FILTERS = ("state", "health", "site", "rack", "profile", "tenant", "held", "q")


class _Act(BaseModel):
    action: BulkAction
    reason: Reason
    machines: Annotated[list[Name], Field(max_length=MOST)] = []
    dry_run: Annotated[bool, Field(strict=True)] = False


async def act_on_machines(ctx: Context, call: Call) -> Answer:
    """Do one thing to all machines that are chosen; with `dry_run` only say to which, and why not to the others."""
    wanted = parse(_Act, call.params)
    if isinstance(wanted, Answer):
        return wanted
    chosen = await _chosen(ctx, call, wanted)
    if isinstance(chosen, Answer):
        return chosen
    why_not = {m.id: _why_not(m, wanted, call.actor, ctx) for m in chosen}
    ready = [{"id": m.id, "name": m.name} for m in chosen if not why_not[m.id]]
    skipped = [{"id": m.id, "name": m.name, "reason": why_not[m.id]} for m in chosen if why_not[m.id]]
    if wanted.dry_run:
        return Answer(body={"dry_run": True, "operation_id": "", "machines": ready, "skipped": skipped})
    if not ready:
        words = f"None of the {len(chosen)} machines would change."
        return problem(409, "bulk.nothing_to_do", words, "Look why with a dry run.", skipped=skipped)
    sites = {machine.site for machine in chosen}
    data = {
        "machines": ready,
        "names": {item["id"]: item["name"] for item in ready},
        "skipped": skipped,
        "action": wanted.action.value,
        "reason": wanted.reason,
        "hold_id": new_id("hold"),
        "asked_by": call.actor,
    }
    site = sites.pop() if len(sites) == 1 else "-"
    operation = await ctx.start_saga("act_on_machines", data, target_kind="bulk", target_id=new_id("blk"), site=site)
    body = {"operation_id": operation, "machines": ready, "skipped": skipped}
    return Answer(status=202, body=body, location=f"/operations/{operation}")


def _why_not(machine: Machine, wanted: _Act, actor: str, ctx: Context) -> str:
    return left_alone(decide(machine, wanted.action, actor=actor, reason=wanted.reason, hold_id="preview", now=ctx.now))


async def _chosen(ctx: Context, call: Call, wanted: _Act) -> list[Machine] | Answer:
    """By name, else by filters; never simply all."""
    filters: dict[str, Any] = {name: call.params[name] for name in _FILTERS if call.params.get(name)}
    if wanted.machines and filters:
        return invalid([{"field": "machines", "message": f"give names, or filters ({', '.join(filters)}), not both"}])
    if wanted.machines:
        named, errors = await named_machines(ctx, Enrolment(machines=wanted.machines))
        return invalid(errors) if errors else named
    if not filters:
        return invalid([{"field": "machines", "message": f"name machines, or give one of {', '.join(_FILTERS)}"}])
    conditions = conditions_of(MACHINES, call.model_copy(update={"params": filters}))
    if isinstance(conditions, Answer):
        return conditions
    found = await store.machines_where(ctx.conn, *conditions, limit=MOST + 1)
    if len(found) > MOST:
        return invalid([{"field": "machines", "message": f"more than {MOST} machines match; narrow the filters"}])
    return found


async def act_on_one(ctx: Context, command: ActOnMachine) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = decide(
        machine,
        command.action,
        actor=command.asked_by,
        reason=command.reason,
        hold_id=command.hold_id,
        now=ctx.now,
    )
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
    return decision.reply or ok(version=machine.version)


COMMANDS: CommandHandlers = {ActOnMachine: act_on_one}
CALLS: CallHandlers = {"act_on_machines": act_on_machines}
