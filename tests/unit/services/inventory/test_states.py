"""Every (state, event) pair is listed here or refused."""

from __future__ import annotations

import pytest

from libs.contracts.inventory import MachineState as S
from libs.fsm import IllegalTransition
from services.inventory.states import MACHINE, STEP_OF

LISTED: dict[tuple[S, str], S] = {
    (S.EXPECTED, "enrol"): S.ENROLLING,
    (S.EXPECTED, "quarantine"): S.QUARANTINED,
    (S.EXPECTED, "decommission"): S.DECOMMISSIONING,
    (S.ENROLLING, "begin_sanitize"): S.SANITIZING,
    (S.ENROLLING, "fail"): S.FAILED,
    (S.SANITIZING, "begin_validation"): S.VALIDATING,
    (S.SANITIZING, "quarantine"): S.QUARANTINED,
    (S.SANITIZING, "fail"): S.FAILED,
    (S.VALIDATING, "pass_validation"): S.AVAILABLE,
    (S.VALIDATING, "quarantine"): S.QUARANTINED,
    (S.VALIDATING, "fail"): S.FAILED,
    (S.AVAILABLE, "accept"): S.CLAIMED,
    (S.AVAILABLE, "begin_validation"): S.VALIDATING,
    (S.AVAILABLE, "quarantine"): S.QUARANTINED,
    (S.AVAILABLE, "decommission"): S.DECOMMISSIONING,
    (S.CLAIMED, "begin_provisioning"): S.PROVISIONING,
    (S.CLAIMED, "release"): S.RELEASING,
    (S.PROVISIONING, "assign"): S.ASSIGNED,
    (S.PROVISIONING, "release"): S.RELEASING,
    (S.ASSIGNED, "release"): S.RELEASING,
    (S.RELEASING, "begin_sanitize"): S.SANITIZING,
    (S.RELEASING, "fail"): S.FAILED,
    (S.QUARANTINED, "enrol"): S.ENROLLING,
    (S.QUARANTINED, "begin_sanitize"): S.SANITIZING,
    (S.QUARANTINED, "remediate"): S.REMEDIATING,
    (S.QUARANTINED, "give_to_maintenance"): S.MAINTENANCE,
    (S.QUARANTINED, "decommission"): S.DECOMMISSIONING,
    (S.REMEDIATING, "begin_sanitize"): S.SANITIZING,
    (S.REMEDIATING, "quarantine"): S.QUARANTINED,
    (S.REMEDIATING, "give_to_maintenance"): S.MAINTENANCE,
    (S.MAINTENANCE, "begin_sanitize"): S.SANITIZING,
    (S.MAINTENANCE, "quarantine"): S.QUARANTINED,
    (S.MAINTENANCE, "decommission"): S.DECOMMISSIONING,
    (S.FAILED, "enrol"): S.ENROLLING,
    (S.FAILED, "begin_sanitize"): S.SANITIZING,
    (S.FAILED, "release"): S.RELEASING,
    (S.FAILED, "quarantine"): S.QUARANTINED,
    (S.FAILED, "give_to_maintenance"): S.MAINTENANCE,
    (S.FAILED, "decommission"): S.DECOMMISSIONING,
    (S.DECOMMISSIONING, "retire"): S.RETIRED,
    (S.DECOMMISSIONING, "fail"): S.FAILED,
}
EVENTS = sorted({transition.event for transition in MACHINE.transitions})


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("event", EVENTS)
def test_every_state_and_event_pair_is_listed_or_refused(state: S, event: str) -> None:
    expected = LISTED.get((state, event))
    if expected is not None:
        assert MACHINE.target(state, event) is expected
        return
    with pytest.raises(IllegalTransition):
        MACHINE.target(state, event)


def test_only_a_passed_validation_leads_to_available() -> None:
    assert [t.event for t in MACHINE.transitions if t.target is S.AVAILABLE] == ["pass_validation"]


def test_every_state_that_can_fail_has_the_name_of_its_step() -> None:
    assert {state for state in S if MACHINE.allows(state, "fail")} == set(STEP_OF)


def test_every_state_that_may_not_rest_has_a_limit_or_a_human() -> None:
    waiting = set(S) - set(MACHINE.restful) - set(MACHINE.final)
    assert waiting == set(MACHINE.limits) | set(MACHINE.human)
