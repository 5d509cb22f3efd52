"""Decisions about reservations, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.replies import Problem
from libs.contracts.reservation import ClaimState
from libs.fsm import IllegalTransition
from services.reservation import model
from services.reservation.announcements import event_of
from services.reservation.model import Claim, Reservation
from services.reservation.states import CLAIM, RESERVATION

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def held_claim(claim_id: str, limit_seconds: int = 60) -> Claim:
    return Claim(
        id=claim_id,
        machine_id=f"m-{claim_id}",
        machine_name=f"gpu-{claim_id}",
        machine_version=5,
        site="fra1",
        state=ClaimState.HELD,
        expires_at=NOW + timedelta(seconds=limit_seconds),
    )


def held(count: int = 2) -> Reservation:
    return Reservation(
        id="rsv-1",
        tenant="acme",
        profile="gpu",
        site="fra1",
        count=count,
        state=ClaimState.HELD,
        ttl_seconds=60,
        created_at=NOW,
        expires_at=NOW + timedelta(seconds=60),
        claims=tuple(held_claim(f"c{number}") for number in range(count)),
    )


@pytest.mark.parametrize("state", list(ClaimState))
def test_every_event_of_a_claim_is_listed_or_refused(state: ClaimState) -> None:
    for event in ("confirm", "expire", "refuse", "drop", "give_back", "end"):
        if CLAIM.allows(state, event):
            assert CLAIM.target(state, event) in ClaimState
        else:
            with pytest.raises(IllegalTransition):
                CLAIM.target(state, event)


def test_a_confirmed_reservation_stays_confirmed_while_a_claim_is_replaced() -> None:
    reservation = held(1)
    confirmed = model.confirm(reservation, "c0", 6, NOW)
    assert isinstance(confirmed, Reservation) and confirmed.state is ClaimState.CLAIMED
    swapped = model.substitute(confirmed, "c0", held_claim("c9"), True, "deploy failed")
    assert swapped.state is ClaimState.CLAIMED
    assert [claim.state for claim in swapped.claims] == [ClaimState.RETURNING, ClaimState.HELD]


def test_a_hold_that_ran_out_before_its_sweep_is_not_confirmed() -> None:
    problem = model.confirm(held(), "c0", 6, NOW + timedelta(seconds=61))
    assert isinstance(problem, Problem) and problem.code == "reservation.hold_expired"


def test_partly_confirmed_and_expired_is_not_expired_as_a_whole() -> None:
    one = model.confirm(held(), "c0", 6, NOW)
    assert isinstance(one, Reservation)
    later = model.expire(one, NOW + timedelta(seconds=61))
    assert [claim.state for claim in later.claims] == [ClaimState.CLAIMED, ClaimState.EXPIRED]
    assert later.state.live


MOVES = ("confirm", "expire", "release", "release_in_use", "replace", "end")


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 9)), max_size=25))
def test_the_reservations_state_always_follows_from_its_claims(count: int, moves: list[tuple[str, int]]) -> None:
    now, reservation = NOW, held(count)
    for move, number in moves:
        before = reservation
        claim = before.claims[number % len(before.claims)]
        match move:
            case "confirm":
                after = model.confirm(before, claim.id, 6, now)
                reservation = before if isinstance(after, Problem) else after
            case "expire":
                now += timedelta(seconds=number * 5)
                reservation = model.expire(before, now)
            case "release" | "release_in_use":
                in_use = {each.id for each in before.claims} if move == "release_in_use" else set()
                reservation = model.release(before, in_use, "x")
            case "replace" if before.open:
                new = held_claim(f"c{len(before.claims)}", limit_seconds=60 + int((now - NOW).total_seconds()))
                reservation = model.substitute(before, claim.id, new, number % 2 == 0, "x")
            case "end":
                reservation = model.end_returned(before, {claim.id})
        if reservation is before:
            continue
        assert reservation.version == before.version + 1
        assert event_of(before, reservation).message_type.entity == "reservation"
        assert before.state not in RESERVATION.final
        live = [each for each in reservation.claims if each.state.live]
        assert bool(live) == reservation.state.live
        kept = [each for each in live if each.state is not ClaimState.RETURNING]
        assert bool(kept) == reservation.open
        assert all((each.state is ClaimState.HELD) == (each.expires_at is not None) for each in reservation.claims)
