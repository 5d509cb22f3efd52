"""What goes wrong in a run follows from its seed, is carried out by somebody, and hits something that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import brokers
from chaos.faults import MACHINE_FAULTS, Faults
from chaos.journal import Journal
from chaos.plan import kinds, plan
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
    drawn = {fault.kind for fault in plan("a", 500, EVERY_KIND)}
    assert drawn == set(kinds())
    assert [name for name in drawn if not callable(getattr(Faults, name, None))] == []


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
