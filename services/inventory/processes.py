"""Start inventory's processes: move the machine and begin its saga in one transaction.

Shared by command handlers, calls and periodic tasks, so that there is one way to enrol, return or renew.
"""

from __future__ import annotations

from typing import Any

from libs.bus.context import Context
from libs.contracts.envelope import Envelope
from libs.contracts.ids import new_operation_id
from libs.contracts.inventory import ProfileFacts
from libs.contracts.replies import Problem
from services.inventory import store
from services.inventory.model import claims, renewal
from services.inventory.model.hardware import Expectation
from services.inventory.model.machine import Change, Decision, Machine
from services.inventory.sagas import machine_data
from services.inventory.settings import InventorySettings

SETTINGS = InventorySettings()


def expectation(machine: Machine, profile: ProfileFacts | None, model: str) -> Expectation:
    """What the machine must have, for the comparison with what was inspected."""
    return Expectation(
        serial=machine.serial,
        device_type=machine.device_type,
        model=model,
        gpu_model=machine.gpu_model,
        gpu_count=machine.gpu_count,
        cpu_sockets=profile.cpu_sockets if profile else None,
        memory_gib=profile.memory_gib if profile else None,
        nic_macs=machine.nic_macs,
        bom=profile.bom if profile else None,
    )


async def expected_of(ctx: Context, machine: Machine) -> Expectation:
    profile = await store.profile(ctx.conn, machine.profile) if machine.profile else None
    return expectation(machine, profile, await store.device_model(ctx.conn, machine.device_type))


def _for_validation(expected: Expectation) -> dict[str, Any]:
    """What the suites compare with; a value that is not promised is left out, so nobody judges it."""
    known = {
        "serial": expected.serial,
        "gpu_model": expected.gpu_model,
        "gpu_count": expected.gpu_count,
        "cpu_sockets": expected.cpu_sockets,
        "memory_gib": expected.memory_gib,
    }
    return {name: value for name, value in known.items() if value not in (None, "")}


async def _start(
    ctx: Context, kind: str, machine: Machine, operation_id: str, answers: Envelope | None, **data: Any
) -> str:
    expected = _for_validation(await expected_of(ctx, machine))
    reference = SETTINGS.bmc_credentials_ref.format(name=machine.name)
    base = machine_data(machine, operation_id, credentials_ref=reference, expected=expected)
    return await ctx.start_saga(
        kind,
        {**base, **data},
        target_kind="machine",
        target_id=machine.id,
        site=machine.site,
        answers=answers,
        operation_id=operation_id,
    )


async def enrol(ctx: Context, machine: Machine, *, answers: Envelope | None = None) -> Decision:
    """EXPECTED, FAILED or QUARANTINED → ENROLLING and the saga that brings it to AVAILABLE."""
    operation_id = new_operation_id(ctx.service)
    decision = renewal.enrol(machine, operation_id, ctx.now)
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
        await _start(ctx, "enrol_machine", decision.machine, operation_id, answers, fail_to="FAILED")
    return decision


async def give_back(
    ctx: Context,
    machine: Machine,
    claim_id: str,
    *,
    quarantine: Problem | None = None,
    answers: Envelope | None = None,
) -> Decision:
    """→ RELEASING and the saga that wipes and validates it again. Nothing when the claim does not hold it."""
    operation_id = new_operation_id(ctx.service)
    decision = claims.begin_return(machine, claim_id, quarantine=quarantine, operation_id=operation_id, now=ctx.now)
    if isinstance(decision, Change) and decision.events:
        await store.save(ctx, machine, decision)
        await _start(ctx, "return_machine", decision.machine, operation_id, answers, fail_to="QUARANTINED")
    return decision


async def renew(ctx: Context, machine: Machine, *, free: bool = False) -> Decision:
    """Wipe and validate again what was quarantined or failed; inspect it first when its hardware is not known.

    `free`: take off first whatever is deployed on it, whosever it is; only a person may say so.
    """
    if machine.inspected_at is None:
        return await enrol(ctx, machine)
    operation_id = new_operation_id(ctx.service)
    data = machine_data(machine, operation_id, credentials_ref="", expected={})
    decision = renewal.begin_renewal(
        machine, operation_id=operation_id, sanitise_run_id=data["sanitise_run_id"], now=ctx.now
    )
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
        kind = "reclaim_machine" if free else "renew_machine"
        await _start(ctx, kind, decision.machine, operation_id, None, fail_to="QUARANTINED")
    return decision


async def revalidate(ctx: Context, machine: Machine) -> Decision:
    """AVAILABLE → VALIDATING and the saga that judges it again."""
    operation_id = new_operation_id(ctx.service)
    data = machine_data(machine, operation_id, credentials_ref="", expected={})
    decision = renewal.begin_revalidation(
        machine, operation_id=operation_id, validate_run_id=data["validate_run_ids"][0], now=ctx.now
    )
    if isinstance(decision, Change):
        await store.save(ctx, machine, decision)
        await _start(ctx, "revalidate_machine", decision.machine, operation_id, None, fail_to="QUARANTINED")
    return decision


async def retry(ctx: Context, machine: Machine) -> Decision:
    """Take a FAILED machine up again at the step that failed."""
    if machine.failed_step == "release" and machine.claim_id is not None:
        return await give_back(ctx, machine, machine.claim_id)
    if machine.failed_step == "enrol":
        return await enrol(ctx, machine)
    return await renew(ctx, machine)
