"""What the repair of a violation starts: ordinary decisions and processes of inventory, none of its own.

Shared by the call and its dry run, which does the same and takes it back.
"""

from __future__ import annotations

from typing import Any

from libs.bus.context import Context
from libs.contracts.ids import derived_uuid
from libs.contracts.inventory import Hold, MachineState
from libs.contracts.replies import Problem
from services.inventory import processes, store
from services.inventory.model import holds, renewal
from services.inventory.model.invariants import REPAIR_WORDS, Repair
from services.inventory.model.machine import Change, Decision, Machine, refusal
from services.inventory.model.violations import Violation
from services.inventory.sagas_site import node_data

S = MachineState
# The fields by which reconciling an observation holds a machine (model/observed.py): a repair answers them.
_HELD_FIELDS = ("power_state", "provision_state", "instance_uuid")
_OUT_OF_POOL = (S.QUARANTINED, S.FAILED, S.MAINTENANCE)


async def repair(ctx: Context, violation: Violation, machine: Machine | None) -> tuple[str | None, Decision | None]:
    """(operation id, decision) of what was begun; a Refusal says why nothing was. The machine comes locked."""
    match violation.rule.repair:
        case Repair.REMOVE_NODE:
            return await _remove_node(ctx, violation), None
        case Repair.READ_SOURCE:
            await store.source_state(ctx.conn)
            await store.set_source_state(ctx.conn, read_wanted=True)
            return None, None
        case _ if machine is None:
            return None, refusal(
                "not_found", f"{violation.name} is no machine of ours", "Look at the node at its site."
            )
        case Repair.RESERVE:
            return await reserve(ctx, machine), None
        case Repair.HOLD:
            return None, await _settled(ctx, machine, holds.add_hold(machine, _hold(ctx, violation)))
        case Repair.POWER_ON:
            return await power(ctx, machine, "on", f"repair of {violation.id}"), None
        case Repair.RETRY:
            return _begun(await _retry(ctx, violation, machine))
        case Repair.RENEW:
            return _begun(await _renew(ctx, violation, machine, enrol=False))
        case Repair.ENROL:
            return _begun(await _renew(ctx, violation, machine, enrol=True))
    raise AssertionError(f"no repair is written for {REPAIR_WORDS[violation.rule.repair]}")


def _begun(decision: Decision) -> tuple[str | None, Decision]:
    return (decision.machine.operation_id if isinstance(decision, Change) else None), decision


async def _settled(ctx: Context, machine: Machine, decision: Decision) -> Decision:
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
    return decision


def _hold(ctx: Context, violation: Violation) -> Hold:
    reason = f"{violation.rule.title}: {violation.theirs} instead of {violation.ours}"
    return Hold(id=derived_uuid("hold", violation.id), owner=ctx.actor, reason=reason, since=ctx.now)


def _reason(ctx: Context, violation: Violation) -> Problem:
    return Problem(
        code=f"invariant.{violation.invariant}",
        message=f"{violation.name}: {violation.theirs} instead of {violation.ours}",
        next_step="Its repair is under way; when that fails, look at what it names and retry the machine.",
        details={"violation": violation.id, "owner": ctx.actor},
    )


async def power(ctx: Context, machine: Machine, wanted: str, reason: str) -> str:
    """Start the process that switches the machine, for `reason`; returns its operation."""
    data = node_data(
        machine.id,
        machine.name,
        machine.site,
        claim_id=machine.claim_id,
        version=machine.version,
        power=wanted,
        reason=reason,
    )
    return await ctx.start_saga(
        "power_machine", data, target_kind="machine", target_id=machine.id, site=machine.site, tenant=machine.tenant
    )


async def reserve(ctx: Context, machine: Machine) -> str:
    """Have the site hold the machine in Placement, or let go when it may be claimed; returns the operation."""
    data = node_data(machine.id, machine.name, machine.site, version=machine.version, held=not machine.eligible)
    return await ctx.start_saga(
        "reserve_provider", data, target_kind="provider", target_id=machine.id, site=machine.site
    )


async def _remove_node(ctx: Context, violation: Violation) -> str:
    data = node_data(violation.subject, violation.name, violation.site)
    return await ctx.start_saga(
        "remove_stray_node", data, target_kind="node", target_id=violation.subject, site=violation.site
    )


async def _retry(ctx: Context, violation: Violation, machine: Machine) -> Decision:
    """The step that nobody works on has failed; whoever waits for its old operation is told that it is given up."""
    before = machine.operation_id
    failed = renewal.mark_failed(machine, operation_id=None, problem=_reason(ctx, violation), now=ctx.now)
    await _settled(ctx, machine, failed)
    if before is not None:
        await ctx.cancel_saga(before, f"given up by the repair of {violation.id}")
    after = failed.machine if isinstance(failed, Change) else machine
    return await processes.retry(ctx, after)


async def _renew(ctx: Context, violation: Violation, machine: Machine, *, enrol: bool) -> Decision:
    if machine.claim_id is not None:
        return refusal(
            "claimed",
            f"{machine.name} is held by claim {machine.claim_id}",
            "Nothing is taken from a tenant: delete or repair its cluster; the machine is wiped on its return.",
        )
    quarantined = machine
    if machine.state not in _OUT_OF_POOL:
        decision = await _settled(ctx, machine, holds.quarantine(machine, _reason(ctx, violation), ctx.now))
        if not isinstance(decision, Change):
            return decision
        quarantined = decision.machine
    quarantined = await _answered(ctx, quarantined, forget_inspection=enrol)
    if enrol:
        return await processes.enrol(ctx, quarantined)
    return await processes.renew(ctx, quarantined, free=True)


async def _answered(ctx: Context, machine: Machine, *, forget_inspection: bool) -> Machine:
    """Take back the holds that reconciling set for this very contradiction: a person has now decided about it."""
    mine = {holds.automatic_hold(machine.id, holds.RECONCILE, name, "", ctx.now).id for name in _HELD_FIELDS}
    kept = tuple(hold for hold in machine.holds if hold.id not in mine)
    change = Change(machine).noted(holds=kept)
    if forget_inspection:
        change = change.quietly(inspected_at=None)
    await store.save(ctx, machine, change)
    return change.machine


def words(violation: Violation) -> dict[str, Any]:
    """What the repair does, for people."""
    return {"repair": violation.rule.repair.value, "does": REPAIR_WORDS[violation.rule.repair]}
