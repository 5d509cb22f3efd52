"""A reader's position goes through text and back, and anything else is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.bus.position import BadPosition, Numbering, Position

instants = st.none() | st.integers(0, 4_000_000_000_000).map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC))
seen = st.dictionaries(st.text("abc/-", min_size=1, max_size=20), st.integers(0, 2**53), max_size=8)


@given(numbering=st.sampled_from(list(Numbering)), since=instants, seen=seen)
def test_a_position_is_the_same_after_text_and_back(
    numbering: Numbering, since: datetime | None, seen: dict[str, int]
) -> None:
    position = Position(numbering, since, seen)
    assert Position.parse(position.token(), numbering) == position


@given(st.text(max_size=200))
def test_any_other_text_is_refused_and_never_crashes(text: str) -> None:
    try:
        Position.parse(text, Numbering.SERVICE)
    except BadPosition as error:
        assert "id" in str(error)
    else:
        assert Position.parse(text, Numbering.SERVICE).token().startswith("W")  # It was one of ours after all.


def test_a_position_of_another_kind_of_reader_is_refused() -> None:
    with pytest.raises(BadPosition, match="another kind"):
        Position.parse(Position(Numbering.TENANT).token(), Numbering.SERVICE)


def test_the_time_never_goes_back() -> None:
    later, earlier = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    position = Position(Numbering.SERVICE, later).after("cost", 1, earlier)
    assert (position.since, position.seen) == (later, {"cost": 1})
