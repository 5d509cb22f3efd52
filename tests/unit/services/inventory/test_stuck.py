"""Which machines are stuck, why, whose turn it is and what to run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from libs.contracts.inventory import Hold
from libs.contracts.inventory import MachineState as S
from libs.contracts.replies import Problem
from services.inventory.model import holds, renewal
from services.inventory.model.machine import Machine
from services.inventory.model.stuck import Stuck, stuck
from services.inventory.states import HUMAN_WITHIN, MACHINE
from tests.unit.services.inventory.machines import (
    assigned,
    at,
    available,
    changed,
    claimed,
    machine,
    sanitizing,
)

BROKEN = Problem(code="test.broken", message="PSU 2 is dead", next_step="Replace it, then retry.")


def failed() -> Machine:
    return changed(renewal.mark_failed(sanitizing(), operation_id=None, problem=BROKEN, now=at(10)))


def found(of: Machine, phase: str = "", minutes: float = 60) -> Stuck:
    one = stuck(of, phase, at(minutes))
    assert one is not None
    return one


@pytest.mark.parametrize(
    ("of", "phase"),
    [
        pytest.param(machine(), "", id="expected"),
        pytest.param(sanitizing(), "running", id="being wiped"),
        pytest.param(sanitizing(), "undoing", id="being given up"),
        pytest.param(available(), "", id="available"),
        pytest.param(claimed(), "", id="claimed"),
        pytest.param(assigned(), "", id="assigned"),
    ],
)
def test_what_goes_on_or_may_rest_is_not_stuck(of: Machine, phase: str) -> None:
    assert stuck(of, phase, at(20)) is None


def test_a_step_that_nobody_works_on_names_the_clocks_step_and_the_way_to_go_on_at_once() -> None:
    one = found(sanitizing())
    assert (one.turn, one.over) == ("clock", False)
    assert "no operation" in one.why and "fail" in one.next_step
    assert one.command == "slipway machines give-up fra1-r1-gpu-01 --reason TEXT"
    assert found(sanitizing(), minutes=9 * 60).over


def test_an_operation_that_waits_for_a_person_is_named() -> None:
    one = found(sanitizing(), "parked")
    assert one.turn == "person" and one.command.startswith("slipway operations resume op-inv-")


def test_what_a_person_has_to_do_is_over_its_limit_after_its_time() -> None:
    one = found(failed())
    assert (one.turn, one.over, one.next_step) == ("person", False, BROKEN.next_step)
    assert "PSU 2 is dead" in one.why and one.command == "slipway machines retry fra1-r1-gpu-01"
    assert found(failed(), minutes=25 * 60).over
    out = changed(holds.quarantine(available(), BROKEN, at(10)))
    assert found(out).command == "slipway machines release fra1-r1-gpu-01 --reason TEXT"


def test_what_the_clock_should_have_ended_long_ago_is_told() -> None:
    late = claimed()
    assert late.deadline_at is not None
    assert stuck(late, "", late.deadline_at) is None
    one = stuck(late, "", late.deadline_at + timedelta(minutes=2))
    assert one is not None and one.over and "release" in one.why


def test_a_machine_that_is_offered_and_held_or_of_no_use_is_told() -> None:
    hold = Hold(id="h-1", owner="user:ann", reason="cabling", since=at(30))
    held = changed(holds.add_hold(available(), hold))
    assert found(held).command == "slipway machines unhold fra1-r1-gpu-01 h-1"
    forgotten = changed(holds.add_hold(machine(), hold))
    assert stuck(forgotten, "", at(60)) is None
    assert found(forgotten, minutes=30 + 8 * 24 * 60).over
    useless = available().with_(profile=None)
    assert "no profile" in found(useless).why


def test_every_state_has_a_limit_a_human_task_with_its_time_or_may_rest() -> None:
    assert set(HUMAN_WITHIN) == set(MACHINE.human)
    for state in S:
        assert state in MACHINE.final or state in MACHINE.limits or state in HUMAN_WITHIN or state in MACHINE.restful
