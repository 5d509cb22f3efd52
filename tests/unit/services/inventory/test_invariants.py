"""Every invariant: its fault is found within a minute, silence is not good news, and normal work raises no alarm."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from libs.contracts.inventory import MachineState as S
from services.inventory.model.invariants import BY_ID, INVARIANTS, LONGEST_GRACE, REPAIR_WORDS, System
from services.inventory.model.subject import Contradiction, Node, Provider, Subject, Unknown
from services.inventory.model.violations import Key, Violation, gone, grace_of, learned, look
from tests.unit.services.inventory.machines import CLAIM, at

NOW = at(60)
STEP = timedelta(seconds=5)
OTHER = "33333333-0000-4000-8000-000000000003"

NODE = Node(
    provision_state="available",
    power_state="off",
    instance_uuid=None,
    maintenance_owner="",
    maintenance_reason="",
    fault="",
    retired=False,
    resource_class="h100-sxm-8",
    reservation="",
    reserved_since=None,
    observed_at=NOW,
)
FREE = Provider(total=1, reserved=0, consumers=(), observed_at=NOW)
AVAILABLE = Subject(
    id="m-1",
    name="fra1-r1-gpu-01",
    site="fra1",
    state=S.AVAILABLE,
    state_since=at(0),
    claim_id=None,
    operation_id=None,
    operation_phase="",
    worked_on=False,
    profile="h100-sxm-8",
    shares="",
    node=NODE,
    site_heard=True,
    provider=FREE,
    placement_heard=True,
    eligible=True,
)
DEPLOYED = replace(NODE, provision_state="active", power_state="on", instance_uuid=CLAIM)
TAKEN = Provider(total=1, reserved=0, consumers=(CLAIM,), observed_at=NOW)
ASSIGNED = replace(AVAILABLE, state=S.ASSIGNED, claim_id=CLAIM, node=DEPLOYED, provider=TAKEN, eligible=False)
RETIRED = replace(AVAILABLE, state=S.RETIRED, node=None, provider=None, eligible=False)


def node(of: Subject, **changes: object) -> Subject:
    assert of.node is not None
    return replace(of, node=replace(of.node, **changes))  # type: ignore[arg-type]


# One fault or more for each invariant: what another program, a person or a crash leaves behind.
FAULTS: dict[str, tuple[Subject, ...]] = {
    "deployed-unclaimed": (
        node(AVAILABLE, provision_state="active", power_state="on", instance_uuid=OTHER),
        node(replace(AVAILABLE, state=S.QUARANTINED, provider=None), provision_state="rescue"),
        node(AVAILABLE, instance_uuid=OTHER),
    ),
    "instance-of-another": (node(ASSIGNED, instance_uuid=OTHER),),
    "assigned-not-deployed": (
        node(ASSIGNED, provision_state="available", instance_uuid=None, power_state="off"),
        node(ASSIGNED, provision_state="rescue"),
        node(ASSIGNED, provision_state="deploying"),
    ),
    "assigned-off": (node(ASSIGNED, power_state="off"),),
    "available-on": (node(AVAILABLE, power_state="on"),),
    "available-not-deployable": (
        node(AVAILABLE, provision_state="manageable"),
        node(AVAILABLE, provision_state="clean failed"),
        node(AVAILABLE, provision_state="clean hold"),
    ),
    "offered-power-unknown": (node(AVAILABLE, power_state="unknown"), node(AVAILABLE, power_state="")),
    "provision-state-unknown": (node(AVAILABLE, provision_state="polishing"), node(AVAILABLE, provision_state="")),
    "maintenance-by-others": (
        node(AVAILABLE, maintenance_owner="other", maintenance_reason="cabling"),
        node(ASSIGNED, maintenance_owner="other"),
    ),
    "node-fault": (node(AVAILABLE, maintenance_owner="ironic", fault="power failure"),),
    "node-retired": (node(AVAILABLE, retired=True),),
    "resource-class-differs": (node(AVAILABLE, resource_class=""), node(AVAILABLE, resource_class="baremetal")),
    "node-locked": (node(AVAILABLE, reservation="cond-2", reserved_since=NOW - timedelta(hours=1)),),
    "node-missing": (
        replace(AVAILABLE, node=None),
        node(AVAILABLE, gone_at=NOW),
        node(ASSIGNED, observed_at=NOW - timedelta(minutes=10)),
    ),
    "ghost-host": (replace(RETIRED, node=NODE),),
    "node-without-machine": (replace(AVAILABLE, state=None, provider=None, profile=None),),
    "stranded": (
        replace(AVAILABLE, state=S.SANITIZING, operation_id="op-1"),
        replace(AVAILABLE, state=S.ENROLLING, operation_id="op-1", operation_phase="parked", node=None),
        replace(AVAILABLE, state=S.RELEASING, claim_id=CLAIM, operation_id=None),
    ),
    "identity-shared": (replace(AVAILABLE, shares="its serial number 1 is also that of fra1-r1-gpu-02"),),
    "allocation-of-another": (
        replace(AVAILABLE, provider=replace(FREE, consumers=(OTHER,))),
        replace(ASSIGNED, provider=replace(TAKEN, consumers=(CLAIM, OTHER))),
    ),
    "open-to-nova": (replace(AVAILABLE, state=S.QUARANTINED, eligible=False), replace(AVAILABLE, eligible=False)),
    "closed-to-all": (
        replace(AVAILABLE, provider=replace(FREE, reserved=1)),
        replace(AVAILABLE, provider=replace(FREE, consumers=("m-1",))),
    ),
    "ghost-provider": (replace(RETIRED, provider=FREE),),
}
SEEDED = [(name, number) for name in sorted(FAULTS) for number in range(len(FAULTS[name]))]


def broken(subject: Subject) -> set[str]:
    return {rule.id for rule in INVARIANTS if isinstance(rule.judge(subject, NOW), Contradiction)}


def test_every_invariant_has_a_fault_that_breaks_it_and_a_repair_in_words() -> None:
    assert sorted(FAULTS) == sorted(BY_ID)
    for rule in INVARIANTS:
        assert REPAIR_WORDS[rule.repair]
        assert rule.explanation.endswith(".")
        assert timedelta(0) <= rule.grace <= LONGEST_GRACE < timedelta(seconds=60)


@pytest.mark.parametrize(("name", "number"), SEEDED)
def test_every_seeded_fault_is_found_in_less_than_a_minute(name: str, number: int) -> None:
    subject, known, now = FAULTS[name][number], dict[Key, Violation](), NOW
    while now < NOW + timedelta(seconds=60):
        lasting = _seen_again(subject, now)
        known = {(v.invariant, v.subject): v for v in look([lasting], known, {}, now).changed}
        if (name, subject.id) in known and known[name, subject.id].opened_at:
            return
        now += STEP
    raise AssertionError(f"{name} was not told: {sorted(known)}")


def _seen_again(subject: Subject, now: datetime) -> Subject:
    """The same, a moment later: whoever was heard is heard again, whoever was silent stays silent."""
    later = now - NOW
    seen, book = subject.node, subject.provider
    if seen is not None and seen.observed_at == NOW and seen.gone_at is None:
        seen = replace(seen, observed_at=now)
    return replace(subject, node=seen, provider=replace(book, observed_at=NOW + later) if book else None)


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(AVAILABLE, id="available"),
        pytest.param(ASSIGNED, id="assigned"),
        pytest.param(RETIRED, id="retired"),
        pytest.param(replace(AVAILABLE, state=S.EXPECTED, node=None, provider=None), id="expected"),
        pytest.param(node(ASSIGNED, provision_state="servicing"), id="serviced by Ironic"),
        pytest.param(
            replace(AVAILABLE, state=S.SANITIZING, operation_phase="running", worked_on=True,
                    node=replace(NODE, provision_state="cleaning", power_state="on"), provider=None),
            id="being wiped",
        ),
        pytest.param(
            replace(AVAILABLE, state=S.PROVISIONING, claim_id=CLAIM, provider=TAKEN,
                    node=replace(DEPLOYED, provision_state="deploying", power_state="off")),
            id="being deployed",
        ),
        pytest.param(
            node(replace(AVAILABLE, state=S.FAILED, provider=None), maintenance_owner="ironic", fault="clean failure",
                 provision_state="clean failed"),
            id="failed, a person is at it",
        ),
    ],
)  # fmt: skip
def test_what_is_as_it_should_be_breaks_nothing(subject: Subject) -> None:
    assert broken(subject) == set()


def test_nothing_is_judged_that_was_not_seen_since_the_last_step_and_lately() -> None:
    on = BY_ID["available-on"]
    fault = node(AVAILABLE, power_state="on")
    silent = replace(fault, site_heard=False)
    stale = node(fault, observed_at=NOW - timedelta(minutes=4))
    before = replace(fault, state_since=NOW - timedelta(seconds=5))
    worked_on = replace(fault, worked_on=True)
    assert isinstance(on.judge(fault, NOW), Contradiction)
    assert on.judge(replace(fault, node=None), NOW) is None  # The site is heard, and lists no node of it.
    for unknown in (silent, stale, before, worked_on, replace(fault, node=None, site_heard=False)):
        assert isinstance(on.judge(unknown, NOW), Unknown)


def test_every_cause_of_no_valid_host_is_named_and_a_node_without_one_breaks_nothing() -> None:
    """An idle machine that a scheduler can't place anything on: the error itself names none of these."""
    no_class = replace(node(AVAILABLE, resource_class=""), provider=replace(FREE, total=0))
    power_unknown = node(AVAILABLE, power_state="")
    left_over = replace(AVAILABLE, provider=replace(FREE, reserved=1))
    assert broken(no_class) == {"resource-class-differs"}
    assert broken(power_unknown) == {"offered-power-unknown"}
    assert broken(left_over) == {"closed-to-all"}
    assert broken(AVAILABLE) == set()


def test_an_absent_source_is_unknown_and_never_good() -> None:
    for rule in INVARIANTS:
        if System.PLACEMENT in rule.systems and rule.id != "ghost-provider":
            assert isinstance(rule.judge(replace(AVAILABLE, placement_heard=False), NOW), Unknown), rule.id


def _open(name: str = "available-on") -> dict[Key, Violation]:
    fault = node(AVAILABLE, power_state="on")
    first = look([fault], {}, {}, NOW).changed
    known = {(v.invariant, v.subject): v for v in first}
    later = NOW + timedelta(seconds=30)
    opened = look([_seen_again(fault, later)], known, {}, later).changed
    return {(v.invariant, v.subject): v for v in opened if v.invariant == name}


def test_a_violation_that_is_open_is_cleared_by_sight_and_not_by_silence() -> None:
    known, now = _open(), NOW + timedelta(minutes=1)
    silent = look([replace(AVAILABLE, site_heard=False)], known, {}, now)
    assert [v.cleared_at for v in silent.changed] == []
    assert silent.coverage["available-on", "fra1"].unknown == 1
    mended = look([_seen_again(AVAILABLE, now)], known, {}, now)
    (cleared,) = mended.changed
    assert (cleared.cleared_at, cleared.version) == (now, 2)


def test_a_fault_within_its_grace_begins_anew_after_a_silence() -> None:
    fault = node(AVAILABLE, power_state="on")
    (pending,) = look([fault], {}, {}, NOW).changed
    known = {(pending.invariant, pending.subject): pending}
    silent = look([replace(fault, site_heard=False)], known, {}, NOW + STEP)
    assert (silent.changed, silent.forgotten) == ([], [pending])


def test_what_goes_by_itself_is_told_to_nobody_and_its_length_is_learned() -> None:
    (pending,) = look([node(AVAILABLE, power_state="on")], {}, {}, NOW).changed
    known = {(pending.invariant, pending.subject): pending}
    later = NOW + timedelta(seconds=18)
    went = look([_seen_again(AVAILABLE, later)], known, {}, later)
    assert (went.changed, went.forgotten) == ([], [pending])
    assert went.lasted == {("available-on", "fra1"): timedelta(seconds=18)}
    slow = learned(timedelta(0), timedelta(seconds=18))
    assert grace_of(BY_ID["available-on"], slow) == timedelta(seconds=27)
    assert grace_of(BY_ID["available-on"], timedelta(hours=1)) == LONGEST_GRACE


def test_a_stranger_that_is_gone_has_ended() -> None:
    stranger = FAULTS["node-without-machine"][0]
    known: dict[Key, Violation] = {}
    for now in (NOW, NOW + timedelta(seconds=50)):
        known = {(v.invariant, v.subject): v for v in look([_seen_again(stranger, now)], known, {}, now).changed}
    ended = gone(known, set(), NOW + timedelta(minutes=2))
    assert [v.cleared_at is not None for v in ended.changed] == [True]
