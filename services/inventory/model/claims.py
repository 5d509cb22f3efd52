"""A machine in a tenant's hands: accepted, touched, assigned, given back. Only for the claim that has it."""

from __future__ import annotations

from datetime import datetime

from libs.contracts.inventory import AcceptMachine, Health, MachineState
from libs.contracts.replies import Problem
from services.inventory.model.machine import SICK, Change, Decision, Machine, cannot, objections, refusal, stale
from services.inventory.states import ACCEPT, ASSIGN, BEGIN_PROVISIONING, BEGIN_SANITIZE, RELEASE

S = MachineState


def accept(machine: Machine, command: AcceptMachine, *, found_health: Health, now: datetime) -> Decision:
    """AVAILABLE → CLAIMED when nothing that matters changed since `expected_version` and nothing objects.

    `found_health` is what the findings say now, which may be newer than the machine's own health. A repeat for the
    claim that has it is answered again.
    """
    if machine.claim_id == command.claim_id and machine.state in (S.CLAIMED, S.PROVISIONING, S.ASSIGNED):
        return Change(machine).answer(**_offer(machine))
    against = list(objections(machine))
    if found_health in SICK and machine.health not in SICK:
        against.append(f"its health is {found_health}")
    if against:
        return refusal(
            "not_eligible",
            f"{machine.name} can't be claimed: {'; '.join(against)}",
            "Choose another machine.",
            reasons=against,
            version=machine.version,
        )
    if not machine.offer_version <= command.expected_version <= machine.version:
        return refusal(
            "changed",
            f"{machine.name} changed: it is at version {machine.version}, not {command.expected_version}",
            "Look at it again and choose anew.",
            version=machine.version,
        )
    change = Change(machine).moved(
        ACCEPT,
        now,
        claim_id=command.claim_id,
        reservation_id=command.reservation_id,
        cluster_id=command.cluster_id,
        tenant=command.tenant,
        returned_claim_id=None,
        proof_after=now,
    )
    return change.answer(**_offer(machine))


def _offer(machine: Machine) -> dict[str, object]:
    return {
        "name": machine.name,
        "site": machine.site,
        "profile": machine.profile,
        "gpu_model": machine.gpu_model,
        "gpu_count": machine.gpu_count,
    }


def begin_provisioning(machine: Machine, claim_id: str, now: datetime) -> Decision:
    """CLAIMED → PROVISIONING."""
    return _for_claim(machine, claim_id, BEGIN_PROVISIONING, done=(S.PROVISIONING, S.ASSIGNED), now=now)


def assign(machine: Machine, claim_id: str, now: datetime) -> Decision:
    """PROVISIONING → ASSIGNED."""
    return _for_claim(machine, claim_id, ASSIGN, done=(S.ASSIGNED,), now=now)


def _for_claim(machine: Machine, claim_id: str, event: str, *, done: tuple[S, ...], now: datetime) -> Decision:
    if machine.claim_id != claim_id:
        return stale(machine, f"it is not held by claim {claim_id}")
    if machine.state in done:
        return Change(machine).answer()
    return cannot(machine, event) or Change(machine).moved(event, now).answer()


def is_returning(machine: Machine, claim_id: str) -> bool:
    """Whether the return for this claim is under way and the machine not yet known to be off."""
    return machine.claim_id == claim_id and machine.state is S.RELEASING


def begin_return(
    machine: Machine, claim_id: str, *, quarantine: Problem | None, operation_id: str, now: datetime
) -> Decision:
    """CLAIMED, PROVISIONING, ASSIGNED or FAILED(release) → RELEASING. The claim stays until it was observed off."""
    if machine.claim_id != claim_id:
        return Change(machine).answer(held=False)
    return cannot(machine, RELEASE) or Change(machine).moved(
        RELEASE,
        now,
        operation_id=operation_id,
        pending_quarantine=quarantine or machine.pending_quarantine,
        proof_after=now,
    ).answer(held=True, begun=True)


def record_released(
    machine: Machine, *, operation_id: str, power_state: str, sanitise_run_id: str, now: datetime
) -> Decision:
    """RELEASING → SANITIZING: rule 3, only when its power was observed off. The claim lets go here."""
    if machine.operation_id != operation_id:
        return stale(machine, f"operation {operation_id} no longer runs on it")
    if machine.state is S.SANITIZING and machine.wanted_sanitise_run == sanitise_run_id:
        return Change(machine).answer()
    if machine.state is not S.RELEASING:
        return stale(machine, f"it is {machine.state}, not RELEASING")
    if power_state != "off":
        return refusal(
            "not_observed_off",
            f"{machine.name} was not observed off: its power is {power_state or 'not known'}",
            "Look at its BMC; the machine stays with its claim until the BMC says off.",
        )
    return (
        Change(machine)
        .moved(
            BEGIN_SANITIZE,
            now,
            claim_id=None,
            reservation_id=None,
            cluster_id=None,
            tenant="-",
            returned_claim_id=machine.claim_id,
            proof_after=now,
            power_state="off",
            wanted_sanitise_run=sanitise_run_id,
            last_verdict="",
            health=Health.UNKNOWN,
        )
        .answer()
    )
