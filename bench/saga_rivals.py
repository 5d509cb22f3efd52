"""saga.vs_temporal and saga.vs_dbos: six steps that do nothing, 50 at a time, on two engines others build on.

All three in the same run, in turns. Ours is the service of `saga.throughput` with a handler without effect: every step
is still a kept command and a kept answer. The peers live in an environment of their own
below `var/`, pinned by bench/peers/requirements.txt.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from bench.rows import Row, load_note, pair_ratio
from bench.saga_parts import AT_ONCE, STEPS
from bench.sagas import ours
from bench.servers import REPOSITORY, Part, Servers, program, servers
from deploy.lab.interpreters import find_python, make_venv, one_at_a_time
from libs.testing.servers import free_port

RUN_SECONDS, PAIRS = 6, 3
GOAL_RATIO = 3.0
PEERS = REPOSITORY / "bench" / "peers"
ENVIRONMENT = REPOSITORY / "var" / "bench-peers"
PYTHON = ENVIRONMENT / "venv" / "bin" / "python"
WHAT = {
    "temporal": "Temporal's test server and Python SDK, one worker: the server keeps its state in memory alone",
    "dbos": "DBOS on the same PostgreSQL",
}
# A network of its own for a server that listens on every interface; the words after it are its program.
_ALONE = ("sh", "-c", 'ip link set lo up && exec "$0" "$@"')


async def measure(folder: Path) -> list[Row]:
    """Both rows, from three turns of all three."""
    await asyncio.to_thread(_install)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in WHAT}
    cpu = ""
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            Path(name).chmod(0o755)
            with servers(Path(name)) as made:
                own, cpu = await ours(made, RUN_SECONDS, effect=False)
                pairs["temporal"].append((own, await _said(_temporal())))
                pairs["dbos"].append((own, await _said(_dbos(made))))
    return [_row(name, pairs[name], cpu) for name in WHAT]


def _install() -> None:
    with one_at_a_time(ENVIRONMENT / "lock"):
        make_venv(ENVIRONMENT / "venv", find_python((3, 11)), PEERS / "requirements.txt")


def _temporal() -> AbstractAsyncContextManager[Part]:
    server = PYTHON.with_name("temporal-test-server")
    script = (str(PYTHON), str(PEERS / "temporal_steps.py"), str(server), str(free_port()))
    return program(*_alone(), *script, str(RUN_SECONDS), str(AT_ONCE), str(STEPS))


@asynccontextmanager
async def _dbos(made: Servers) -> AsyncIterator[Part]:
    url = await made.database("dbos")
    script = (str(PYTHON), str(PEERS / "dbos_steps.py"), url)
    async with program(*script, str(RUN_SECONDS), str(AT_ONCE), str(STEPS)) as running:
        yield running


async def _said(peer: AbstractAsyncContextManager[Part]) -> float:
    """The peer's workflows a second."""
    async with peer as running:
        await running.go()
        said = await running.said()
    return float(said["count"] / (said["ended"] - said["began"]))


def _alone() -> tuple[str, ...]:
    """What to put before a program so that nobody outside reaches it; nothing where that is not allowed."""
    if shutil.which("unshare") and shutil.which("ip"):
        for flags in (("--net",), ("--map-root-user", "--net")):
            before = ("unshare", *flags, *_ALONE)
            if subprocess.run([*before, "true"], capture_output=True, check=False).returncode == 0:
                return before
    return ()


def _row(name: str, pairs: list[tuple[float, float]], cpu: str) -> Row:
    value, peer_value, of_peer = pair_ratio(pairs)
    turns = ", ".join(f"{own:.0f} to {peer:.0f}" for own, peer in pairs)
    return Row(
        id=f"saga.vs_{name}",
        what=f"durable sagas of {STEPS} steps that do nothing, {AT_ONCE} at once, command and answer kept",
        value=round(value, 1),
        unit="sagas/s",
        goal=f">= {GOAL_RATIO:.0f} of the peer's",
        met=of_peer >= GOAL_RATIO,
        peer=WHAT[name],
        peer_value=round(peer_value, 1),
        ratio=of_peer,
        note=f"runs {turns}, {RUN_SECONDS} s each; our {cpu}; {load_note()}",
    )
