"""Which machines will not go on by themselves, or not in time: why, whose turn it is, and the command to run.

Every state has a time limit with an automatic step, a named human task with a time in which it should be done, or may
rest. What is listed here is over its limit, waits for a person, or rests without being of use.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from libs.contracts.inventory import MachineState
from services.inventory.model.machine import Machine, objections
from services.inventory.states import HUMAN_WITHIN, MACHINE, STEP_OF

S = MachineState
# The clock looks every few seconds; what is later than this was not ended although it should have been.
CLOCK_LAG = timedelta(minutes=1)
# A hold that is older was most likely forgotten.
HOLD_WITHIN = timedelta(days=7)


@dataclass(frozen=True)
class Stuck:
    """`over`: later than it should be. `turn`: who has to act, "clock", "person" or "operation"."""

    machine: Machine
    why: str
    turn: str
    since: datetime
    limit_seconds: float | None
    over: bool
    next_step: str
    command: str


def stuck(machine: Machine, operation_phase: str, now: datetime) -> Stuck | None:
    """Why the machine does not go on; None when it does, or may rest. `operation_phase`: "" when none runs."""
    if machine.state in STEP_OF and operation_phase in ("", "parked"):
        return _unattended(machine, operation_phase, now)
    if machine.deadline_at is not None and machine.deadline_at + CLOCK_LAG < now:
        return _late(machine, now)
    if machine.state in MACHINE.human:
        return _human(machine, now)
    if machine.holds and machine.state is not S.RETIRED:
        return _held(machine, now)
    if machine.state is S.AVAILABLE and not machine.eligible:
        return _unusable(machine)
    return None


def _unattended(machine: Machine, phase: str, now: datetime) -> Stuck:
    limit = MACHINE.limits[machine.state]
    over = machine.deadline_at is not None and machine.deadline_at < now
    if phase == "parked":
        return Stuck(
            machine,
            f"its operation {machine.operation_id} waits for a person",
            "person",
            machine.state_since,
            limit.seconds,
            over,
            "Read what the operation waits for; when that is done, let it go on.",
            f"slipway operations resume {machine.operation_id}",
        )
    return Stuck(
        machine,
        f"no operation works on it ({machine.operation_id or 'none'} has ended)",
        "clock",
        machine.state_since,
        limit.seconds,
        over,
        f"At {_at(machine.deadline_at)} the clock does: {limit.then}. Give the step up to go on at once.",
        f"slipway machines give-up {machine.name} --reason TEXT",
    )


def _late(machine: Machine, now: datetime) -> Stuck:
    limit = MACHINE.limits[machine.state]
    return Stuck(
        machine,
        f"it is {machine.state} since {_at(machine.state_since)}; the clock should have ended that ({limit.then})",
        "clock",
        machine.state_since,
        limit.seconds,
        over=True,
        next_step="Look whether the inventory service runs and what its log says of this machine.",
        command=f"slipway machines show {machine.name}",
    )


_COMMAND = {
    S.FAILED: "slipway machines retry {name}",
    S.QUARANTINED: "slipway machines release {name} --reason TEXT",
    S.MAINTENANCE: "slipway machines quarantine {name} --reason TEXT",
}


def _human(machine: Machine, now: datetime) -> Stuck:
    within = HUMAN_WITHIN[machine.state]
    reason = machine.reason
    step = f" at {machine.failed_step}" if machine.failed_step else ""
    return Stuck(
        machine,
        f"{machine.state}{step}: {reason.message if reason else 'no reason was given'}",
        "person",
        machine.state_since,
        within.total_seconds(),
        machine.state_since + within < now,
        (reason.next_step if reason else "") or MACHINE.human[machine.state],
        _COMMAND[machine.state].format(name=machine.name),
    )


def _held(machine: Machine, now: datetime) -> Stuck | None:
    oldest = min(machine.holds, key=lambda hold: hold.since)
    over = oldest.since + HOLD_WITHIN < now
    if not over and machine.state is not S.AVAILABLE:
        return None
    return Stuck(
        machine,
        f"held by {oldest.owner}: {oldest.reason}",
        "person",
        oldest.since,
        HOLD_WITHIN.total_seconds(),
        over,
        "Mend what the hold names, then remove it; nothing removes it by itself.",
        f"slipway machines unhold {machine.name} {oldest.id}",
    )


def _unusable(machine: Machine) -> Stuck:
    return Stuck(
        machine,
        f"AVAILABLE, but it can't be claimed: {'; '.join(objections(machine))}",
        "person",
        machine.state_since,
        None,
        over=False,
        next_step="Mend what is named; a quarantine and its release wipe and validate it again.",
        command=f"slipway machines quarantine {machine.name} --reason TEXT",
    )


def _at(moment: datetime | None) -> str:
    return moment.isoformat(timespec="minutes") if moment else "no set time"
