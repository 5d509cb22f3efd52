"""What a site sees of a machine, and what of it contradicts the lifecycle.

Observations never move a machine. One that contradicts what we hold is drift: it is told, and the machine is
put on hold for a human, because whatever runs on it is not known.
"""

from __future__ import annotations

from datetime import timedelta

from libs.contracts.inventory import MachineState
from libs.contracts.site import NodeObserved
from services.inventory.model.holds import RECONCILE, automatic_hold
from services.inventory.model.machine import Change, Machine

S = MachineState
# Ironic's own picture of power lags behind an order of ours by seconds; drift lasts longer than that.
SETTLE = timedelta(seconds=10)
# Off, and to stay off: nobody has them yet, and nothing of ours boots them.
_OFF_STATES = (S.AVAILABLE, S.CLAIMED)
_UNDEPLOYED = (S.EXPECTED, S.AVAILABLE, S.QUARANTINED, S.CLAIMED, S.VALIDATING)
DEPLOYED = "active"


def observe(machine: Machine, seen: NodeObserved) -> Change:
    """Take what was seen, unless something newer was seen before. An event only when something changed."""
    if machine.observed_at is not None and seen.observed_at <= machine.observed_at:
        return Change(machine)
    same = (
        machine.power_state == seen.power_state
        and machine.provision_state == seen.provision_state
        and machine.fault == seen.fault
    )
    if same:
        change = Change(machine).quietly(observed_at=seen.observed_at)
    else:
        change = Change(machine).noted(
            power_state=seen.power_state,
            provision_state=seen.provision_state,
            fault=seen.fault,
            observed_at=seen.observed_at,
        )
    return _drift(change, seen)


def _drift(change: Change, seen: NodeObserved) -> Change:
    machine = change.machine
    if seen.observed_at < machine.state_since + SETTLE:
        return change
    contradiction = _contradiction(machine, seen)
    if contradiction is None:
        return change
    field, ours, theirs, reason = contradiction
    hold = automatic_hold(machine.id, RECONCILE, field, reason, seen.observed_at)
    if machine.hold(hold.id) is not None:
        return change
    return change.noted(holds=(*machine.holds, hold)).drifted(field, ours, theirs, RECONCILE)


def _contradiction(machine: Machine, seen: NodeObserved) -> tuple[str, str, str, str] | None:
    """(field, ours, theirs, reason) of the first thing that can't be."""
    if machine.state in _OFF_STATES and seen.power_state == "on":
        return "power_state", "off", "on", f"it was powered on while {machine.state}; nothing of ours did that"
    if machine.state in _UNDEPLOYED and seen.provision_state == DEPLOYED:
        return "provision_state", "not deployed", DEPLOYED, f"Ironic says deployed while it is {machine.state}"
    claimed = machine.state in (S.PROVISIONING, S.ASSIGNED)
    if claimed and seen.instance_uuid not in (None, "", machine.claim_id):
        return (
            "instance_uuid",
            str(machine.claim_id),
            str(seen.instance_uuid),
            "Ironic has it deployed for another claim than ours",
        )
    return None
