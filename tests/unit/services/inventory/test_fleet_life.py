"""Weeks of a fleet's life: no false alarm of an invariant in normal work, and no machine stuck whatever is lost."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from functools import partial

import pytest

from libs.contracts.inventory import MachineState as S
from services.inventory.model.violations import Key, Round, Violation, learned, look
from services.inventory.states import MACHINE
from tests.unit.services.inventory.fleet_life import Faults, Fleet, Living

LOOK_EVERY = 10.0
# As long as anything that a change may cause is under way: the longest lag, a repeat, the longest grace.
WATCHED_SECONDS = 150


class Checker:
    """Looks at a machine every ten seconds for a while after each change, as the service does at all of them."""

    def __init__(self) -> None:
        self.known: dict[Key, Violation] = {}
        self.longest: dict[Key, timedelta] = {}
        self.told: list[Violation] = []
        self.until: dict[str, datetime] = {}
        self.looks = 0
        self.fleet: Fleet | None = None

    def changed(self, living: Living) -> None:
        fleet = self.fleet
        if fleet is None:
            return
        ends = fleet.now + timedelta(seconds=WATCHED_SECONDS)
        watched = self.until.get(living.machine.id, fleet.now) > fleet.now
        self.until[living.machine.id] = ends
        if not watched:
            fleet.after(fleet.random.uniform(0, LOOK_EVERY), lambda: self.look(living))

    def look(self, living: Living) -> None:
        fleet = self.fleet
        assert fleet is not None
        self.looks += 1
        self.take(look([fleet.subject(living)], self.known, self.longest, fleet.now))
        if fleet.now < self.until[living.machine.id]:
            fleet.after(LOOK_EVERY, lambda: self.look(living))

    def take(self, found: Round) -> None:
        for violation in found.forgotten:
            self.known.pop((violation.invariant, violation.subject), None)
        for violation in found.changed:
            self.known[violation.invariant, violation.subject] = violation
            if violation.opened_at is not None:
                self.told.append(violation)
        for key, lasted in found.lasted.items():
            self.longest[key] = learned(self.longest.get(key, timedelta(0)), lasted)


def _deafness(fleet: Fleet) -> None:
    """Now and then the hub hears nothing of the site for a while; then everything is told at once."""

    def begin() -> None:
        fleet.deaf = True
        fleet.after(fleet.random.uniform(60, 3 * 3600), end)

    def end() -> None:
        fleet.deaf = False
        for living in fleet.machines:
            fleet.after(fleet.random.uniform(0, 3), partial(fleet.tell, living))
        fleet.after(fleet.random.uniform(6 * 3600, 30 * 3600), begin)

    fleet.after(fleet.random.uniform(3600, 20 * 3600), begin)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_week_of_churn_raises_no_false_alarm(seed: int) -> None:
    checker = Checker()
    fleet = Fleet(20, seed, Faults(), checker.changed)
    checker.fleet = fleet
    _deafness(fleet)
    fleet.live(days=7)

    states = Counter(state for living in fleet.machines for _, state in living.history)
    assert states[S.ASSIGNED] > 60, states  # It was a busy week.
    assert min(states[state] for state in (S.FAILED, S.QUARANTINED, S.SANITIZING, S.RELEASING)) > 0, states
    assert checker.looks > 5_000
    assert [(one.invariant, one.name, one.ours, one.theirs) for one in checker.told] == []


def test_a_fault_in_the_middle_of_the_week_is_told_in_less_than_a_minute() -> None:
    checker = Checker()
    fleet = Fleet(20, 4, Faults(), checker.changed)
    checker.fleet = fleet
    fleet.live(days=3)
    offered = [one for one in fleet.machines if one.machine.state is S.AVAILABLE]
    assert offered
    for living in offered:
        fleet.see(living, power_state="on")
    seeded = fleet.now
    fleet.live(days=60 / 86_400)
    found = {one.subject for one in checker.told if one.invariant == "available-on"}
    still = {one.machine.id for one in offered if one.machine.state is S.AVAILABLE and one.machine.state_since < seeded}
    assert still and still <= found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_month_of_lost_processes_leaves_no_machine_stuck(seed: int) -> None:
    fleet = Fleet(30, seed, Faults(lost=0.03))
    fleet.live(days=30)

    assert sum(len(one.history) for one in fleet.machines) > 1_000
    late = [
        (one.machine.name, one.machine.state, one.machine.deadline_at)
        for one in fleet.machines
        if one.machine.deadline_at is not None and one.machine.deadline_at < fleet.now - timedelta(minutes=1)
    ]
    assert late == [], "over their limit, and nothing happened"
    waiting = [one for one in fleet.machines if one.machine.state in MACHINE.human]
    assert all(fleet.now - one.machine.state_since < timedelta(hours=21) for one in waiting)
    for one in waiting:
        assert one.machine.reason is not None and one.machine.reason.message
    # Each of them came into the pool again and again, whatever had happened to it.
    for one in fleet.machines:
        assert sum(state is S.AVAILABLE for _, state in one.history) >= 3, one.history
