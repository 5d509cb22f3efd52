"""Every (state, event) pair is listed here or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libs.contracts.inventory import MachineState as S
from libs.contracts.replies import Problem
from libs.fsm import IllegalTransition
from services.inventory.model import claims, holds, renewal
from services.inventory.model.machine import Decision, Machine, Refusal
from services.inventory.states import MACHINE, STEP_OF
from tests.unit.services.inventory import machines as m

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


PROBLEM = Problem(code="test.broken", message="broken")


def _fail(of: Machine) -> Decision:
    return renewal.mark_failed(of, operation_id=None, problem=PROBLEM, now=m.at(50))


def _quarantine(of: Machine) -> Decision:
    return holds.quarantine(of, PROBLEM, m.at(50))


def _return(of: Machine) -> Decision:
    return claims.begin_return(of, m.CLAIM, quarantine=None, operation_id="op-2", now=m.at(50))


def _released(of: Machine) -> Decision:
    return claims.record_released(
        of, operation_id=m.OPERATION, power_state="off", sanitise_run_id="wipe-2", now=m.at(50)
    )


def _failed() -> Machine:
    return m.changed(_fail(m.sanitizing()))


def _out_of_pool() -> Machine:
    return m.changed(_quarantine(m.available()))


# (event, state) → the machine and the decision that comes again.
REPEATED: dict[tuple[str, S], Callable[[], tuple[Machine, Decision]]] = {
    ("accept", S.CLAIMED): lambda: (o := m.claimed(), m.accepted(o, 50)),
    ("accept", S.PROVISIONING): lambda: (o := m.provisioning(), m.accepted(o, 50)),
    ("accept", S.ASSIGNED): lambda: (o := m.assigned(), m.accepted(o, 50)),
    ("begin_provisioning", S.PROVISIONING): lambda: (
        o := m.provisioning(),
        claims.begin_provisioning(o, m.CLAIM, m.at(50)),
    ),
    ("begin_provisioning", S.ASSIGNED): lambda: (o := m.assigned(), claims.begin_provisioning(o, m.CLAIM, m.at(50))),
    ("assign", S.ASSIGNED): lambda: (o := m.assigned(), claims.assign(o, m.CLAIM, m.at(50))),
    ("release", S.SANITIZING): lambda: (o := m.released(), _return(o)),
    ("release", S.AVAILABLE): lambda: (o := m.available(), _return(o)),
    ("begin_sanitize", S.SANITIZING): lambda: (o := m.released(), _released(o)),
    ("begin_validation", S.VALIDATING): lambda: (o := m.validating(), m.wiped(o, 50)),
    ("pass_validation", S.AVAILABLE): lambda: (o := m.available(), m.verdict(o, 50)),
    ("quarantine", S.QUARANTINED): lambda: (o := _out_of_pool(), _quarantine(o)),
    ("quarantine", S.ENROLLING): lambda: (o := m.enrolling(), _quarantine(o)),
    ("fail", S.AVAILABLE): lambda: (o := m.available(), _fail(o)),
    ("fail", S.QUARANTINED): lambda: (o := _out_of_pool(), _fail(o)),
    ("fail", S.FAILED): lambda: (o := _failed(), _fail(o)),
}
# The handler follows the return that is under way before it asks the model.
FOLLOWED = {("release", S.RELEASING)}


def test_every_repeat_of_the_table_is_tried_here() -> None:
    tabulated = {(repeat.event, state) for repeat in MACHINE.repeats for state in repeat.states}
    assert tabulated == REPEATED.keys() | FOLLOWED


@pytest.mark.parametrize(("event", "state"), sorted(REPEATED))
def test_what_is_repeated_or_late_is_answered_and_moves_nothing(event: str, state: S) -> None:
    before, decision = REPEATED[event, state]()
    after = m.changed(decision)
    assert before.state is after.state is state
    assert not isinstance(decision, Refusal) and decision.events == ()


def test_a_return_under_way_is_followed() -> None:
    assert claims.is_returning(m.releasing(), m.CLAIM)
