"""One run: start the world, let people use it while it is hurt, let it come to rest, judge what was recorded."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos import brokers, wire
from chaos.breaches import Broken
from chaos.driver import Crowd
from chaos.faults import Faults
from chaos.history import History
from chaos.journal import Journal
from chaos.plan import Fault, kinds, plan
from chaos.reads import read_end
from chaos.rest import come_to_rest
from chaos.rules import judge
from chaos.witness import Witness
from chaos.world import World
from deploy.lab.fleet import load_fleet
from deploy.local.layout import Ports
from deploy.local.stack import Stack
from libs.runtime.processes import StartError

PORTS_ABOVE_LOCAL = 600
# The last requests are asked of a system that is whole again; who is not answered by then never will be.
SETTLE_SECONDS = 300.0
# Half a minute on a quiet machine.
FIRST_SECONDS = 300.0
RACKS = ("r1", "r2", "r3")


@dataclass(frozen=True)
class Settings:
    """What a run is. `only` names kinds of faults, all of them when empty; `hubs` is 1 or 3.

    `out` gets a folder a seed.
    """

    seed: str
    faults: int
    out: Path
    only: tuple[str, ...] = ()
    hubs: int = 1
    tenants_each: int = 3
    keep: bool = False
    pace: float = 1.0

    @property
    def folder(self) -> Path:
        return self.out / f"seed-{self.seed}"

    def planned(self) -> list[Fault]:
        """Raises ValueError naming a kind that there is not."""
        names = brokers.ONE if self.hubs == 1 else brokers.THREE
        known = kinds(names, tuple(machine.name for machine in load_fleet().machines))
        unknown = [name for name in self.only if name not in known]
        if unknown:
            raise ValueError(f"there is no kind of fault {', '.join(unknown)}; there are {', '.join(known)}")
        return plan(self.seed, self.faults, [known[name] for name in self.only or known], self.pace)


@dataclass
class Outcome:
    """How a run ended. `broken` is empty and `not_inflicted` too when all is well."""

    settings: Settings
    seconds: float = 0.0
    inflicted: Counter[str] = field(default_factory=Counter)
    not_inflicted: list[str] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    history: History | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    heard: int = 0
    lost: int = 0
    commits_broken: int = 0
    connections_cut: int = 0

    @property
    def ok(self) -> bool:
        return self.history is not None and not self.broken and not self.not_inflicted


async def run(settings: Settings, tell: Callable[[str], None]) -> Outcome:
    """One run from nothing. Raises StartError when the system can't even be started."""
    began = time.monotonic()
    folder = _fresh(settings)
    journal = Journal(folder / "journal.jsonl", tell)
    outcome = Outcome(settings)
    stack = Stack(folder / "world", Ports(Ports.from_environment().base + PORTS_ABOVE_LOCAL), "sim")
    try:
        faults = settings.planned()
        journal.note("plan", seed=settings.seed, faults=[str(fault) for fault in faults])
        async with World(stack, journal, brokers.ONE if settings.hubs == 1 else brokers.THREE) as world:
            async with Witness(*wire.hub_login(world)) as witness:
                outcome.history = await _hurt(settings, world, witness, faults, journal, outcome)
            outcome.restarts, outcome.heard = dict(world.restarts), witness.heard
            outcome.commits_broken = sum(link.commits_broken for link in world.links.values())
            outcome.connections_cut = sum(link.connections_cut for link in world.links.values())
    finally:
        journal.close()
        outcome.seconds = time.monotonic() - began
    outcome.history.write(folder / "history.json")
    outcome.broken = judge(outcome.history)
    if outcome.ok and not settings.keep:
        shutil.rmtree(stack.var)  # Of a run that failed everything is kept: logs, tables, streams.
    return outcome


def _fresh(settings: Settings) -> Path:
    shutil.rmtree(settings.folder, ignore_errors=True)
    settings.folder.mkdir(parents=True)
    return settings.folder


def _public_key(folder: Path) -> str:
    """A key pair of this run; nobody logs in, so its private half is not kept."""
    path = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "chaos", "-f", str(path)], check=True)
    path.unlink()
    return path.with_suffix(".pub").read_text().strip()


async def _hurt(
    settings: Settings, world: World, witness: Witness, planned: Sequence[Fault], journal: Journal, outcome: Outcome
) -> History:
    crowd = Crowd(world.stack, settings.seed, _public_key(settings.folder), settings.tenants_each)
    await _first_machines(crowd)
    living = asyncio.create_task(crowd.live(RACKS[1:]))
    faults = Faults(world, journal, settings.seed, crowd.person("operator", "operator-faults"))

    def done(fault: Fault) -> None:
        outcome.inflicted[fault.kind] += 1
        told = f"{fault.number:>4}/{len(planned)}  {fault}   ({len(crowd.book.accepted)} operations so far)"
        journal.note("progress", told)

    try:
        await faults.run(list(planned), done)
        outcome.not_inflicted, outcome.lost = faults.failed, faults.lost
        await world.mend()
        await world.declare()
        await _settle(crowd, living, journal)
        await _calm_down(world)
        at_rest = await come_to_rest(world, lambda line: journal.note("rest", line))
        end = await read_end(world, crowd, witness, at_rest=at_rest, restores=faults.restores)
        return end.model_copy(update={"written": faults.written})
    finally:
        living.cancel()
        with contextlib.suppress(BaseException):
            await living
        await crowd.close()


async def _first_machines(crowd: Crowd) -> None:
    """Before anything is hurt, so that a system that never worked is told apart from one that faults broke."""
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            await crowd.first_machines(RACKS[0])
    except TimeoutError:
        raise StartError(
            f"rack {RACKS[0]} was not enrolled within {FIRST_SECONDS:.0f} s, before any fault; see the logs below "
            f"{crowd.stack.var / 'log'}"
        ) from None


async def _settle(crowd: Crowd, living: asyncio.Task[None], journal: Journal) -> None:
    """Nobody begins anything new; what was asked is asked until it is answered, within reason."""
    journal.note("settle", "no more faults, no more requests; waiting for answers and for rest")
    crowd.stop.set()
    done, _ = await asyncio.wait([living], timeout=SETTLE_SECONDS)
    for task in done:
        task.result()  # A person who stumbled is a fault of the harness.


async def _calm_down(world: World) -> None:
    """Nothing more is begun by the clock alone: inventory goes back to its usual settings."""
    world.calm = True
    async with world.hold("inventory"):
        await world.kill("inventory")
