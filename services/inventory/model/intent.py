"""What people mean by a device's status in NetBox, and what of it can't be done now.

Level-based: the same status said twice asks for nothing twice. A machine that a claim has is never taken from it:
the wish waits as a hold, and is followed when the machine comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.contracts.inventory import MachineState
from services.inventory.model.holds import AUTOMATION
from services.inventory.model.machine import HELD_STATES, Machine
from services.inventory.states import STEP_OF

S = MachineState
LEAVING_STEP = STEP_OF[S.DECOMMISSIONING]
STAGED, ACTIVE, OFFLINE, FAILED = "staged", "active", "offline", "failed"
PLANNED, STORED, DECOMMISSIONING = "planned", "inventory", "decommissioning"
# What people mean to be used, or to be brought into use. Any other status, known or not, keeps a machine out.
USABLE = (STAGED, ACTIVE)
# Work that ends by itself: a wish waits for its end.
_BUSY = (S.ENROLLING, S.SANITIZING, S.VALIDATING, S.REMEDIATING)
_GONE = (S.DECOMMISSIONING, S.RETIRED)


@dataclass(frozen=True)
class Contradiction:
    """A status that can't be followed now: our state in words, and how the two agree again."""

    ours: str
    repair: str


def status_reason(machine: Machine, status: str) -> str:
    """Why the status keeps the machine from use; "" when it does not."""
    if status in USABLE or machine.state in _GONE:
        return ""
    if status == DECOMMISSIONING:
        return f"NetBox asks for its decommissioning{_when(machine)}"
    return f"its status in NetBox is {status or 'blank'}, which is not meant for use"


def _when(machine: Machine) -> str:
    if machine.claim_id is not None:
        return f"; it begins when claim {machine.claim_id} has given it back"
    if machine.state in _BUSY:
        return f"; it begins when it is no longer {machine.state}"
    if machine.failed_step == LEAVING_STEP:
        return "; that has failed: read the reason, then decommission it again"
    if _kept_by(machine):
        return f"; it begins when the hold of {', '.join(_kept_by(machine))} is removed"
    return ""


def _kept_by(machine: Machine) -> list[str]:
    """Whose word keeps it where it is: people's holds, which automation does not pass."""
    return sorted({hold.owner for hold in machine.holds if not hold.owner.startswith(AUTOMATION)})


def contradiction(machine: Machine, status: str) -> Contradiction | None:
    """What of `status` contradicts where the machine is in its life; None when it can be followed."""
    held = machine.claim_id is not None or machine.state in HELD_STATES
    match status:
        case "staged" | "active":
            return _leaving(machine)
        case "planned" | "inventory" if machine.state is not S.EXPECTED and machine.state not in _GONE:
            words = f"it was enrolled and is {machine.state}"
            return Contradiction(words, "set its status to active, or to decommissioning to have it wiped and removed")
        case _ if held:
            words = f"it is {machine.state} for claim {machine.claim_id}"
            return Contradiction(
                words, "nothing is taken from a tenant: delete or shrink the cluster; it is followed on its return"
            )
        case _:
            return None


def _leaving(machine: Machine) -> Contradiction | None:
    if machine.state is S.RETIRED:
        return Contradiction(
            "it is RETIRED", "a retired machine does not come back: delete the device and add it to NetBox as a new one"
        )
    if machine.state is S.DECOMMISSIONING:
        return Contradiction(
            "it is DECOMMISSIONING",
            f"set the status back to decommissioning, or cancel operation {machine.operation_id} before it is wiped",
        )
    return None


def wants_decommission(machine: Machine) -> bool:
    """Whether NetBox asks for its end and that may begin now."""
    return (
        machine.netbox_status == DECOMMISSIONING
        and machine.claim_id is None
        and machine.state in (S.EXPECTED, S.AVAILABLE, S.QUARANTINED, S.MAINTENANCE, S.FAILED)
        # A step of it that failed is a human's to look at, not to be begun again and again.
        and machine.failed_step != LEAVING_STEP
        and not _kept_by(machine)
    )


def wants_quarantine(machine: Machine) -> bool:
    """Whether people said in NetBox that it is broken, and it is still in the pool."""
    return machine.netbox_status == FAILED and machine.state is S.AVAILABLE
