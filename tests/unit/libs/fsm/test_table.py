"""A table refuses at construction what could strand an entity."""

from __future__ import annotations

from enum import StrEnum

import pytest

from libs.fsm import IllegalTransition, Limit, Table, Transition


class Door(StrEnum):
    OPEN = "OPEN"
    SHUT = "SHUT"
    GONE = "GONE"


OPEN_IT = Transition("open", (Door.SHUT,), Door.OPEN)
SHUT_IT = Transition("shut", (Door.OPEN,), Door.SHUT)
REMOVE = Transition("remove", (Door.OPEN, Door.SHUT), Door.GONE)


def table(*transitions: Transition[Door], **more: object) -> Table[Door]:
    arguments: dict[str, object] = {"restful": (Door.SHUT,), "human": {Door.OPEN: "somebody shuts it"}} | more
    return Table("door", Door, (Door.SHUT,), (Door.GONE,), transitions, **arguments)  # type: ignore[arg-type]


def test_an_event_leads_where_the_table_says() -> None:
    assert table(OPEN_IT, SHUT_IT, REMOVE).target(Door.SHUT, "open") is Door.OPEN


def test_an_event_that_is_not_listed_is_refused_naming_those_that_are() -> None:
    with pytest.raises(IllegalTransition, match="can't shut; it can: open, remove"):
        table(OPEN_IT, SHUT_IT, REMOVE).target(Door.SHUT, "shut")


def test_a_state_that_is_never_reached_is_refused() -> None:
    with pytest.raises(ValueError, match="never reached"):
        table(SHUT_IT, REMOVE)


def test_a_state_without_a_way_out_is_refused() -> None:
    with pytest.raises(ValueError, match="no way out of OPEN"):
        table(OPEN_IT, Transition("remove", (Door.SHUT,), Door.GONE))


def test_a_state_that_could_last_for_ever_unseen_is_refused() -> None:
    with pytest.raises(ValueError, match="OPEN has no time limit"):
        table(OPEN_IT, SHUT_IT, REMOVE, human={})


def test_a_limit_must_fire_an_event_that_the_state_lists() -> None:
    with pytest.raises(ValueError, match="does not list"):
        table(OPEN_IT, SHUT_IT, REMOVE, limits={Door.OPEN: Limit(60, "explode")})


def test_one_event_may_not_lead_to_two_states() -> None:
    with pytest.raises(ValueError, match="lists open twice"):
        table(OPEN_IT, Transition("open", (Door.SHUT,), Door.GONE), SHUT_IT, REMOVE)


def test_the_diagram_shows_limits() -> None:
    drawn = table(OPEN_IT, SHUT_IT, REMOVE, limits={Door.OPEN: Limit(120, "shut")}).mermaid()
    assert "SHUT --> OPEN: open" in drawn and "within 2 min, else shut" in drawn
