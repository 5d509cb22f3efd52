"""How a machine leaves for good: what must be so, what is done, and when it is RETIRED.

DECOMMISSIONING ends in RETIRED only after the wipe that we asked for was evidenced, or after a person said that there
is nothing to wipe, and after its node was removed at the site. A claim is never broken for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from libs.contracts.inventory import MachineState
from libs.contracts.replies import Problem
from services.inventory.model.holds import AUTOMATION
from services.inventory.model.machine import Change, Decision, Machine, cannot, refusal, stale
from services.inventory.states import DECOMMISSION, RETIRE

S = MachineState


@dataclass(frozen=True)
class Wish:
    """Why, who asked, and whether its disks are wiped. Without: somebody vouches that there is nothing on them."""

    reason: str
    by: str
    wipe: bool = True


def objection(machine: Machine) -> Decision | None:
    """Why it can't leave now, None when it can."""
    if machine.claim_id is not None:
        return refusal(
            "claimed",
            f"{machine.name} is held by claim {machine.claim_id}",
            "Nothing is taken from a tenant: delete or shrink the cluster, then decommission the machine.",
        )
    no = cannot(machine, DECOMMISSION)
    if no is not None:
        return no
    kept = [hold for hold in machine.holds if not hold.owner.startswith(AUTOMATION)]
    if kept:
        words = "; ".join(f"{hold.owner}: {hold.reason}" for hold in kept)
        return refusal("held", f"{machine.name} is on hold ({words})", "Remove the hold, then decommission it.")
    return None


def has_node(machine: Machine) -> bool:
    """Whether a site may know it: everything but a machine whose enrolment never began."""
    return machine.state is not S.EXPECTED or machine.inspected_at is not None


def begin(machine: Machine, wish: Wish, *, operation_id: str, run_id: str, now: datetime) -> Decision:
    """→ DECOMMISSIONING, with the reason and who asked."""
    no = objection(machine)
    if no is not None:
        return no
    wiped = wish.wipe and has_node(machine)
    reason = Problem(
        code="machine.decommissioned",
        message=wish.reason,
        details={"owner": wish.by, "wipe": wiped},
    )
    return (
        Change(machine)
        .moved(
            DECOMMISSION,
            now,
            reason=reason,
            operation_id=operation_id,
            wanted_sanitise_run=run_id if wiped else None,
            wanted_validate_run=None,
            pending_quarantine=None,
        )
        .answer()
    )


def record_wiped(
    machine: Machine, *, operation_id: str, run_id: str, evidence: dict[str, object], now: datetime
) -> Decision:
    """Keep the evidence of the wipe that we asked for."""
    if machine.operation_id != operation_id or machine.state is not S.DECOMMISSIONING:
        return stale(machine, f"operation {operation_id} no longer runs on it")
    if machine.sanitise_run_id == run_id:
        return Change(machine).answer()
    if run_id != machine.wanted_sanitise_run:
        return refusal("foreign_run", f"{machine.name}: run {run_id} is not the wipe that was asked for")
    if not evidence.get("steps"):
        return refusal(
            "no_evidence",
            f"{machine.name}: the wipe {run_id} names no clean step that ran",
            "Look at the node's clean step in Ironic, then decommission the machine again.",
            evidence=evidence,
        )
    return Change(machine).quietly(wanted_sanitise_run=None).sanitised(now, run_id, evidence).answer()


def retire(machine: Machine, *, operation_id: str, now: datetime) -> Decision:
    """DECOMMISSIONING → RETIRED, once nothing of it is awaited any more."""
    if machine.state is S.RETIRED:
        return Change(machine).answer()
    if machine.operation_id != operation_id or machine.state is not S.DECOMMISSIONING:
        return stale(machine, f"operation {operation_id} no longer runs on it")
    if machine.wanted_sanitise_run is not None:
        return refusal("not_wiped", f"{machine.name} was not wiped yet", "Decommission the machine again.")
    return (
        Change(machine)
        .moved(RETIRE, now, reason=machine.reason, operation_id=None, holds=(), drifts=(), proof_after=now)
        .answer()
    )


def plan(machine: Machine, wish: Wish) -> dict[str, Any]:
    """What decommissioning would do, step by step, and what is in its way; nothing is done.

    Shape: machine_id, machine_name, state, possible, problem {code, message, next_step} | None, steps [{step, done,
    why}].
    """
    no = objection(machine)
    problem = no.reply.problem if no is not None and no.reply is not None else None
    node, bare = has_node(machine), "it was never enrolled: no site knows it"
    wipe = "" if wish.wipe else f"{wish.by} vouches that there is nothing to wipe"
    steps = (
        ("wipe all disks, with evidence", node and wish.wipe, wipe or ("" if node else bare)),
        ("remove its node and ports from Ironic", node, "" if node else bare),
        ("set it RETIRED; its history stays", True, ""),
        ("set its status in NetBox to offline", machine.netbox_id is not None, ""),
    )
    return {
        "machine_id": machine.id,
        "machine_name": machine.name,
        "state": machine.state.value,
        "possible": problem is None,
        "problem": problem.model_dump(mode="json") if problem else None,
        "steps": [{"step": step, "done": done, "why": why} for step, done, why in steps],
    }
