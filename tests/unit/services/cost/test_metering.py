"""Usage lines from started and stopped facts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from services.cost.metering import Change, Line, Meter, NodeFact, start, stop, whole_seconds

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def fact(at: datetime, learnt_at: datetime | None = None, event_id: str = "e1") -> NodeFact:
    return NodeFact(event_id, "clu-1", "acme", "m1", "h100", 8, at, learnt_at or at)


def lines_of(*steps: tuple[str, datetime, datetime]) -> tuple[list[Line], list[str]]:
    """Play (what, at, learnt_at) and answer all lines and anomalies."""
    meter: Meter | None = None
    lines: dict[str, Line] = {}
    anomalies = []
    for number, (what, at, learnt_at) in enumerate(steps):
        change: Change = (start if what == "start" else stop)(meter, fact(at, learnt_at, f"e{number}"))
        meter = change.meter
        for line in change.added:
            assert line.id not in lines, "a line is added once"
            lines[line.id] = line
        if change.closed:
            line_id, stopped_at = change.closed
            assert lines[line_id].stopped_at is None, "a closed line is never changed"
            lines[line_id] = Line(**{**lines[line_id].__dict__, "stopped_at": stopped_at})
        if change.anomaly:
            anomalies.append(change.anomaly)
    return list(lines.values()), anomalies


def net(lines: list[Line]) -> int:
    return sum(line.seconds or 0 for line in lines)


def test_a_started_and_stopped_machine_is_one_line_of_whole_seconds() -> None:
    lines, anomalies = lines_of(("start", T0, T0), ("stop", T0 + timedelta(seconds=90), T0 + timedelta(seconds=91)))
    assert [(line.seconds, line.correction_of) for line in lines] == [(90, None)]
    assert anomalies == []


def test_a_running_machine_has_no_seconds_yet() -> None:
    lines, _ = lines_of(("start", T0, T0))
    assert lines[0].seconds is None


def test_a_stop_without_a_start_bills_nothing_and_is_noted() -> None:
    lines, anomalies = lines_of(("stop", T0, T0))
    assert lines == [] and len(anomalies) == 1


def test_a_stop_before_its_start_bills_nothing_and_is_noted() -> None:
    lines, anomalies = lines_of(("start", T0, T0), ("stop", T0 - timedelta(hours=1), T0))
    assert net(lines) == 0 and len(anomalies) == 1


def test_a_repeated_start_and_a_repeated_stop_change_nothing() -> None:
    end = T0 + timedelta(hours=1)
    lines, anomalies = lines_of(
        ("start", T0, T0), ("start", T0, T0), ("stop", end, end), ("stop", end, end), ("start", T0, T0)
    )
    assert [line.seconds for line in lines] == [3600]
    assert anomalies == []


def test_a_second_start_while_it_runs_is_noted_and_the_first_one_counts() -> None:
    end = T0 + timedelta(hours=2)
    lines, anomalies = lines_of(("start", T0, T0), ("start", T0 + timedelta(hours=1), end), ("stop", end, end))
    assert net(lines) == 7200 and len(anomalies) == 1


def test_an_earlier_stop_learnt_later_is_a_line_of_its_own_that_takes_back() -> None:
    end, earlier = T0 + timedelta(hours=2), T0 + timedelta(hours=1)
    lines, _ = lines_of(("start", T0, T0), ("stop", end, end), ("stop", earlier, end))
    assert [(line.seconds, line.correction_of is not None) for line in lines] == [(7200, False), (-3600, True)]


def test_a_later_stop_learnt_later_is_a_line_of_its_own_that_adds() -> None:
    end, later = T0 + timedelta(hours=1), T0 + timedelta(hours=2)
    lines, _ = lines_of(("start", T0, T0), ("stop", end, end), ("stop", later, later))
    assert [line.seconds for line in lines] == [3600, 3600]
    assert lines[1].correction_of == lines[0].id


def test_a_machine_can_join_the_same_cluster_again() -> None:
    one, two, three = (T0 + timedelta(hours=hours) for hours in (1, 2, 3))
    lines, anomalies = lines_of(("start", T0, T0), ("stop", one, one), ("start", two, two), ("stop", three, three))
    assert [line.seconds for line in lines] == [3600, 3600] and anomalies == []
    assert len({line.id for line in lines}) == 2


def test_a_restart_that_overlaps_the_last_interval_bills_no_second_twice() -> None:
    one, half, two = T0 + timedelta(hours=1), T0 + timedelta(minutes=30), T0 + timedelta(hours=2)
    lines, anomalies = lines_of(("start", T0, T0), ("stop", one, one), ("start", half, one), ("stop", two, two))
    assert net(lines) == 7200 and len(anomalies) == 1


def test_a_restart_at_the_second_of_an_empty_interval_is_a_line_of_its_own() -> None:
    before, end = T0 - timedelta(hours=1), T0 + timedelta(hours=1)
    lines, _ = lines_of(("start", T0, T0), ("stop", before, T0), ("start", before, T0), ("stop", end, end))
    assert [line.seconds for line in lines] == [0, 3600]


def test_a_stop_learnt_after_the_month_ended_leaves_the_months_line_and_books_a_correction() -> None:
    """Released 30 March 00:00, learnt 2 April: March was billed to its end, 48 h are taken back in April."""
    learnt = datetime(2026, 4, 2, 10, tzinfo=UTC)
    lines, _ = lines_of(("start", T0, T0), ("stop", datetime(2026, 3, 30, tzinfo=UTC), learnt))
    line, correction = lines
    assert line.stopped_at == datetime(2026, 4, 1, tzinfo=UTC)
    assert correction.seconds == -48 * 3600
    assert correction.booked_at == learnt
    assert (correction.started_at, correction.stopped_at) == (
        datetime(2026, 3, 30, tzinfo=UTC),
        datetime(2026, 4, 1, tzinfo=UTC),
    )


def test_a_start_learnt_after_the_month_ended_is_booked_as_a_correction_for_that_month() -> None:
    learnt, end = datetime(2026, 4, 2, tzinfo=UTC), datetime(2026, 4, 3, tzinfo=UTC)
    lines, _ = lines_of(("start", datetime(2026, 3, 31, tzinfo=UTC), learnt), ("stop", end, end))
    assert net(lines) == 3 * 86400
    assert sorted((line.seconds or 0, line.correction_of is not None) for line in lines) == [
        (86400, True),
        (2 * 86400, False),
    ]


moments = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))


@settings(deadline=None)  # A busy computer is no fault of the code.
@given(moments, moments, moments)
def test_adjacent_intervals_add_up_to_the_whole(a: datetime, b: datetime, c: datetime) -> None:
    first, middle, last = sorted((a, b, c))
    assert whole_seconds(first, middle) + whole_seconds(middle, last) == whole_seconds(first, last)


@settings(deadline=None)  # A busy computer is no fault of the code.
@given(moments, moments, moments, moments)
def test_the_last_word_on_the_stop_is_what_the_lines_add_up_to(
    a: datetime, b: datetime, c: datetime, d: datetime
) -> None:
    began = min(a, b, c)
    lines, _ = lines_of(("start", began, began), ("stop", b, max(b, d)), ("stop", c, max(b, c, d)))
    assert net(lines) == whole_seconds(began, c)
