"""Whose turn it is to change a machine's BMC credentials, and when that last succeeded. Pure.

One operation at a time: `rotation_id` on the machine. What happens to the secret itself is the site's; inventory never
learns it. A rotation moves no machine and voids no offer: the password is no reason to choose or refuse one.
"""

from __future__ import annotations

from datetime import datetime

from libs.contracts.inventory import MachineState
from services.inventory.model.machine import Change, Decision, Machine, refusal

# Not before enrolment has given the site a node to look at, not while it is made or removed.
_NOT_IN = (MachineState.EXPECTED, MachineState.ENROLLING, MachineState.DECOMMISSIONING, MachineState.RETIRED)


def rotation_objection(machine: Machine) -> str:
    """Why its credentials can't be rotated now, "" when they can."""
    if machine.rotation_id is not None:
        return f"operation {machine.rotation_id} is rotating them already"
    if machine.inspected_at is None:
        return f"it is {machine.state} and was never enrolled"
    return f"it is {machine.state}" if machine.state in _NOT_IN else ""


def begin_rotation(machine: Machine, operation_id: str) -> Decision:
    """Take the turn; taking it again is nothing."""
    if machine.rotation_id == operation_id:
        return Change(machine).answer()
    objection = rotation_objection(machine)
    if objection:
        return refusal(
            "rotation_refused",
            f"{machine.name}: its BMC credentials can't be rotated: {objection}",
            "Look at the machine and its operations, then rotate again.",
        )
    return Change(machine).quietly(rotation_id=operation_id).answer()


def end_rotation(machine: Machine, operation_id: str, rotated: bool, now: datetime) -> Decision:
    """Give the turn back. An operation that has not got it changes nothing."""
    if machine.rotation_id != operation_id:
        return Change(machine).answer()
    change = Change(machine).quietly(rotation_id=None)
    return (change.noted(credentials_rotated_at=now) if rotated else change).answer()
