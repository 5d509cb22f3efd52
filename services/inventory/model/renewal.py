"""From found to fit: enrolment, wiping, validation, and how each of them fails.

The only way to AVAILABLE is `record_verdict`, and it asks for a wipe and a PASS of our own runs that are newer
than the last tenant, repair and hardware change. Every record is bound to the operation that asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from libs.contracts.inventory import Health, MachineState
from libs.contracts.replies import Problem
from libs.contracts.site import Inspection
from services.inventory.model.hardware import Mismatch
from services.inventory.model.machine import Change, Decision, Machine, cannot, proven, refusal, stale
from services.inventory.states import (
    BEGIN_SANITIZE,
    BEGIN_VALIDATION,
    ENROL,
    FAIL,
    MACHINE,
    PASS_VALIDATION,
    QUARANTINE,
    STEP_OF,
)

S = MachineState
FailTo = Literal["FAILED", "QUARANTINED"]

NEXT_STEP = {
    "enrol": "Repair what the reason names (or correct NetBox), then retry the machine.",
    "sanitize": "Look at the node's clean step in Ironic, then retry the machine.",
    "validate": "Look at the run's findings, repair the machine, then retry it.",
    "release": "Look at the machine's BMC and Ironic node: it must be off and undeployed. Then retry the machine.",
    "decommission": "Wipe and remove it by hand, then retry the machine.",
}


def enrol(machine: Machine, operation_id: str, now: datetime) -> Decision:
    """EXPECTED, FAILED or QUARANTINED → ENROLLING, when all that is needed to reach and to judge it is known."""
    no = cannot(machine, ENROL)
    if no is not None:
        return no
    if machine.claim_id is not None:
        return refusal("claimed", f"{machine.name} is still held by a claim", "Retry its release first.")
    if machine.holds:
        holds = "; ".join(f"{hold.owner}: {hold.reason}" for hold in machine.holds)
        return refusal("held", f"{machine.name} is on hold ({holds})", "Clear what the hold names, then enrol it.")
    missing = _missing(machine)
    if missing:
        return refusal(
            "incomplete",
            f"{machine.name} can't be enrolled: {'; '.join(missing)}",
            "Complete its record in NetBox, then enrol it.",
            missing=missing,
        )
    return (
        Change(machine)
        .moved(ENROL, now, operation_id=operation_id, last_verdict="", health=Health.UNKNOWN, pending_quarantine=None)
        .answer()
    )


def _missing(machine: Machine) -> list[str]:
    missing = []
    if machine.profile is None:
        missing.append(f"no profile lists its device type {machine.device_type or '(none)'}")
    if not machine.bmc_address:
        missing.append("it has no BMC address (out-of-band IP)")
    if not machine.serial:
        missing.append("it has no serial number")
    return missing


def record_inspection(
    machine: Machine,
    *,
    operation_id: str,
    inspection: Inspection,
    mismatches: Sequence[Mismatch],
    sanitise_run_id: str,
    now: datetime,
) -> Decision:
    """ENROLLING → SANITIZING when the hardware is what it should be, → FAILED(enrol) with every difference else."""
    if machine.operation_id != operation_id:
        return stale(machine, f"operation {operation_id} no longer runs on it")
    if machine.state is S.SANITIZING and machine.wanted_sanitise_run == sanitise_run_id:
        return Change(machine).answer()
    if machine.state is not S.ENROLLING:
        return stale(machine, f"it is {machine.state}, not ENROLLING")
    seen = Change(machine).quietly(inspection=inspection)
    if mismatches:
        problem = _hardware_problem(machine, mismatches)
        return seen.moved(FAIL, now, failed_step="enrol", reason=problem, operation_id=None).refuse(problem)
    return seen.moved(
        BEGIN_SANITIZE, now, inspected_at=now, wanted_sanitise_run=sanitise_run_id, wanted_validate_run=None
    ).answer()


def _hardware_problem(machine: Machine, mismatches: Sequence[Mismatch]) -> Problem:
    unknown = all(item.unknown for item in mismatches)
    return Problem(
        code="machine.hardware_unknown" if unknown else "machine.hardware_mismatch",
        message=f"{machine.name}: " + "; ".join(item.text() for item in mismatches),
        next_step=(
            "The BMC did not say enough to judge the machine: update or reset the BMC, then retry it."
            if unknown
            else f"{NEXT_STEP['enrol']}"
        ),
        details={"mismatches": [item.as_dict() for item in mismatches]},
    )


def begin_renewal(machine: Machine, *, operation_id: str, sanitise_run_id: str, now: datetime) -> Decision:
    """QUARANTINED, FAILED, … → SANITIZING: after a repair or a failed step it is wiped and validated again."""
    no = cannot(machine, BEGIN_SANITIZE)
    if no is not None:
        return no
    if machine.claim_id is not None:
        return refusal("claimed", f"{machine.name} is still held by a claim", "Retry its release first.")
    return (
        Change(machine)
        .moved(
            BEGIN_SANITIZE,
            now,
            operation_id=operation_id,
            proof_after=now,
            wanted_sanitise_run=sanitise_run_id,
            pending_quarantine=None,
            last_verdict="",
            health=Health.UNKNOWN,
        )
        .answer()
    )


def record_sanitised(
    machine: Machine,
    *,
    operation_id: str,
    run_id: str,
    evidence: dict[str, object],
    validate_run_id: str,
    now: datetime,
) -> Decision:
    """SANITIZING → VALIDATING (or QUARANTINED when that was wanted) on the evidence of the run that we asked for."""
    if machine.operation_id != operation_id:
        return stale(machine, f"operation {operation_id} no longer runs on it")
    if machine.sanitise_run_id == run_id and machine.state in (S.VALIDATING, S.QUARANTINED):
        return Change(machine).answer(quarantined=machine.state is S.QUARANTINED)
    if machine.state is not S.SANITIZING:
        return stale(machine, f"it is {machine.state}, not SANITIZING")
    if run_id != machine.wanted_sanitise_run:
        return refusal("foreign_run", f"{machine.name}: run {run_id} is not the wipe that was asked for")
    lacking = _evidence_lacks(evidence)
    if lacking:
        return refusal(
            "no_evidence", f"{machine.name}: the wipe {run_id} {lacking}", NEXT_STEP["sanitize"], evidence=evidence
        )
    wiped = Change(machine).quietly(wanted_sanitise_run=None).sanitised(now, run_id, evidence)
    if machine.pending_quarantine is not None:
        return _to_quarantine(wiped, machine.pending_quarantine, now).answer(quarantined=True)
    return wiped.moved(BEGIN_VALIDATION, now, wanted_validate_run=validate_run_id).answer(quarantined=False)


def _evidence_lacks(evidence: dict[str, object]) -> str:
    if not evidence.get("steps"):
        return "names no clean step that ran"
    if evidence.get("power_state") != "off":
        return f"did not leave it off (power: {evidence.get('power_state') or 'not known'})"
    return ""


def _to_quarantine(change: Change, reason: Problem, now: datetime) -> Change:
    return change.moved(QUARANTINE, now, reason=reason, pending_quarantine=None, operation_id=None)


def begin_revalidation(machine: Machine, *, operation_id: str, validate_run_id: str, now: datetime) -> Decision:
    """AVAILABLE → VALIDATING: the last PASS is older than policy allows."""
    if machine.state is not S.AVAILABLE:
        return cannot(machine, BEGIN_VALIDATION) or stale(machine, f"it is {machine.state}, not AVAILABLE")
    return (
        Change(machine)
        .moved(BEGIN_VALIDATION, now, operation_id=operation_id, wanted_validate_run=validate_run_id)
        .answer()
    )


def record_verdict(
    machine: Machine,
    *,
    operation_id: str,
    run_id: str,
    verdict: str,
    problem: Problem | None,
    fail_to: FailTo,
    next_run_id: str | None,
    now: datetime,
) -> Decision:
    """VALIDATING → AVAILABLE on PASS only. FAIL → FAILED(validate) or QUARANTINED.

    Anything else is inconclusive: with a `next_run_id` the suite is run once more, without one it has failed.
    """
    if machine.operation_id != operation_id or machine.state is not S.VALIDATING:
        if machine.validate_run_id == run_id and verdict == "PASS" and machine.state is S.AVAILABLE:
            return Change(machine).answer(verdict=verdict, again=False)
        return stale(machine, f"run {run_id} of operation {operation_id} is no longer waited for")
    if run_id != machine.wanted_validate_run:
        return refusal("foreign_run", f"{machine.name}: run {run_id} is not the validation that was asked for")
    if verdict == "PASS":
        return _passed(machine, run_id, now)
    if verdict == "FAIL":
        return _failed_validation(machine, problem, fail_to, now)
    if next_run_id is not None:
        return Change(machine).quietly(wanted_validate_run=next_run_id).answer(verdict="INCONCLUSIVE", again=True)
    reason = _reason("validation_inconclusive", f"{machine.name}: it could not be judged", problem)
    failed = Change(machine).quietly(last_verdict="INCONCLUSIVE")
    return _to_failed(failed, reason, now).refuse(reason)


def _passed(machine: Machine, run_id: str, now: datetime) -> Decision:
    change = Change(machine).quietly(wanted_validate_run=None, last_verdict="PASS", health=Health.HEALTHY)
    change = change.validated(now, run_id, "out_of_band")
    if machine.pending_quarantine is not None:
        return _to_quarantine(change, machine.pending_quarantine, now).answer(verdict="PASS", again=False)
    if not proven(change.machine):
        reason = Problem(
            code="machine.not_sanitised",
            message=f"{machine.name} passed, but was not sanitised since its last tenant, repair or hardware change",
            next_step=NEXT_STEP["sanitize"],
        )
        return _to_failed(change, reason, now).refuse(reason)
    return change.moved(PASS_VALIDATION, now, operation_id=None).answer(verdict="PASS", again=False)


def _failed_validation(machine: Machine, problem: Problem | None, fail_to: FailTo, now: datetime) -> Decision:
    reason = _reason("validation_failed", f"{machine.name} failed its validation", problem)
    change = Change(machine).quietly(wanted_validate_run=None, last_verdict="FAIL", health=Health.FAILED)
    if fail_to == "QUARANTINED" or machine.pending_quarantine is not None:
        return _to_quarantine(change, machine.pending_quarantine or reason, now).refuse(reason)
    return _to_failed(change, reason, now).refuse(reason)


def _reason(code: str, message: str, cause: Problem | None) -> Problem:
    return Problem(
        code=f"machine.{code}",
        message=f"{message}: {cause.message}" if cause else message,
        next_step=(cause.next_step if cause else "") or NEXT_STEP["validate"],
        details=cause.details if cause else {},
    )


def _to_failed(change: Change, reason: Problem, now: datetime) -> Change:
    step = STEP_OF[change.machine.state]
    return change.moved(FAIL, now, failed_step=step, reason=reason, operation_id=None)


def mark_failed(machine: Machine, *, operation_id: str | None, problem: Problem, now: datetime) -> Decision:
    """Whatever step it is in → FAILED(step) with the reason. No change when the operation no longer runs on it.

    `operation_id` None: whoever runs on it (a time limit is up).
    """
    ours = operation_id is None or machine.operation_id == operation_id
    if not ours or not MACHINE.allows(machine.state, FAIL):
        return Change(machine).answer(state=machine.state.value)
    named = problem.model_copy(update={"next_step": problem.next_step or NEXT_STEP[STEP_OF[machine.state]]})
    return _to_failed(Change(machine), named, now).answer(state=S.FAILED.value)
