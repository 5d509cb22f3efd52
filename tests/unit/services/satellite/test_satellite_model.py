"""Which commands may still be worked on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from libs.contracts.replies import Outcome
from services.satellite.model import Fence, Order, moved_fence, objection

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def order(claim: str | None, version: int = 0, *, minute: int = 0, deadline: datetime | None = None) -> Order:
    return Order(claim, version, NOW + timedelta(minutes=minute), deadline)


def outcome(
    asked: Order, fence: Fence | None = None, newest_changing_version: int = 0, now: datetime = NOW
) -> Outcome | None:
    reply = objection(asked, machine="m1", fence=fence, newest_changing_version=newest_changing_version, now=now)
    return reply.outcome if reply else None


def test_a_command_without_claim_version_and_deadline_is_always_worked_on() -> None:
    assert outcome(order(None), Fence("a", 9, NOW), newest_changing_version=9) is None


def test_a_deadline_counts_from_the_moment_itself() -> None:
    assert outcome(order("a", deadline=NOW)) is Outcome.EXPIRED
    assert outcome(order("a", deadline=NOW + timedelta(microseconds=1))) is None


def test_a_command_of_an_overtaken_claim_is_stale() -> None:
    assert outcome(order("a"), Fence("b", 0, NOW)) is Outcome.STALE
    assert outcome(order("b"), Fence("b", 0, NOW)) is None


def test_a_command_about_an_older_version_is_stale_once_a_later_one_changes_the_machine() -> None:
    assert outcome(order("a", 5), Fence("a", 6, NOW), newest_changing_version=6) is Outcome.STALE
    assert outcome(order("a", 6), Fence("a", 6, NOW), newest_changing_version=6) is None


def test_the_first_claim_makes_the_fence() -> None:
    assert moved_fence(None, order("a", 3), seen_before=False) == Fence("a", 3, NOW)


def test_a_command_without_a_claim_leaves_the_fence_alone() -> None:
    assert moved_fence(Fence("a", 3, NOW), order(None, 99), seen_before=False) == Fence("a", 3, NOW)
    assert moved_fence(None, order(None, 99), seen_before=False) is None


def test_the_same_claim_raises_the_version_only() -> None:
    assert moved_fence(Fence("a", 3, NOW), order("a", 5, minute=9), seen_before=False) == Fence("a", 5, NOW)
    assert moved_fence(Fence("a", 5, NOW), order("a", 3, minute=9), seen_before=False) == Fence("a", 5, NOW)


@pytest.mark.parametrize(
    ("version", "minute", "seen_before", "wins"),
    [
        (4, -5, True, True),  # A higher version wins, even for a claim that comes back and a message that was late.
        (2, 5, False, False),  # A lower version never wins.
        (0, 5, False, True),  # Without versions the one first seen later wins.
        (0, -5, False, False),  # A message that was delivered late does not.
        (0, 5, True, False),  # A claim that was overtaken does not come back without a version that proves it.
        (3, 5, False, True),  # Equal versions say nothing.
    ],
)
def test_another_claim_moves_the_fence_only_when_it_is_newer(
    version: int, minute: int, seen_before: bool, wins: bool
) -> None:
    after = moved_fence(Fence("a", 3, NOW), order("b", version, minute=minute), seen_before=seen_before)

    assert after is not None
    assert (after.claim_id == "b") is wins
