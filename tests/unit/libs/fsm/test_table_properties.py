"""Tables at random and the real ones: nothing strands, nothing flaps, every pair is listed or refused."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from libs.fsm import IllegalTransition, Limit, Table, Transition
from tools.generation.pages import state_tables


class Letter(StrEnum):
    A = "A"
    B = "B"
    C = "C"
    D = "D"


LETTERS = st.sampled_from(list(Letter))
EVENTS = ("go", "back", "stop", "turn")


@st.composite
def tables(draw: st.DrawFn) -> Table[Letter]:
    """A table that its constructor accepts."""
    # A ring through all letters, so that most are accepted; D, the final one, may be left, too.
    ring = [
        Transition("go", (source,), target)
        for source, target in zip(Letter, [*list(Letter)[1:], Letter.A], strict=True)
    ]
    moves = st.builds(
        Transition,
        st.sampled_from(EVENTS[1:]),
        st.lists(LETTERS, min_size=1, max_size=3, unique=True).map(tuple),
        LETTERS,
    )
    transitions = [*ring[: draw(st.integers(3, 4))], *draw(st.lists(moves, max_size=3))]
    limits = draw(st.dictionaries(st.sampled_from(list(Letter)[:3]), st.just(Limit(9, "go")), max_size=3))
    try:
        return Table("letter", Letter, (Letter.A,), (Letter.D,), transitions, limits=limits, restful=tuple(Letter))
    except ValueError as error:
        assert "twice" in str(error), "one event with two targets is all that can be wrong with these"
        reject()


@given(tables())
def test_every_pair_of_state_and_event_is_listed_or_refused(table: Table[Letter]) -> None:
    for state in Letter:
        for event in EVENTS:
            listed = [t.target for t in table.transitions if t.event == event and state in t.sources]
            assert len(listed) <= 1
            if listed:
                assert table.allows(state, event) and table.target(state, event) is listed[0]
                assert f"{state} --> {listed[0]}: {event}" in table.mermaid()
                continue
            assert not table.allows(state, event)
            with pytest.raises(IllegalTransition) as refused:
                table.target(state, event)
            assert set(refused.value.allowed) == set(table.events(state))


@given(tables())
def test_every_state_is_reached_and_left(table: Table[Letter]) -> None:
    reached = {Letter.A}
    for _ in Letter:
        reached |= {t.target for t in table.transitions if reached & set(t.sources)}
    assert reached == set(Letter)
    assert all(table.events(state) for state in Letter if state is not Letter.D)


REAL = [pytest.param(table, id=f"{service}.{table.name}") for service, table in state_tables()]


@pytest.mark.parametrize("table", REAL)
def test_from_every_state_of_a_real_lifecycle_a_final_or_restful_one_can_be_reached(table: Table[Any]) -> None:
    good = {*table.final, *table.restful}
    for _ in table.states:
        good |= {source for t in table.transitions if t.target in good for source in t.sources}
    assert set(table.states) <= good, f"no way to rest from {sorted(set(table.states) - good)}"


@pytest.mark.parametrize("table", REAL)
def test_time_limits_alone_never_go_round_in_a_circle(table: Table[Any]) -> None:
    """When nobody acts, each state ends where a human is asked or it may rest, instead of flapping."""
    for start in table.limits:
        state, seen = start, []
        while state in table.limits:
            assert state not in seen, f"{table.name}: {' → '.join([*seen, state])}"
            seen.append(state)
            state = table.target(state, table.limits[state].then)


def test_there_are_real_lifecycles() -> None:
    assert len(REAL) >= 3
