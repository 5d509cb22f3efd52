"""Rotation of BMC credentials from outside: the call that starts a batch, the commands of its processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from libs.bus.context import CommandHandlers, Context
from libs.contracts.calls import Answer, Call, problem
from libs.contracts.ids import new_id
from libs.contracts.inventory import BeginRotation, EndRotation, RotateCredentials
from libs.contracts.replies import Reply, ok
from libs.runtime.calls import CallHandlers
from libs.runtime.params import invalid, parse
from services.inventory import store
from services.inventory.calls import Enrolment, named_machines
from services.inventory.handlers import no_such_machine
from services.inventory.model import rotation
from services.inventory.model.machine import Change, Decision, Machine
from services.inventory.sagas_rotation import rotation_data


class _Rotation(Enrolment):
    dry_run: Annotated[bool, Field(strict=True)] = False


async def rotate_credentials(ctx: Context, call: Call) -> Answer:
    """Give the BMCs of the named machines new passwords, side by side; with `dry_run` only say which."""
    wanted = parse(_Rotation, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if not wanted.racks and not wanted.machines and wanted.site is None:
        return invalid([{"field": "machines", "message": "name at least one rack, machine or site"}])
    named, errors = await named_machines(ctx, wanted)
    if errors:
        return invalid(errors)
    why_not = {machine.id: rotation.rotation_objection(machine) for machine in named}
    machines = [{"id": m.id, "name": m.name} for m in named if not why_not[m.id]]
    skipped = [{"id": m.id, "name": m.name, "reason": why_not[m.id]} for m in named if why_not[m.id]]
    if wanted.dry_run:
        return Answer(body={"dry_run": True, "operation_id": "", "machines": machines, "skipped": skipped})
    if not machines:
        return problem(
            409,
            "rotation.nothing_to_do",
            f"Of the {len(named)} machines none has credentials that can be rotated now.",
            "Look why with a dry run.",
            skipped=skipped,
        )
    sites = {machine.site for machine in named}
    data = {"machines": machines, "names": {m.id: m.name for m in named}, "skipped": skipped}
    site = sites.pop() if len(sites) == 1 else "-"
    operation = await ctx.start_saga(
        "rotate_credentials", data, target_kind="rotation", target_id=new_id("rot"), site=site
    )
    body = {"operation_id": operation, "machines": machines, "skipped": skipped}
    return Answer(status=202, body=body, location=f"/operations/{operation}")


async def rotate_one(ctx: Context, command: RotateCredentials) -> Reply | None:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    data = rotation_data(machine.id, machine.name, machine.site)
    await ctx.start_saga(
        "rotate_machine_credentials",
        data,
        target_kind="machine",
        target_id=machine.id,
        site=machine.site,
        answers=ctx.cause,
    )
    return None


async def begin(ctx: Context, command: BeginRotation) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    return await _settled(ctx, machine, rotation.begin_rotation(machine, command.operation_id))


async def end(ctx: Context, command: EndRotation) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = rotation.end_rotation(machine, command.operation_id, command.rotated, ctx.now)
    return await _settled(ctx, machine, decision)


async def _settled(ctx: Context, machine: Machine, decision: Decision) -> Reply:
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
    return decision.reply or ok(version=machine.version)


COMMANDS: CommandHandlers = {RotateCredentials: rotate_one, BeginRotation: begin, EndRotation: end}
CALLS: CallHandlers = {"rotate_credentials": rotate_credentials}
