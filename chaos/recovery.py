"""How long until everything goes on after kill -9 of every process at once: `python -m chaos.recovery`.

Machines are enrolled and clusters made; when enough processes are under way, all programs and servers are killed and
started again at once. A saga goes on when its row has been decided upon since.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg

from chaos import wire
from chaos.driver import Crowd
from chaos.journal import Journal
from chaos.run import PORTS_ABOVE_LOCAL, RACKS
from chaos.world import PROCESSES, World
from deploy.local.layout import REPOSITORY, SERVICES, Ports
from deploy.local.stack import Stack
from libs.runtime.logs import set_up_logging

ENOUGH_SAGAS = 12
CLUSTERS = 3
# A batch is decided upon only when one of its machines is done; the machines' own sagas say whether it goes on.
BATCHES = ("enrol_machines",)
LOOK_SECONDS = 0.05
LIMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Recovery:
    """`sagas` were open at the kill. Seconds count from the moment when the first program was started again.

    `ready_seconds`: every program says that it is ready; `moving_seconds`: every saga has gone on, `last_saga` as the
    last; `moving_after_ready_seconds`: the part of it that came after the restart, 0 when all went on before its end.
    """

    sagas: int
    ready_seconds: float
    moving_seconds: float
    moving_after_ready_seconds: float
    last_saga: str


async def measure(folder: Path) -> Recovery:
    """One measurement on a system of its own below `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    stack = Stack(folder / "world", Ports(Ports.from_environment().base + PORTS_ABOVE_LOCAL), "sim")
    async with World(stack, Journal(folder / "journal.jsonl")) as world:
        crowd = Crowd(stack, "recovery", _public_key(folder))
        try:
            await _work(crowd)
            return await _kill_and_watch(world)
        finally:
            crowd.stop.set()
            await crowd.close()


def _public_key(folder: Path) -> str:
    path = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "recovery", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


async def _work(crowd: Crowd) -> None:
    """One rack is enrolled; two more, and clusters, are under way."""
    await crowd.first_machines(RACKS[0])
    operator, alice = crowd.person("operator", "operator-1"), crowd.person("alice", "alice-0")
    for rack in RACKS[1:]:
        await operator.ask("POST", "/enrolments", {"racks": [rack]})
    for number in range(CLUSTERS):
        wanted = {"name": f"c-{number}", "profile": "h100-sxm-8", "node_count": 1}
        await alice.ask("POST", "/clusters", {**wanted, "ssh_authorized_keys": [crowd.public_key]})


async def _kill_and_watch(world: World) -> Recovery:
    async with asyncio.timeout(LIMIT_SECONDS):
        while len(await _open_sagas(world)) < ENOUGH_SAGAS:  # noqa: ASYNC110 (it is another process's work)
            await asyncio.sleep(LOOK_SECONDS)
        async with world.hold(*world.names):
            await asyncio.gather(*(world.kill(name) for name in world.names))
            await asyncio.to_thread(world.process("postgres").start)
            before = await _open_sagas(world)  # What was committed; nothing else runs yet.
            began = time.monotonic()
        ready = asyncio.create_task(_ready(world, began))
        moving, last = await _all_moved(world, before, began)
        ready_seconds = await ready
    return Recovery(len(before), ready_seconds, moving, round(max(0.0, moving - ready_seconds), 3), last)


async def _ready(world: World, began: float) -> float:
    await world.ready(PROCESSES)
    return round(time.monotonic() - began, 3)


async def _all_moved(world: World, before: Mapping[str, int], began: float) -> tuple[float, str]:
    """Seconds until every saga's version has risen, and the last one."""
    left, last = dict(before), ""
    while left:
        versions = await _versions(world, list(left))
        for saga in [saga for saga, version in left.items() if versions.get(saga, 0) > version]:
            del left[saga]
            last = saga
        await asyncio.sleep(LOOK_SECONDS)
    return round(time.monotonic() - began, 3), last


async def _open_sagas(world: World) -> dict[str, int]:
    """Saga → version, of those that a crash could stop."""
    return await _read(world, "phase IN ('running', 'undoing') AND kind <> ALL($1)", list(BATCHES))


async def _versions(world: World, ids: list[str]) -> dict[str, int]:
    return await _read(world, "id = ANY($1)", ids)


async def _read(world: World, condition: str, argument: list[str]) -> dict[str, int]:
    unions = " UNION ALL ".join(f"SELECT id, version FROM {name}.saga WHERE {condition}" for name in SERVICES)
    try:
        async with wire.database(world) as db:
            return {row["id"]: row["version"] for row in await db.fetch(unions, argument)}
    except (OSError, asyncpg.PostgresError):
        return {}


def row(found: Recovery) -> dict[str, Any]:
    """The measurement as JSON has it."""
    return asdict(found)


if __name__ == "__main__":
    set_up_logging("recovery", "pretty", "error")
    print(json.dumps(row(asyncio.run(measure(REPOSITORY / "var" / "chaos" / "recovery"))), indent=2))
