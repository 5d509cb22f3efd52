"""What an action for many machines does to each: the same decisions as for one, tried for a preview. Pure."""

from __future__ import annotations

from datetime import datetime

from libs.contracts.inventory import BulkAction, Hold, MachineState
from libs.contracts.replies import Problem
from services.inventory.model import holds
from services.inventory.model.machine import Change, Decision, Machine, Refusal, refusal


def decide(machine: Machine, action: BulkAction, *, actor: str, reason: str, hold_id: str, now: datetime) -> Decision:
    """What `action` does to the machine; a Refusal says why it would be left alone. Twice is once."""
    if machine.state is MachineState.RETIRED:
        return refusal("retired", f"{machine.name} is RETIRED", "It is gone; nothing is done with it.")
    match action:
        case BulkAction.HOLD:
            return holds.add_hold(machine, Hold(id=hold_id, owner=actor, reason=reason, since=now))
        case BulkAction.UNHOLD:
            return _let_go(machine, actor, now)
        case BulkAction.QUARANTINE:
            next_step = "When it is repaired, release the quarantine: it is wiped and validated again."
            problem = Problem(code="machine.quarantined", message=reason, next_step=next_step, details={"owner": actor})
            return holds.quarantine(machine, problem, now)


def _let_go(machine: Machine, actor: str, now: datetime) -> Decision:
    """Only one's own holds: somebody else's have a reason that a list does not show."""
    own = [hold.id for hold in machine.holds if hold.owner == actor]
    change = Change(machine)
    for hold_id in own:
        decision = holds.remove_hold(change.machine, hold_id, actor, now)
        if isinstance(decision, Refusal):
            return decision
        change = Change(decision.machine, (*change.events, *decision.events))
    if not own:
        return refusal("no_hold_of_yours", f"{machine.name} has no hold of {actor}", "Remove a hold by its id.")
    return change.answer(removed=len(own))


def left_alone(decision: Decision) -> str:
    """Why a machine would be left alone, "" when it would change."""
    if isinstance(decision, Refusal):
        problem = decision.reply.problem
        return problem.message if problem else "it can't be done now"
    return "" if decision.events else "nothing would change"
