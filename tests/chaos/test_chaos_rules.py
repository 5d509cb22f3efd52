"""Each rule of the fault harness is shown histories that may never happen, and finds them; a good one breaks none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from chaos.breaches import MOST_SHOWN
from chaos.history import (
    Answer,
    Claim,
    DeadLetter,
    Event,
    History,
    Kept,
    Machine,
    Poll,
    Rebuilt,
    Request,
    Restore,
    Saga,
    SiteAct,
)
from chaos.rules import RULES, judge

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
OPERATION = "op-prv-1"


def request(key: str = "k1", *answers: Answer, path: str = "/clusters") -> Request:
    return Request(key=key, who="alice-0", method="POST", path=path, sent_at=NOON, answers=answers)


def accepted(operation: str = OPERATION) -> Answer:
    return Answer(at=NOON, status=202, operation_id=operation)


def event(sequence: int, kind: str, entity: str, version: int, service: str = "provisioning", **more: Any) -> Event:
    return Event(
        **{
            "service": service,
            "position": sequence,
            "sequence": sequence,
            "id": f"{service}-{sequence}",
            "type": f"slipway.{service}.{kind}",
            "entity": entity,
            "version": version,
            "tenant_sequence": sequence,
            **more,
        }
    )


def finished(sequence: int, version: int, status: str = "SUCCEEDED", operation: str = OPERATION) -> Event:
    return event(sequence, "operation.finished", operation, version, facts={"status": status})


def claims(sequence: int, *states: tuple[str, str, str]) -> Event:
    said = [{"id": claim, "machine_id": machine, "state": state} for claim, machine, state in states]
    return event(sequence, "reservation.changed", "rsv-1", sequence, "reservation", facts={"claims": said})


def acts(*lines: tuple[str, str]) -> tuple[SiteAct, ...]:
    return tuple(
        SiteAct(number=number, at=float(number), machine="m1", what=what, subject=subject)  # type: ignore[arg-type]
        for number, (what, subject) in enumerate(lines)
    )


def streams(*events: Event) -> dict[str, tuple[Event, ...]]:
    found: dict[str, tuple[Event, ...]] = {}
    for each in events:
        found[each.service] = (*found.get(each.service, ()), each)
    return found


def kept(*rows: tuple[int | None, str], service: str = "provisioning") -> tuple[Kept, ...]:
    return tuple(Kept(service=service, sequence=sequence, id=id_) for sequence, id_ in rows)


START, END = event(1, "operation.started", OPERATION, 1), finished(2, 2)
STREAM = streams(START, END)
READY = {"operations": {OPERATION: "SUCCEEDED"}, "streams": STREAM}
MACHINE = Machine(id="m1", name="m1", state="ASSIGNED", claim_id="c1", cluster_id="clu-1")
SAGA = Saga(service="provisioning", id=OPERATION, kind="create_cluster", phase="running", status="RUNNING")
ONCE = ("claimed", "c1"), ("deploy", "c1"), ("deployed", "c1"), ("undeploy", "c1"), ("released", "c1")

# Every rule with histories that break it.
BAD: list[tuple[str, dict[str, Any]]] = [
    ("every_request_is_answered", {"requests": (request(),)}),
    (
        "a_repeat_is_the_same_request",
        {"requests": (request("k1", accepted("op-prv-1"), accepted("op-prv-2")),)},
    ),
    ("an_accepted_request_has_one_outcome", {"requests": (request("k1", accepted()),)}),
    (
        "an_accepted_request_has_one_outcome",  # Two ends, both told by events.
        {**READY, "requests": (request("k1", accepted()),), "streams": streams(START, END, finished(3, 3, "FAILED"))},
    ),
    (
        "an_accepted_request_has_one_outcome",  # Somebody was told another end.
        {
            **READY,
            "requests": (request("k1", accepted()),),
            "polls": (Poll(at=NOON, operation_id=OPERATION, status="FAILED"),),
        },
    ),
    (
        "an_accepted_request_has_one_outcome",  # It ended and runs again.
        {
            "requests": (request("k1", accepted()),),
            "operations": {OPERATION: "RUNNING"},
            "streams": STREAM,
        },
    ),
    (
        "an_accepted_request_has_one_outcome",  # It ended silently.
        {**READY, "requests": (request("k1", accepted()),), "streams": streams(START)},
    ),
    ("two_creations_are_two_operations", {"requests": (request("k1", accepted()), request("k2", accepted()))}),
    (
        "a_machine_has_one_live_claim",
        {"streams": streams(claims(1, ("c1", "m1", "HELD")), claims(2, ("c2", "m1", "HELD")))},
    ),
    (
        "a_machine_has_one_live_claim",
        {"streams": streams(claims(1, ("c1", "m1", "HELD"), ("c2", "m1", "CLAIMED")))},
    ),
    ("a_machine_carries_one_claim_at_the_site", {"site": acts(("claimed", "c1"), ("claimed", "c2"))}),
    ("a_claim_is_deployed_once", {"site": acts(("deploy", "c1"), ("deploy", "c1"))}),
    ("a_claim_is_deployed_once", {"site": acts(("deploy", "c1"), ("deployed", "c1"), ("deploy", "c1"))}),
    ("nothing_is_deployed_after_its_release", {"site": acts(*ONCE, ("deploy", "c1"))}),
    ("nothing_is_deployed_after_its_release", {"site": acts(*ONCE, ("claimed", "c1"))}),
    ("a_machine_is_wiped_between_claims", {"site": acts(*ONCE, ("claimed", "c2"), ("deploy", "c2"))}),
    ("a_machine_is_wiped_between_claims", {"site": acts(*ONCE, ("clean", "r1"), ("failed", "r1"), ("deploy", "c2"))}),
    ("owners_agree_at_rest", {"machines": (MACHINE,)}),
    (
        "owners_agree_at_rest",
        {
            "machines": (MACHINE.model_copy(update={"claim_id": None}),),
            "claims": (Claim(id="c1", machine_id="m1", state="CLAIMED"),),
        },
    ),
    (
        "a_node_is_billed_once",
        {
            "streams": streams(
                event(1, "cluster.node_started", "clu-1", 1, facts={"machine_id": "m1"}),
                event(2, "cluster.node_started", "clu-1", 2, facts={"machine_id": "m1"}),
            )
        },
    ),
    (
        "a_node_is_billed_once",
        {
            "streams": streams(
                event(1, "cluster.node_started", "clu-1", 1, facts={"machine_id": "m1"}),
                event(2, "cluster.state_changed", "clu-1", 2, facts={"to_state": "DELETED"}),
            )
        },
    ),
    ("a_stream_is_gapless_and_in_order", {"streams": streams(event(2, "operation.started", OPERATION, 1))}),
    (
        "a_stream_is_gapless_and_in_order",  # Another number than its place.
        {"streams": streams(START, event(2, "operation.finished", OPERATION, 2, position=3))},
    ),
    (
        "a_stream_is_gapless_and_in_order",  # The same event at two places.
        {"streams": streams(START, event(2, "operation.finished", OPERATION, 2, id=START.id))},
    ),
    (
        "a_stream_is_gapless_and_in_order",  # A number that its owner calls void, where nobody wrote.
        {"streams": streams(START, finished(3, 2)), "void": {"provisioning": (2,)}},
    ),
    (
        "a_stream_is_gapless_and_in_order",  # Somebody wrote at one place, and two are missing.
        {
            "streams": streams(START, finished(4, 2)),
            "void": {"provisioning": (2,)},
            "written": {"provisioning": (2,)},
        },
    ),
    ("an_entity_has_no_gap", {"streams": streams(START, finished(2, 3))}),
    ("an_entity_has_no_gap", {"streams": streams(START, finished(2, 1))}),
    ("an_entity_has_no_gap", {"streams": streams(finished(1, 2))}),
    (
        "a_tenant_sees_no_gap",
        {"streams": streams(START, event(2, "operation.finished", OPERATION, 2, tenant_sequence=3))},
    ),
    ("what_was_committed_is_published", {"unpublished": {"provisioning": 1}}),
    ("what_was_committed_is_published", {"outbox": kept((None, "e"))}),
    ("what_was_committed_is_published", {"streams": STREAM, "outbox": kept((3, "provisioning-3"))}),
    ("what_was_committed_is_published", {"streams": STREAM, "outbox": kept((2, "another"))}),
    ("the_audit_store_has_every_event", {"streams": STREAM, "audited_services": ("provisioning",)}),
    (
        "the_audit_store_has_every_event",
        {"streams": STREAM, "audit": kept((1, START.id)), "audited_services": ("provisioning",)},
    ),
    ("the_audit_store_has_every_event", {"streams": STREAM, "audit": kept((1, "another"), (2, END.id))}),
    ("what_was_seen_is_never_rewritten", {"streams": STREAM, "witnessed": kept((2, "another"))}),
    ("what_was_seen_is_never_rewritten", {"streams": STREAM, "witnessed": kept((2, END.id), (2, "another"))}),
    ("what_was_seen_is_never_rewritten", {"streams": STREAM, "witnessed": kept((3, "gone"))}),
    (
        "what_was_seen_is_never_rewritten",  # Moved past a void number that is not behind it.
        {
            "streams": streams(START, finished(3, 2)),
            "witnessed": kept((3, START.id)),
            "void": {"provisioning": (2,)},
            "written": {"provisioning": (2,)},
        },
    ),
    ("the_common_stream_has_every_event_once", {"streams": STREAM, "everything": (("provisioning", 1, START.id),)}),
    (
        "the_common_stream_has_every_event_once",
        {
            "streams": STREAM,
            "everything": tuple(("provisioning", e.sequence, e.id) for e in (START, END, END)),
        },
    ),
    (
        "the_common_stream_has_every_event_once",
        {"streams": STREAM, "everything": tuple(("provisioning", e.sequence, e.id) for e in (END, START))},
    ),
    (
        "a_projection_equals_its_rebuild",
        {"rebuilt": (Rebuilt(service="cost", projection="metering", equal=False, events=7),)},
    ),
    (
        "a_projection_equals_its_rebuild",
        {"rebuilt": (Rebuilt(service="cost", projection="metering", equal=True, events=7, problem="timed out"),)},
    ),
    ("a_saga_ends_or_goes_on_or_says_why_not", {"sagas": (SAGA.model_copy(update={"pending": 1}),)}),
    ("a_saga_ends_or_goes_on_or_says_why_not", {"sagas": (SAGA.model_copy(update={"pending": 2, "timers": 1}),)}),
    ("a_saga_ends_or_goes_on_or_says_why_not", {"sagas": (SAGA,)}),
    ("a_saga_ends_or_goes_on_or_says_why_not", {"sagas": (SAGA.model_copy(update={"phase": "parked"}),)}),
    ("a_saga_ends_or_goes_on_or_says_why_not", {"sagas": (SAGA.model_copy(update={"phase": "finished"}),)}),
    ("the_system_comes_to_rest", {"at_rest": False}),
    (
        "no_dead_letter_is_unexplained",
        {"dead_letters": (DeadLetter(service="cost", message_id="x", subject="cmd.cost.x.v1", error="boom"),)},
    ),
    (
        "no_dead_letter_is_unexplained",
        {
            "dead_letters": (DeadLetter(service="cost", message_id="EVT_cost:7", subject="evt.x", error="foreign"),),
            "written": {"cost": (8,)},
        },
    ),
]


@pytest.mark.parametrize(("rule", "history"), BAD, ids=[f"{rule}-{n}" for n, (rule, _) in enumerate(BAD)])
def test_a_rule_finds_what_breaks_it(rule: str, history: dict[str, Any]) -> None:
    found = judge(History(seed="s", **history))
    assert rule in {broken.rule for broken in found}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in BAD} == set(RULES)


def good() -> History:
    """What a run of one cluster that came and went, and one that stays, looks like."""
    events = (
        START,
        event(2, "cluster.node_started", "clu-1", 1, facts={"machine_id": "m1"}),
        finished(3, 2),
        event(4, "cluster.node_stopped", "clu-1", 2, facts={"machine_id": "m1"}),
        event(5, "cluster.state_changed", "clu-1", 3, facts={"to_state": "DELETED"}),
        claims(1, ("c1", "m1", "HELD")),
        claims(2, ("c1", "m1", "ENDED"), ("c2", "m2", "HELD")),
        claims(3, ("c1", "m1", "ENDED"), ("c2", "m2", "CLAIMED")),
        claims(4, ("c3", "m1", "CLAIMED")),
    )
    by_service = streams(*events)
    return History(
        seed="s",
        requests=(request("k1", accepted(), accepted()), request("k2", Answer(at=NOON, status=409, code="cluster.x"))),
        polls=(
            Poll(at=NOON, operation_id=OPERATION, status="RUNNING"),
            Poll(at=NOON, operation_id=OPERATION, status="SUCCEEDED"),
        ),
        operations={OPERATION: "SUCCEEDED"},
        streams=by_service,
        everything=tuple((e.service, e.sequence, e.id) for found in by_service.values() for e in found),
        # The oldest rows of the outbox may be gone: they were published and are archived.
        outbox=tuple(Kept(service=e.service, sequence=e.sequence, id=e.id) for e in events[1:]),
        unpublished={"provisioning": 0},
        audit=tuple(Kept(service=e.service, sequence=e.sequence, id=e.id) for e in events),
        audited_services=("provisioning", "reservation"),
        witnessed=(Kept(service="provisioning", sequence=1, id=START.id),),
        site=acts(
            ("clean", "r0"),
            ("cleaned", "r0"),
            ("claimed", "c1"),
            ("deploy", "c1"),
            ("failed", "c1"),
            ("deploy", "c1"),
            ("deployed", "c1"),
            ("undeploy", "c1"),
            ("released", "c1"),
            ("clean", "r1"),
            ("cleaned", "r1"),
            ("claimed", "c3"),
            ("deploy", "c3"),
        ),
        sagas=(
            SAGA.model_copy(update={"phase": "finished", "status": "SUCCEEDED"}),
            SAGA.model_copy(update={"id": "op-2", "phase": "parked", "waiting_for": "a human: power"}),
            SAGA.model_copy(update={"id": "op-3", "pending": 1, "timers": 1, "target": "clu-9"}),
        ),
        claims=(
            Claim(id="c1", machine_id="m1", state="ENDED"),
            Claim(id="c2", machine_id="m2", state="CLAIMED"),
            Claim(id="c3", machine_id="m1", state="CLAIMED"),
        ),
        machines=(
            MACHINE.model_copy(update={"claim_id": "c3"}),
            MACHINE.model_copy(update={"id": "m2", "name": "m2", "claim_id": None, "cluster_id": "clu-9"}),
        ),
        rebuilt=(Rebuilt(service="cost", projection="metering", equal=True, events=7),),
    )


def test_a_good_history_breaks_no_rule() -> None:
    assert judge(good()) == []


def test_a_kept_history_is_judged_as_the_recorded_one(tmp_path: Path) -> None:
    bad = good().model_copy(update={"witnessed": kept((1, "another"))})
    bad.write(tmp_path / "history.json")
    again = History.read(tmp_path / "history.json")
    assert again == bad and judge(again) == judge(bad) != []


def test_what_a_restored_database_has_forgotten_is_no_breach_and_what_came_later_is() -> None:
    restore = Restore(taken_at=NOON, accepted_at=NOON + timedelta(minutes=1), goes_on_after={"reservation": 1})
    before, after = request("k1", accepted("op-1")), request("k2", accepted("op-2"))
    after = after.model_copy(update={"sent_at": NOON + timedelta(minutes=2)})
    set_aside = DeadLetter(service="cost", message_id="x", subject="s", error="e", cause="stale_epoch")
    found = judge(
        History(
            seed="s",
            requests=(before, after),
            restores=(restore,),
            dead_letters=(set_aside, set_aside.model_copy(update={"cause": "handler_failed"})),
            streams=streams(
                claims(1, ("c1", "m1", "HELD")),
                claims(2, ("c2", "m1", "HELD")),
                claims(3, ("c3", "m1", "HELD")),
            ),
            everything=tuple(("reservation", number, f"reservation-{number}") for number in (1, 2, 3)),
        )
    )
    assert sorted((broken.rule, broken.what) for broken in found) == [
        ("a_machine_has_one_live_claim", "machine m1 has the live claims c2 and c3"),
        ("an_accepted_request_has_one_outcome", "op-2 was accepted and is not there"),
        ("no_dead_letter_is_unexplained", "cost could not handle s: e"),
    ]


def test_what_goes_on_after_a_restore_may_end_anew_and_what_was_forgotten_begins_anew_but_only_once() -> None:
    restore = Restore(taken_at=NOON, accepted_at=NOON + timedelta(minutes=1), goes_on_after={"provisioning": 2})
    later = request("k1", accepted())
    told: dict[str, Any] = {
        "seed": "s",
        "requests": (later.model_copy(update={"sent_at": NOON + timedelta(minutes=2)}),),
        "polls": (Poll(at=NOON, operation_id=OPERATION, status="SUCCEEDED"),),
        "operations": {OPERATION: "FAILED"},
        "restores": (restore,),
    }
    good = (START, END, finished(3, 3, "FAILED"))
    copied = {"everything": tuple(("provisioning", e.sequence, e.id) for e in good)}
    assert judge(History(**told, **copied, streams=streams(*good))) == []
    bad = (*good, finished(4, 4, "CANCELLED"))
    found = judge(History(**told, streams=streams(*bad)))
    assert "an_accepted_request_has_one_outcome" in {broken.rule for broken in found}

    run = [event(n, "run.finished", "r1", version) for n, version in ((1, 1), (2, 2), (3, 1), (4, 2))]
    assert "an_entity_has_no_gap" not in {b.rule for b in judge(History(**told, streams=streams(*run)))}
    run[3] = event(4, "run.finished", "r1", 1)
    assert "an_entity_has_no_gap" in {b.rule for b in judge(History(**told, streams=streams(*run)))}


def test_what_somebody_else_wrote_into_a_stream_explains_a_void_number_its_dead_letter_and_what_was_moved() -> None:
    end = finished(3, 2)
    history = History(
        seed="s",
        streams=streams(START, end.model_copy(update={"tenant_sequence": 2})),
        everything=(("provisioning", 1, START.id), ("provisioning", 3, end.id)),
        witnessed=kept((1, START.id), (2, end.id), (3, end.id)),
        void={"provisioning": (2,)},
        written={"provisioning": (2,)},
        dead_letters=(DeadLetter(service="provisioning", message_id="EVT_provisioning:2", subject="evt", error="x"),),
    )
    assert judge(history) == []


def test_a_rule_that_is_broken_everywhere_shows_the_first_places() -> None:
    events = tuple(event(n, "operation.started", f"op-{n}", 2) for n in range(1, 3 * MOST_SHOWN))
    found = judge(History(seed="s", streams=streams(*events)))
    assert sum(1 for broken in found if broken.rule == "an_entity_has_no_gap") == MOST_SHOWN
