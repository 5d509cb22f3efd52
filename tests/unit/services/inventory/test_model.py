"""The rules of a machine's life, one behaviour each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libs.contracts.inventory import Health, Hold, MachineState, MachineStateChanged
from libs.contracts.replies import Outcome, Problem
from services.inventory.model import claims, holds, renewal
from services.inventory.model.hardware import Mismatch
from services.inventory.model.machine import Change, Machine, is_eligible
from tests.unit.services.inventory.machines import (
    CLAIM,
    OPERATION,
    START,
    accept_command,
    accepted,
    assigned,
    at,
    available,
    changed,
    claimed,
    code,
    enrolling,
    inspection,
    machine,
    outcome,
    provisioning,
    refused,
    released,
    releasing,
    sanitizing,
    validating,
    verdict,
    wiped,
)

S = MachineState
BROKEN = Problem(code="test.broken", message="it broke")
MAKERS: dict[S, Callable[[], Machine]] = {
    S.EXPECTED: machine,
    S.ENROLLING: enrolling,
    S.SANITIZING: sanitizing,
    S.VALIDATING: validating,
    S.AVAILABLE: available,
    S.CLAIMED: claimed,
    S.PROVISIONING: provisioning,
    S.ASSIGNED: assigned,
    S.RELEASING: releasing,
    S.FAILED: lambda: changed(renewal.mark_failed(sanitizing(), operation_id=OPERATION, problem=BROKEN, now=at(3))),
    S.QUARANTINED: lambda: changed(holds.quarantine(available(), BROKEN, at(5))),
}


def test_the_enrolment_path_ends_eligible() -> None:
    fit = available()
    assert fit.state is S.AVAILABLE and fit.eligible and fit.health is Health.HEALTHY and fit.operation_id is None


def test_each_event_of_a_change_raises_the_version_by_one_and_carries_the_facts_as_of_it() -> None:
    before = sanitizing()
    decision = wiped(before, 3)
    assert isinstance(decision, Change)
    versions = [event.machine.version for event in decision.events]
    assert versions == [before.version + 1, before.version + 2] and decision.machine.version == versions[-1]
    assert decision.events[0].machine.state is S.SANITIZING


@pytest.mark.parametrize("state", sorted(set(MAKERS) - {S.AVAILABLE}))
def test_only_an_available_machine_can_be_claimed(state: S) -> None:
    of = MAKERS[state]()
    decision = accepted(of, 20, claim_id="0c1a0000-0000-7000-8000-000000000099")
    assert refused(decision) and code(decision) == "machine.not_eligible"


def test_accepting_compares_the_version() -> None:
    decision = accepted(available(), 5, expected_version=1)
    assert code(decision) == "machine.changed"


def test_accepting_twice_for_one_claim_is_one_claim() -> None:
    once = claimed()
    again = accepted(once, 6)
    assert isinstance(again, Change) and again.machine == once and outcome(again) is Outcome.OK


def test_a_second_claim_on_a_claimed_machine_is_refused() -> None:
    assert refused(accepted(claimed(), 6, claim_id="0c1a0000-0000-7000-8000-000000000002"))


def test_accepting_is_refused_when_the_findings_are_newer_than_the_health() -> None:
    fit = available()
    decision = claims.accept(fit, accept_command(fit), found_health=Health.FAILED, now=at(5))
    assert code(decision) == "machine.not_eligible"


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.FAILED])
def test_a_sick_machine_is_not_eligible(health: Health) -> None:
    assert not available().with_(health=health).eligible


def test_a_sick_assigned_machine_stays_assigned() -> None:
    change = holds.apply_health(assigned(), Health.FAILED)
    assert change.machine.state is S.ASSIGNED and change.machine.health is Health.FAILED


def test_another_claims_commands_are_stale() -> None:
    for decision in (
        claims.begin_provisioning(claimed(), "other", at(9)),
        claims.assign(provisioning(), "other", at(9)),
    ):
        assert outcome(decision) is Outcome.STALE


def test_commands_of_a_claim_can_be_repeated() -> None:
    assert changed(claims.begin_provisioning(provisioning(), CLAIM, at(9))) == provisioning()
    assert changed(claims.assign(assigned(), CLAIM, at(9))) == assigned()


@pytest.mark.parametrize("power", ["on", "unknown", "", "OFF?"])
def test_releasing_needs_power_observed_off(power: str) -> None:
    decision = claims.record_released(
        releasing(), operation_id=OPERATION, power_state=power, sanitise_run_id="wipe-2", now=at(9)
    )
    assert refused(decision) and code(decision) == "machine.not_observed_off"


def test_the_claim_lets_go_only_when_it_was_observed_off() -> None:
    assert releasing().claim_id == CLAIM and releasing().tenant == "acme-research"
    off = released()
    assert off.claim_id is None and off.returned_claim_id == CLAIM and off.tenant == "-"


def test_returning_a_machine_that_the_claim_has_not_is_nothing_to_do() -> None:
    decision = claims.begin_return(assigned(), "other", quarantine=None, operation_id=OPERATION, now=at(8))
    assert isinstance(decision, Change) and not decision.events
    assert decision.reply is not None and decision.reply.data["held"] is False


def test_a_returned_machine_is_available_only_after_a_new_wipe_and_a_new_pass() -> None:
    off = released()
    assert not off.eligible and off.health is Health.UNKNOWN
    again = changed(verdict(changed(wiped(off, 10, "wipe-2")), 11))
    assert again.state is S.AVAILABLE and again.eligible


def test_a_return_with_a_reason_ends_in_quarantine_after_the_wipe() -> None:
    bad = changed(wiped(released(releasing(quarantine=BROKEN)), 10, "wipe-2"))
    assert bad.state is S.QUARANTINED and bad.reason == BROKEN


def test_a_wipe_that_was_not_asked_for_counts_for_nothing() -> None:
    assert code(wiped(sanitizing(), 3, run="somebody-elses")) == "machine.foreign_run"


@pytest.mark.parametrize("evidence", [{}, {"steps": []}, {"steps": ["x"], "power_state": "on"}, {"steps": ["x"]}])
def test_a_wipe_without_evidence_counts_for_nothing(evidence: dict[str, object]) -> None:
    decision = renewal.record_sanitised(
        sanitizing(), operation_id=OPERATION, run_id="wipe-1", evidence=evidence, validate_run_id="r", now=at(3)
    )
    assert refused(decision) and code(decision) == "machine.no_evidence"


@pytest.mark.parametrize("word", ["INCONCLUSIVE", "", "pass", "UNKNOWN", "OK"])
def test_whatever_is_not_pass_is_tried_once_more_and_then_failed(word: str) -> None:
    first = verdict(validating(), 4, word)
    assert isinstance(first, Change) and first.reply is not None and first.reply.data["again"] is True
    second = verdict(first.machine, 5, word, run_id="run-2", next_run_id=None)
    assert isinstance(second, Change) and outcome(second) is Outcome.REFUSED
    assert second.machine.state is S.FAILED and second.machine.failed_step == "validate"


@pytest.mark.parametrize(("fail_to", "state"), [("FAILED", S.FAILED), ("QUARANTINED", S.QUARANTINED)])
def test_a_failed_validation_ends_with_its_reason(fail_to: str, state: S) -> None:
    decision = verdict(validating(), 4, "FAIL", fail_to=fail_to, problem=BROKEN)
    assert isinstance(decision, Change) and outcome(decision) is Outcome.REFUSED
    assert decision.machine.state is state and decision.machine.health is Health.FAILED
    assert decision.machine.reason is not None and "it broke" in decision.machine.reason.message


def test_a_missing_part_ends_in_failed_enrol_naming_slot_expected_and_found() -> None:
    decision = renewal.record_inspection(
        enrolling(),
        operation_id=OPERATION,
        inspection=inspection(),
        mismatches=[Mismatch("GPU slot GPU_SXM_4", "NVIDIA H100 80GB HBM3", "nothing (the slot is empty)")],
        sanitise_run_id="wipe-1",
        now=at(2),
    )
    assert isinstance(decision, Change) and outcome(decision) is Outcome.REFUSED
    failed = decision.machine
    assert (failed.state, failed.failed_step) == (S.FAILED, "enrol") and failed.reason is not None
    assert "GPU_SXM_4" in failed.reason.message and failed.reason.next_step
    assert failed.reason.details["mismatches"][0]["expected"] == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("lacking", "words"),
    [({"bmc_address": ""}, "BMC address"), ({"serial": ""}, "serial"), ({"profile": None}, "profile")],
)
def test_a_machine_that_can_t_be_judged_is_not_enrolled(lacking: dict[str, object], words: str) -> None:
    decision = renewal.enrol(machine(**lacking), OPERATION, at(1))
    assert refused(decision) and code(decision) == "machine.incomplete"
    assert decision.reply is not None and decision.reply.problem is not None and words in decision.reply.problem.message


def test_a_machine_on_hold_is_not_enrolled() -> None:
    hold = Hold(id="h", owner="user:ops", reason="waiting for cables", since=START)
    assert code(renewal.enrol(machine(holds=(hold,)), OPERATION, at(1))) == "machine.held"


def test_records_of_an_older_operation_are_stale() -> None:
    older = "op-inv-00000000000000000000000000000000"
    assert outcome(verdict(validating(), 4, operation_id=older)) is Outcome.STALE
    decision = renewal.mark_failed(validating(), operation_id=older, problem=BROKEN, now=at(4))
    assert isinstance(decision, Change) and not decision.events


def test_records_can_be_repeated() -> None:
    assert changed(wiped(validating(), 9)) == validating()
    assert changed(verdict(available(), 9)) == available()
    assert (
        changed(
            renewal.record_inspection(
                sanitizing(),
                operation_id=OPERATION,
                inspection=inspection(),
                mismatches=(),
                sanitise_run_id="wipe-1",
                now=at(9),
            )
        )
        == sanitizing()
    )


@pytest.mark.parametrize(
    ("state", "step"),
    [(S.ENROLLING, "enrol"), (S.SANITIZING, "sanitize"), (S.VALIDATING, "validate"), (S.RELEASING, "release")],
)
def test_a_step_that_fails_is_named_with_what_to_do_next(state: S, step: str) -> None:
    failed = changed(renewal.mark_failed(MAKERS[state](), operation_id=OPERATION, problem=BROKEN, now=at(9)))
    assert (failed.state, failed.failed_step) == (S.FAILED, step)
    assert failed.reason is not None and failed.reason.next_step and failed.reason.message == "it broke"


def test_a_failed_release_keeps_the_claim_and_can_be_retried() -> None:
    failed = changed(renewal.mark_failed(releasing(), operation_id=OPERATION, problem=BROKEN, now=at(9)))
    assert failed.claim_id == CLAIM
    assert releasing(failed).state is S.RELEASING


def test_automation_never_clears_a_hold_of_a_human_or_of_another_system() -> None:
    for owner in ("user:ops", "system:netbox"):
        held = changed(holds.add_hold(available(), Hold(id="h", owner=owner, reason="r", since=START)))
        assert not held.eligible
        assert code(holds.remove_hold(held, "h", "system:reconcile", at(9))) == "machine.foreign_hold"
        assert changed(holds.remove_hold(held, "h", "user:other", at(9))).eligible


def test_a_claimed_machine_is_not_quarantined_under_its_tenant() -> None:
    assert code(holds.quarantine(assigned(), BROKEN, at(9))) == "machine.claimed"


@pytest.mark.parametrize("state", [S.ENROLLING, S.SANITIZING, S.VALIDATING])
def test_quarantining_a_busy_machine_waits_for_its_step(state: S) -> None:
    pending = changed(holds.quarantine(MAKERS[state](), BROKEN, at(9)))
    assert pending.state is state and pending.pending_quarantine == BROKEN


def test_a_pending_quarantine_wins_over_a_pass() -> None:
    pending = changed(holds.quarantine(validating(), BROKEN, at(4)))
    assert changed(verdict(pending, 5)).state is S.QUARANTINED


def test_a_released_quarantine_needs_a_new_wipe_and_a_new_pass() -> None:
    out = MAKERS[S.QUARANTINED]()
    again = changed(renewal.begin_renewal(out, operation_id=OPERATION, sanitise_run_id="wipe-3", now=at(10)))
    assert again.state is S.SANITIZING and again.proof_after == at(10) and not is_eligible(again)


@pytest.mark.parametrize(
    ("severities", "health"),
    [
        ((), Health.UNKNOWN),
        (("warning",), Health.SUSPECT),
        (("critical", "warning"), Health.FAILED),
        (("banana",), Health.SUSPECT),
    ],
)
def test_health_is_the_worst_open_finding(severities: tuple[str, ...], health: Health) -> None:
    assert holds.health_of(severities) is health


def test_no_findings_prove_nothing() -> None:
    assert holds.combined_health(machine(), Health.UNKNOWN) is Health.UNKNOWN
    assert holds.combined_health(available(), Health.UNKNOWN) is Health.HEALTHY
    assert holds.combined_health(available(), Health.SUSPECT) is Health.SUSPECT


def test_every_state_change_names_both_states() -> None:
    decision = accepted(available(), 5)
    assert isinstance(decision, Change)
    (event,) = decision.events
    assert isinstance(event, MachineStateChanged)
    assert (event.from_state, event.to_state) == (S.AVAILABLE, S.CLAIMED)
