"""No sequence of events, however odd, makes a machine available without fresh proof, or gives it two claims."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.inventory import Health, MachineState
from libs.contracts.replies import Problem
from services.inventory.model import claims, holds, renewal
from services.inventory.model.hardware import Mismatch
from services.inventory.model.machine import Change, Decision, Machine, proven
from services.inventory.states import MACHINE
from tests.unit.services.inventory.machines import accept_command, at, inspection, machine

S = MachineState
BROKEN = Problem(code="test.broken", message="it broke")
RUNS = ("a", "b", "c")
OPERATIONS = ("op-1", "op-2")
CLAIMS = ("c-1", "c-2")
EVIDENCE: tuple[dict[str, object], ...] = ({}, {"steps": ["erase"], "power_state": "off"})

Step = tuple[str, str, str, str, str, bool]
steps = st.tuples(
    st.sampled_from(
        [
            "enrol", "inspected", "wiped", "verdict", "accept", "provision", "assign", "return", "released", "failed",
            "quarantine", "renew", "revalidate", "new_hardware",
        ]
    ),
    st.sampled_from(OPERATIONS),
    st.sampled_from(RUNS),
    st.sampled_from(CLAIMS),
    st.sampled_from(["PASS", "PASS", "FAIL", "INCONCLUSIVE", "off", "on", "unknown"]),
    st.booleans(),
)  # fmt: skip


def decide(of: Machine, step: Step, minute: float) -> Decision:
    event, op, run, claim, word, flag = step
    now = at(minute)
    match event:
        case "enrol":
            return renewal.enrol(of, op, now)
        case "inspected":
            bad = [Mismatch("GPU", "8", "7")] if word == "FAIL" else []
            return renewal.record_inspection(
                of, operation_id=op, inspection=inspection(), mismatches=bad, sanitise_run_id=run, now=now
            )
        case "wiped":
            return renewal.record_sanitised(
                of, operation_id=op, run_id=run, evidence=EVIDENCE[flag or word == "PASS"], validate_run_id=run, now=now
            )
        case "verdict":
            return renewal.record_verdict(
                of,
                operation_id=op,
                run_id=run,
                verdict=word,
                problem=None,
                fail_to="FAILED" if flag else "QUARANTINED",
                next_run_id="b" if flag else None,
                now=now,
            )
        case "accept":
            return claims.accept(of, accept_command(of, claim_id=claim), found_health=Health.UNKNOWN, now=now)
        case "provision":
            return claims.begin_provisioning(of, claim, now)
        case "assign":
            return claims.assign(of, claim, now)
        case "return":
            return claims.begin_return(of, claim, quarantine=BROKEN if flag else None, operation_id=op, now=now)
        case "released":
            power = "off" if flag else word
            return claims.record_released(of, operation_id=op, power_state=power, sanitise_run_id=run, now=now)
        case "failed":
            return renewal.mark_failed(of, operation_id=op, problem=BROKEN, now=now)
        case "quarantine":
            return holds.quarantine(of, BROKEN, now)
        case "renew":
            return renewal.begin_renewal(of, operation_id=op, sanitise_run_id=run, now=now)
        case "revalidate":
            return renewal.begin_revalidation(of, operation_id=op, validate_run_id=run, now=now)
        case _:
            return holds.accept_new_hardware(Change(of), now)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, min_size=1, max_size=60))
def test_no_sequence_reaches_available_without_a_wipe_and_a_pass_newer_than_the_last_tenant(script: list[Step]) -> None:
    check_sequence(script)


# The random walk seldom gets far from EXPECTED, so half of the walks start on the way to the pool.
ENROLLED: list[Step] = [
    ("enrol", "op-1", "a", "c-1", "PASS", True),
    ("inspected", "op-1", "a", "c-1", "PASS", True),
    ("wiped", "op-1", "a", "c-1", "PASS", True),
    ("verdict", "op-1", "a", "c-1", "PASS", True),
    ("accept", "op-1", "a", "c-1", "PASS", True),
]


@settings(max_examples=400, deadline=None)
@given(st.integers(1, len(ENROLLED)), st.lists(steps, min_size=1, max_size=60))
def test_nor_does_one_that_starts_well(head: int, script: list[Step]) -> None:
    check_sequence(ENROLLED[:head] + script)


def check_sequence(script: list[Step]) -> None:
    of = machine()
    last_tenant = wiped_at = passed_at = -1
    for minute, step in enumerate(script, start=1):
        decision = decide(of, step, minute)
        if not isinstance(decision, Change):
            continue
        after = decision.machine
        versions = [event.machine.version for event in decision.events]
        assert versions == list(range(of.version + 1, of.version + 1 + len(versions)))
        assert after.version == (versions[-1] if versions else of.version)
        if of.claim_id is not None:
            last_tenant = minute
        for event in decision.events:
            if event.message_type.name == "sanitised":
                wiped_at = minute
            if event.message_type.name == "validated":
                passed_at = minute
        if after.state is S.AVAILABLE:
            assert wiped_at > last_tenant and passed_at > last_tenant and passed_at >= wiped_at
            assert proven(after) or not after.eligible
        assert not after.eligible or (after.state is S.AVAILABLE and proven(after) and not after.claim_id)
        if after.claim_id != of.claim_id and after.claim_id is not None:
            assert of.claim_id is None and of.eligible
        if after.claim_id is None and of.claim_id is not None:
            assert of.state is S.RELEASING and after.state is S.SANITIZING and after.power_state == "off"
        assert (after.deadline_at is None) == (after.state not in MACHINE.limits)
        of = after
