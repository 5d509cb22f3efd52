"""What goes wrong in a run follows from its seed, is carried out by somebody, and hits something that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos import brokers
from chaos.faults import MACHINE_FAULTS, MOST_AT_ONCE, Faults
from chaos.journal import Journal
from chaos.plan import EARLY, Fault, kinds, plan
from chaos.run import Settings
from chaos.world import World
from deploy.local.layout import Ports
from deploy.local.stack import Stack

EVERY_KIND = tuple(kinds().values())


def test_the_same_seed_gives_the_same_faults_and_another_gives_others() -> None:
    assert plan("a", 200, EVERY_KIND) == plan("a", 200, EVERY_KIND)
    assert plan("a", 200, EVERY_KIND) != plan("b", 200, EVERY_KIND)


def test_more_faults_of_a_seed_begin_with_the_fewer() -> None:
    assert plan("a", 200, EVERY_KIND)[:50] == plan("a", 50, EVERY_KIND)


def test_every_kind_of_fault_is_drawn_and_somebody_carries_it_out() -> None:
    drawn = {fault.kind for seed in "abcdefghij" for fault in plan(seed, 100, EVERY_KIND)}
    assert drawn == set(kinds())
    assert [name for name in drawn if not callable(getattr(Faults, name, None))] == []


def test_what_must_be_alone_comes_early_and_once() -> None:
    for seed in "abcdefghijklmnopqrstuvwxyz":
        alone = [fault for fault in plan(seed, 200, EVERY_KIND) if fault.alone]
        assert len(alone) <= 1 and all(fault.number <= EARLY for fault in alone)
    assert [fault.kind for fault in plan("a", 2, [kinds()["restore_database"]])] == ["restore_database"] * 2


class _Noted(Faults):
    """Faults that only note when they begin and end; each lasts until a line was noted."""

    def __init__(self, until: dict[int, str]) -> None:
        self.order: list[str] = []
        self.until = until

    async def _one(self, fault: Fault, done: Callable[[Fault], None]) -> None:
        self.order.append(f"{fault.number} begins")
        while self.until[fault.number] not in self.order:
            await asyncio.sleep(0.001)
        self.order.append(f"{fault.number} ends")


async def test_the_next_fault_waits_for_those_that_hold_it_up_and_for_no_others() -> None:
    def fault(number: int, **how: Any) -> Fault:
        return Fault(number, "kill", "x", 0.0, 0.0, **how)

    lasting, alone = fault(1, lasting=True), fault(5, alone=True)
    wanted = [lasting, fault(2), fault(3), fault(4, together=True), alone, fault(6, lasting=True)]
    noted = _Noted({1: "3 ends", 2: "2 begins", 3: "4 ends", 4: "4 begins", 5: "5 begins", 6: "6 begins"})
    await noted.run(wanted, lambda fault: None)
    assert noted.order == [
        *("1 begins", "2 begins", "2 ends", "3 begins", "4 begins", "4 ends", "3 ends", "1 ends"),
        *("5 begins", "5 ends", "6 begins", "6 ends"),
    ]


async def test_no_more_than_four_faults_last_at_once() -> None:
    noted = _Noted(dict.fromkeys(range(1, 9), f"{MOST_AT_ONCE} begins"))
    await noted.run([Fault(number, "skew", "x", 0.0, 0.0, lasting=True) for number in range(1, 9)], lambda fault: None)
    lasting = most = 0
    for line in noted.order:
        lasting += 1 if line.endswith("begins") else -1
        most = max(most, lasting)
    assert most == MOST_AT_ONCE and len(noted.order) == 16


@pytest.mark.parametrize("hubs", [brokers.ONE, brokers.THREE])
def test_every_target_is_there(hubs: tuple[str, ...], tmp_path: Path) -> None:
    world = World(Stack(tmp_path, Ports(24000), "sim"), Journal(tmp_path / "journal.jsonl"), hubs)
    found = kinds(hubs)
    for name in ("kill", "pause", "skew"):
        assert set(found[name].targets) <= set(world.names)
    for name in ("cut_database", "break_commit"):
        assert {f"pg:{target}" for target in found[name].targets} <= set(world.links)
    assert set(found["break_machine"].targets) == set(MACHINE_FAULTS)


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no kind of fault earthquake; there are kill, .*kill_all"):
        Settings(seed="a", faults=3, out=tmp_path, only=("kill", "earthquake")).planned()
