"""Every provision state of the installed Ironic has a row in our table, and the rows agree with Ironic's own."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from deploy.lab.interpreters import VAR
from deploy.lab.ironic.venv import IronicVenv
from libs.contracts.inventory import MachineState as S
from libs.contracts.provision_states import PROVISION_STATES, Course, Next, fits, names

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

_READ = """
import json
from ironic.common import state_machine, states
machine = state_machine.machine._transitions
print(json.dumps({
    "all": sorted(states.ALL_STATES | set(machine)), "stable": sorted(states.STABLE_STATES),
    "unstable": sorted(states.UNSTABLE_STATES), "failed": sorted(states.FAILURE_STATES),
    "events": {state: sorted(machine[state]) for state in machine},
}))
"""
# What the verbs are called inside Ironic's state machine.
_EVENT = {Next.MANAGE: "manage", Next.DELETED: "delete", Next.ABORT: "abort"}


@pytest.fixture(scope="module")
def ironic() -> dict[str, Any]:
    """Ironic's own states, groups of them and events out of each."""
    venv = IronicVenv(VAR)
    venv.install()
    read = [str(venv.python), "-W", "ignore", "-c", _READ]
    found: dict[str, Any] = json.loads(subprocess.run(read, capture_output=True, text=True, check=True).stdout)
    return found


def test_every_provision_state_of_ironic_has_a_row_and_no_row_is_made_up(ironic: dict[str, Any]) -> None:
    assert sorted(PROVISION_STATES) == ironic["all"]


def test_what_moves_rests_and_has_failed_is_what_ironic_says(ironic: dict[str, Any]) -> None:
    assert set(ironic["unstable"]) <= names(Course.MOVES)
    assert names(Course.FAILED) == {*ironic["failed"], "error"}
    assert set(ironic["stable"]) - {"error"} == names(Course.RESTS)
    assert names(Course.HELD) == {state for state in ironic["all"] if state.endswith(" hold")}


def test_every_verb_that_the_satellite_would_order_is_allowed_from_the_state(ironic: dict[str, Any]) -> None:
    wrong = [
        (state.name, verb.value)
        for state in PROVISION_STATES.values()
        for verb in (state.to_manageable, state.to_free)
        if verb in _EVENT and _EVENT[verb] not in ironic["events"].get(state.name, [])
    ]
    assert wrong == []


def test_every_occupied_state_has_a_way_to_be_freed_and_none_may_be_offered() -> None:
    for state in PROVISION_STATES.values():
        assert not state.occupied or state.to_free is not Next.DONE, state.name
        assert not (state.occupied and {S.AVAILABLE, S.CLAIMED, S.VALIDATING, S.SANITIZING} & set(state.fits)), (
            state.name
        )
        assert S.RETIRED not in state.fits, state.name


def test_a_failed_clean_fits_no_machine_that_is_offered_and_an_unknown_state_is_not_judged() -> None:
    assert fits("clean failed", S.AVAILABLE) is False
    assert fits("available", S.AVAILABLE) is True
    assert fits("state of a later Ironic", S.AVAILABLE) is None
