"""Holds, quarantine and health: what keeps a machine from use, who may say so and who may take it back.

Rule 4: a hold has an owner, and automation never clears one that it did not set itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from libs.contracts.ids import derived_uuid
from libs.contracts.inventory import Health, Hold, MachineState
from libs.contracts.replies import Problem
from services.inventory.model.machine import Change, Decision, Machine, cannot, refusal
from services.inventory.model.ownership import IDENTITY
from services.inventory.states import QUARANTINE

S = MachineState
AUTOMATION = "system:"
RECONCILE = "system:reconcile"
NETBOX = "system:netbox"
IDENTITY_CHANGED = "identity-changed"
# Work is under way on it: a quarantine waits for the end of the step instead of tearing it away.
BUSY = (S.ENROLLING, S.SANITIZING, S.VALIDATING)
_FATAL = ("critical", "fatal", "fail", "failed", "error", "high")
# Verdicts speak of the machine as it was; findings of it as it is. Neither may hide the other.
_OF_VERDICT = {"PASS": Health.HEALTHY, "FAIL": Health.FAILED}


def automatic_hold(machine_id: str, owner: str, kind: str, reason: str, now: datetime) -> Hold:
    """A hold that automation sets for a reason of this `kind`; the same reason always has the same id."""
    return Hold(id=derived_uuid("hold", machine_id, owner, kind), owner=owner, reason=reason, since=now)


def add_hold(machine: Machine, hold: Hold) -> Decision:
    """Keep it from being claimed. It does not touch a machine that is in use."""
    if machine.hold(hold.id) is not None:
        return Change(machine).answer(hold_id=hold.id)
    return Change(machine).noted(holds=(*machine.holds, hold)).answer(hold_id=hold.id)


def remove_hold(machine: Machine, hold_id: str, by: str, now: datetime) -> Decision:
    """Take a hold back. Whoever removes an "identity changed" hold says that the new hardware is right."""
    hold = machine.hold(hold_id)
    if hold is None:
        return refusal("no_such_hold", f"{machine.name} has no hold {hold_id}", "List its holds: GET the machine.")
    if by.startswith(AUTOMATION) and hold.owner != by:
        return refusal("foreign_hold", f"the hold is {hold.owner}'s; {by} may not clear it", "Ask its owner.")
    rest = tuple(other for other in machine.holds if other.id != hold_id)
    change = Change(machine).noted(holds=rest)
    if hold_id == automatic_hold(machine.id, NETBOX, IDENTITY_CHANGED, "", now).id and not by.startswith(AUTOMATION):
        change = accept_new_hardware(change, now)
    return change.answer(hold_id=hold_id)


def accept_new_hardware(change: Change, now: datetime) -> Change:
    """Take the source's word for what it is; every proof was of the old hardware, so it must be enrolled again."""
    machine = change.machine
    drifts = tuple(drift for drift in machine.drifts if drift.field not in IDENTITY)
    change = change.noted(**machine.theirs, drifts=drifts).quietly(proof_after=now, inspected_at=None, inspection=None)
    if machine.state is not S.AVAILABLE:
        return change
    reason = Problem(
        code="machine.hardware_changed",
        message=f"{machine.name} is other hardware now (serial number {change.machine.serial})",
        next_step="Release the quarantine: it is inspected, wiped and validated again.",
    )
    return change.moved(QUARANTINE, now, reason=reason)


def quarantine(machine: Machine, reason: Problem, now: datetime) -> Decision:
    """Out of the pool with a reason. A machine that a claim has is given back by its claim instead."""
    if machine.state is S.QUARANTINED:
        return Change(machine).answer(state=machine.state.value)
    if machine.claim_id is not None:
        return refusal(
            "claimed",
            f"{machine.name} is held by claim {machine.claim_id}",
            "Return it with a quarantine reason, or add a hold: it then stays out of the pool after its return.",
        )
    if machine.state in BUSY:
        return Change(machine).quietly(pending_quarantine=reason).answer(state=machine.state.value, pending=True)
    return cannot(machine, QUARANTINE) or Change(machine).moved(
        QUARANTINE, now, reason=reason, operation_id=None
    ).answer(state=S.QUARANTINED.value)


def health_of(severities: Iterable[str]) -> Health:
    """The worst of open findings. A severity that we do not know is no reason to think well of a machine."""
    found = [severity.lower() for severity in severities]
    if not found:
        return Health.UNKNOWN
    return Health.FAILED if any(severity in _FATAL for severity in found) else Health.SUSPECT


def combined_health(machine: Machine, found: Health) -> Health:
    """`found` from findings and the last verdict of ours together: the worse of both; UNKNOWN without proof."""
    judged = _OF_VERDICT.get(machine.last_verdict, Health.UNKNOWN)
    for bad in (Health.FAILED, Health.SUSPECT):
        if bad in (judged, found):
            return bad
    return judged


def apply_health(machine: Machine, found: Health) -> Change:
    """Health and lifecycle are two axes (rule 5): only `health` and `eligible` change."""
    return Change(machine).noted(health=combined_health(machine, found))
