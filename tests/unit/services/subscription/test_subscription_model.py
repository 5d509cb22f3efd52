"""What may be subscribed to, when a webhook is tried again, given up or disabled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.subscription.model import (
    Interest,
    Patience,
    Streak,
    disable_reason,
    gives_up,
    overlap,
    subject_problems,
    url_problem,
)

NOW = datetime(2026, 11, 30, 10, tzinfo=UTC)
PATIENCE = Patience(first_retry=5, longest_retry=3600, attempts=12, disable_after=86_400)


def matches(pattern: list[str], subject: list[str]) -> bool:
    """As the broker does it."""
    for index, token in enumerate(pattern):
        if token == ">":
            return len(subject) > index
        if index >= len(subject) or token not in ("*", subject[index]):
            return False
    return len(pattern) == len(subject)


patterns = st.lists(st.sampled_from("ab*"), min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([tokens, [*tokens, ">"]])
)


@given(one=patterns, other=patterns)
def test_two_subjects_overlap_when_something_matches_both(one: list[str], other: list[str]) -> None:
    words = [[first] for first in "ab"]
    subjects = list(words)
    for _ in range(4):
        words = [[*word, token] for word in words for token in "ab"]
        subjects += words
    common = any(matches(one, subject) and matches(other, subject) for subject in subjects)
    assert overlap(".".join(one), ".".join(other)) == common
    assert overlap(".".join(other), ".".join(one)) == common


@pytest.mark.parametrize("subject", ["evt.*.acme.>", "evt.fra1.acme.cost.usage.metered.v1", "evt.-.acme.identity.>"])
def test_a_tenant_subscribes_within_itself(subject: str) -> None:
    assert subject_problems([subject], "acme") == []


@pytest.mark.parametrize(
    "subject", ["evt.>", "evt.*.*.cost.>", "evt.*.globex.>", "evt.*", "evt..acme.>", "evt.*.acme.>.x", "", "evt.*.ac>"]
)
def test_nobody_subscribes_beyond_their_tenant_or_to_what_is_no_subject(subject: str) -> None:
    assert subject_problems([subject], "acme") != []


@pytest.mark.parametrize(
    "subject",
    [
        "evt.fra1.acme.cost",
        "evt.*.acme.nosuch.>",
        "evt.*.acme.inventory.machine.state_changd.v1",
        "evt.*.acme.cost.usage",
    ],
)
def test_a_subject_that_can_match_nothing_is_refused(subject: str) -> None:
    assert "matches no event" in subject_problems([subject], "acme")[0]


def test_operators_subscribe_to_everything_but_only_to_events() -> None:
    assert subject_problems(["evt.>"], "-") == []
    assert subject_problems(["cmd.>"], "-") != []
    assert subject_problems([], "-") != []


@pytest.mark.parametrize("url", ["https://a.example/x", "https://a.example:8443/x?y=1"])
def test_an_https_url_is_fine(url: str) -> None:
    assert url_problem(url, plain_http=False) == ""


@pytest.mark.parametrize(
    "url",
    ["http://a.example", "file:///etc/passwd", "https://u:p@a.example", "https://a.example/#x", "https://", "x y"],
)
def test_what_is_no_https_url_is_refused_with_a_reason(url: str) -> None:
    assert url_problem(url, plain_http=False) != ""


def test_waiting_doubles_up_to_the_longest_and_heeds_what_the_receiver_asks() -> None:
    assert [PATIENCE.wait(n).total_seconds() for n in (1, 2, 3, 30)] == [5, 10, 20, 3600]
    assert PATIENCE.wait(1, asked=120).total_seconds() == 120
    assert PATIENCE.wait(1, asked=1e9).total_seconds() == 3600


def failing(failures: int, hours: float) -> Streak:
    return Streak(failures, NOW - timedelta(hours=hours))


def test_a_webhook_is_disabled_after_long_failure_and_at_once_when_gone() -> None:
    assert disable_reason(failing(5, 25), 500, NOW, PATIENCE).startswith("nothing got through since 2026-11-29")
    assert disable_reason(failing(5, 23), 500, NOW, PATIENCE) == ""
    assert disable_reason(failing(1, 25), 500, NOW, PATIENCE) == ""  # One event failed; that is not the receiver.
    assert "410" in disable_reason(Streak(), 410, NOW, PATIENCE)


def test_one_success_ends_a_streak() -> None:
    streak = Streak().after(False, NOW).after(False, NOW + timedelta(seconds=5))
    assert streak == Streak(2, NOW)
    assert streak.after(True, NOW) == Streak()


def test_an_event_is_given_up_only_while_others_get_through() -> None:
    assert gives_up(12, Streak(), PATIENCE)
    assert not gives_up(11, Streak(), PATIENCE)
    assert not gives_up(100, failing(3, 1), PATIENCE)


def test_an_interest_is_met_by_all_that_it_names() -> None:
    event = {"source": "/slipway/cost", "type": "slipway.cost.usage.metered", "subject": "usg-1"}
    assert Interest().matches(event)
    assert Interest(frozenset({"cost"}), frozenset({event["type"]}), frozenset({"usg-1"})).matches(event)
    assert not Interest(frozenset({"audit"})).matches(event)
    assert not Interest(entities=frozenset({"usg-2"})).matches(event)
