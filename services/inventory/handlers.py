"""Commands and observations: load, decide, save, answer. Each locks its machine, so decisions do not race."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from libs.bus.context import CommandHandlers, Context, ObservationHandlers
from libs.contracts.inventory import (
    AcceptMachine,
    AssignMachine,
    BeginProvisioning,
    CheckReleased,
    EnrolMachine,
    MarkMachineFailed,
    QuarantineMachine,
    RecordInspection,
    RecordReleased,
    RecordSanitised,
    RecordVerdict,
    ReturnMachine,
    SiteFacts,
    SiteUpdated,
)
from libs.contracts.replies import Reply, failed, ok, refused
from libs.contracts.site import NodeObserved, SatelliteHeartbeat
from services.inventory import processes, store, violation_store
from services.inventory.model import claims, holds, renewal
from services.inventory.model.bom import differences
from services.inventory.model.machine import Change, Decision, Machine
from services.inventory.model.observed import observe

# Heartbeats come every few seconds; that a satellite lives is worth an event only now and then.
HEARTBEAT_EVENT_EVERY = timedelta(seconds=30)


def no_such_machine(machine_id: str) -> Reply:
    return refused("machine.not_found", f"there is no machine {machine_id!r}", "List the machines: GET /machines.")


async def _settle(ctx: Context, machine: Machine, decision: Decision) -> Reply:
    """Save what was decided and give its answer."""
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
    return decision.reply or ok(version=machine.version)


async def enrol_machine(ctx: Context, command: EnrolMachine) -> Reply | None:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = await processes.enrol(ctx, machine, answers=ctx.cause)
    return None if isinstance(decision, Change) else decision.reply


async def accept_machine(ctx: Context, command: AcceptMachine) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    found = await store.found_health(ctx.conn, machine.id)
    return await _settle(ctx, machine, claims.accept(machine, command, found_health=found, now=ctx.now))


async def begin_provisioning(ctx: Context, command: BeginProvisioning) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    return await _settle(ctx, machine, claims.begin_provisioning(machine, command.claim_id, ctx.now))


async def assign_machine(ctx: Context, command: AssignMachine) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    return await _settle(ctx, machine, claims.assign(machine, command.claim_id, ctx.now))


async def return_machine(ctx: Context, command: ReturnMachine) -> Reply | None:
    """Answered at once when the claim has it not, or when the return has only to begin; else when it is off."""
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return ok(held=False)
    wait = command.answer_when == "released"
    if claims.is_returning(machine, command.claim_id):
        if wait:
            await _follow_return(ctx, machine, command.claim_id)
        return None if wait else ok(held=True, begun=True, version=machine.version)
    decision = await processes.give_back(
        ctx, machine, command.claim_id, quarantine=command.quarantine, answers=ctx.cause if wait else None
    )
    begun = isinstance(decision, Change) and bool(decision.events)
    return None if wait and begun else decision.reply


async def _follow_return(ctx: Context, machine: Machine, claim_id: str) -> None:
    data = {"machine_id": machine.id, "claim_id": claim_id}
    await ctx.start_saga(
        "follow_return", data, target_kind="machine", target_id=machine.id, site=machine.site, answers=ctx.cause
    )


async def check_released(ctx: Context, command: CheckReleased) -> Reply:
    machine = await store.load(ctx.conn, command.machine_id)
    if machine is None or machine.claim_id != command.claim_id:
        return ok(held=False)
    return failed("machine.not_released_yet", f"{machine.name} is {machine.state}", "Ask again.")


async def quarantine_machine(ctx: Context, command: QuarantineMachine) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    reason = command.reason.model_copy(update={"details": {**command.reason.details, "owner": command.owner}})
    return await _settle(ctx, machine, holds.quarantine(machine, reason, ctx.now))


async def record_inspection(ctx: Context, command: RecordInspection) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = renewal.record_inspection(
        machine,
        operation_id=command.operation_id,
        inspection=command.inspection,
        mismatches=differences(await processes.expected_of(ctx, machine), command.inspection),
        sanitise_run_id=command.sanitise_run_id,
        now=ctx.now,
    )
    return await _settle(ctx, machine, decision)


async def record_released(ctx: Context, command: RecordReleased) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = claims.record_released(
        machine,
        operation_id=command.operation_id,
        power_state=command.power_state,
        sanitise_run_id=command.sanitise_run_id,
        now=ctx.now,
    )
    return await _settle(ctx, machine, decision)


async def record_sanitised(ctx: Context, command: RecordSanitised) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = renewal.record_sanitised(
        machine,
        operation_id=command.operation_id,
        run_id=command.run_id,
        evidence=command.evidence,
        validate_run_id=command.validate_run_id,
        now=ctx.now,
    )
    return await _settle(ctx, machine, decision)


async def record_verdict(ctx: Context, command: RecordVerdict) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return no_such_machine(command.machine_id)
    decision = renewal.record_verdict(
        machine,
        operation_id=command.operation_id,
        run_id=command.run_id,
        verdict=command.verdict,
        problem=command.problem,
        fail_to=command.fail_to,
        next_run_id=command.next_run_id,
        now=ctx.now,
    )
    return await _settle(ctx, machine, decision)


async def mark_machine_failed(ctx: Context, command: MarkMachineFailed) -> Reply:
    machine = await store.lock(ctx.conn, command.machine_id)
    if machine is None:
        return ok()
    decision = renewal.mark_failed(machine, operation_id=command.operation_id, problem=command.problem, now=ctx.now)
    return await _settle(ctx, machine, decision)


async def node_observed(ctx: Context, seen: NodeObserved) -> None:
    """A site saw a node. One that we have no machine for is not ours to act on; it is kept to be compared."""
    machine = await store.lock(ctx.conn, seen.machine_id)
    if machine is not None:
        await store.save(ctx, machine, observe(machine, seen))
    assert ctx.cause is not None
    await violation_store.node_observed(ctx.conn, ctx.cause.site, seen)


async def satellite_heartbeat(ctx: Context, beat: SatelliteHeartbeat) -> None:
    await violation_store.heard(ctx.conn, beat)
    table = store.site_table
    row = (await ctx.conn.execute(select(table).where(table.c.slug == beat.site).with_for_update())).mappings().first()
    if row is None:
        return
    seen = row["satellite_seen_at"]
    if seen is not None and beat.at < seen + HEARTBEAT_EVENT_EVERY:
        return
    changed = {**row, "satellite_seen_at": beat.at, "version": row["version"] + 1}
    await store.put_row(ctx.conn, table, "slug", changed)
    facts = SiteFacts.model_validate(changed)
    ctx.emit(SiteUpdated(site=facts), entity_id=facts.slug, entity_version=facts.version, site=facts.slug)


COMMANDS: CommandHandlers = {
    EnrolMachine: enrol_machine,
    AcceptMachine: accept_machine,
    BeginProvisioning: begin_provisioning,
    AssignMachine: assign_machine,
    ReturnMachine: return_machine,
    CheckReleased: check_released,
    QuarantineMachine: quarantine_machine,
    RecordInspection: record_inspection,
    RecordReleased: record_released,
    RecordSanitised: record_sanitised,
    RecordVerdict: record_verdict,
    MarkMachineFailed: mark_machine_failed,
}
OBSERVATIONS: ObservationHandlers = {NodeObserved: node_observed, SatelliteHeartbeat: satellite_heartbeat}
