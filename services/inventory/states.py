"""The life of a machine as a table: 15 states, what moves a machine between them, and how long each may last.

The table is the truth of the lifecycle; docs draw it. It knows nothing of proofs, holds or claims: the
decisions in `model` add those on top and can only be stricter.
"""

from __future__ import annotations

from datetime import timedelta

from libs.contracts.inventory import MachineState as S
from libs.fsm import Limit, Repeat, Table, Transition

_MINUTE = 60
_HOUR = 60 * _MINUTE

ENROL = "enrol"
BEGIN_SANITIZE = "begin_sanitize"
BEGIN_VALIDATION = "begin_validation"
PASS_VALIDATION = "pass_validation"
ACCEPT = "accept"
BEGIN_PROVISIONING = "begin_provisioning"
ASSIGN = "assign"
RELEASE = "release"
QUARANTINE = "quarantine"
FAIL = "fail"
REMEDIATE = "remediate"
GIVE_TO_MAINTENANCE = "give_to_maintenance"
DECOMMISSION = "decommission"
RETIRE = "retire"

# A step that a machine is in → the name it has in FAILED(step).
STEP_OF = {
    S.ENROLLING: "enrol",
    S.SANITIZING: "sanitize",
    S.VALIDATING: "validate",
    S.RELEASING: "release",
    S.DECOMMISSIONING: "decommission",
}

MACHINE: Table[S] = Table(
    "machine",
    S,
    initial=(S.EXPECTED,),
    final=(S.RETIRED,),
    transitions=(
        Transition(ENROL, (S.EXPECTED, S.FAILED, S.QUARANTINED), S.ENROLLING, "an operator enrols it"),
        Transition(
            BEGIN_SANITIZE,
            (S.ENROLLING, S.RELEASING, S.QUARANTINED, S.FAILED, S.REMEDIATING, S.MAINTENANCE),
            S.SANITIZING,
            "it is known and off: wipe it",
        ),
        Transition(BEGIN_VALIDATION, (S.SANITIZING, S.AVAILABLE), S.VALIDATING, "wiped, or its proof is too old"),
        Transition(PASS_VALIDATION, (S.VALIDATING,), S.AVAILABLE, "sanitised and PASS, both fresh"),
        Transition(ACCEPT, (S.AVAILABLE,), S.CLAIMED, "accepted for a confirmed claim"),
        Transition(BEGIN_PROVISIONING, (S.CLAIMED,), S.PROVISIONING, "the first command that touches it"),
        Transition(ASSIGN, (S.PROVISIONING,), S.ASSIGNED, "a node of a running cluster"),
        Transition(
            RELEASE, (S.CLAIMED, S.PROVISIONING, S.ASSIGNED, S.FAILED), S.RELEASING, "given back: detach and power off"
        ),
        Transition(
            QUARANTINE,
            (S.EXPECTED, S.SANITIZING, S.VALIDATING, S.AVAILABLE, S.REMEDIATING, S.MAINTENANCE, S.FAILED),
            S.QUARANTINED,
            "findings, drift, a failed deploy or an operator's word",
        ),
        Transition(
            FAIL,
            (S.ENROLLING, S.SANITIZING, S.VALIDATING, S.RELEASING, S.DECOMMISSIONING),
            S.FAILED,
            "the step ran out of its limit or its retries",
        ),
        Transition(REMEDIATE, (S.QUARANTINED,), S.REMEDIATING, "a rung of the ladder is tried"),
        Transition(
            GIVE_TO_MAINTENANCE, (S.QUARANTINED, S.REMEDIATING, S.FAILED), S.MAINTENANCE, "a human or vendor takes it"
        ),
        Transition(
            DECOMMISSION,
            (S.EXPECTED, S.AVAILABLE, S.QUARANTINED, S.MAINTENANCE, S.FAILED),
            S.DECOMMISSIONING,
            "it leaves for good",
        ),
        Transition(RETIRE, (S.DECOMMISSIONING,), S.RETIRED, "wiped and removed"),
    ),
    limits={
        S.ENROLLING: Limit(2 * _HOUR, FAIL),
        S.SANITIZING: Limit(8 * _HOUR, FAIL),
        # The out-of-band suite takes minutes; twice it, and an inconclusive first run, fit with room to spare.
        S.VALIDATING: Limit(1 * _HOUR, FAIL),
        S.CLAIMED: Limit(30 * _MINUTE, RELEASE),
        # Ends in QUARANTINED, but only after it was taken off the tenant's hands: there is one way back.
        S.PROVISIONING: Limit(90 * _MINUTE, RELEASE),
        S.RELEASING: Limit(30 * _MINUTE, FAIL),
        S.REMEDIATING: Limit(4 * _HOUR, QUARANTINE),
        S.DECOMMISSIONING: Limit(24 * _HOUR, FAIL),
    },
    human={
        S.QUARANTINED: "read the reason, repair it, then release the quarantine: it is wiped and validated again",
        S.MAINTENANCE: "the ticket's owner ends it; past its due date it is an incident",
        S.FAILED: "read the reason and its next step, then retry",
    },
    restful=(S.EXPECTED, S.AVAILABLE, S.ASSIGNED),
    repeats=(
        Repeat(ACCEPT, (S.CLAIMED, S.PROVISIONING, S.ASSIGNED), "for the claim that has it: answered again"),
        Repeat(BEGIN_PROVISIONING, (S.PROVISIONING, S.ASSIGNED), "for the claim that has it: done already"),
        Repeat(ASSIGN, (S.ASSIGNED,), "for the claim that has it: done already"),
        Repeat(RELEASE, (S.RELEASING,), "the return under way is followed"),
        Repeat(RELEASE, (S.SANITIZING, S.AVAILABLE), "the claim no longer has it: nothing to give back"),
        Repeat(BEGIN_SANITIZE, (S.SANITIZING,), "the same run: recorded already"),
        Repeat(BEGIN_VALIDATION, (S.VALIDATING,), "the same wipe: recorded already"),
        Repeat(PASS_VALIDATION, (S.AVAILABLE,), "the same run: recorded already"),
        Repeat(QUARANTINE, (S.QUARANTINED,), "it is out of the pool; its first reason stays"),
        Repeat(QUARANTINE, (S.ENROLLING,), "kept, and done when its step ends"),
        Repeat(FAIL, (S.AVAILABLE, S.QUARANTINED, S.FAILED), "an undo that comes late: nothing is failed twice"),
    ),
)
# In which time people should have done their task; later is shown as over its limit.
HUMAN_WITHIN = {
    S.FAILED: timedelta(days=1),
    S.QUARANTINED: timedelta(days=3),
    S.MAINTENANCE: timedelta(days=14),
}
