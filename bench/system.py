"""Rows of the whole running system on the simulated site: api.create_cluster_p99, memory.all and cpu.idle.

One deployment with private ports below var/bench, started afresh: a cluster is created and deleted first, then CPU is
taken at rest and memory as it is then, and last the front door is asked at a fixed rate. Memory is PSS: what
processes share is divided among them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from slipway.client import Client

from bench.rows import Row, load_note, p99, ratio
from deploy.demo.people import People, signed_in
from deploy.demo.story import until
from deploy.lab.oidc.accounts import TENANT_AUDIENCE
from deploy.local.layout import REPOSITORY, Ports
from deploy.local.stack import Stack
from libs.runtime.processes import Process

VAR = REPOSITORY / "var" / "bench"
PORTS_ABOVE_LOCAL = 400
PROFILE = "h100-sxm-8"
RATE, SECONDS = 20, 15
API_GOAL_MS, MEMORY_GOAL_MIB, IDLE_GOAL_PERCENT = 100.0, 1536.0, 2.0
SETTLE_SECONDS, IDLE_SECONDS, OPERATION_SECONDS = 10.0, 20.0, 240.0
SERVERS = ("postgres", "nats-hub", "nats-leaf")
TICKS = os.sysconf("SC_CLK_TCK")


async def measure(folder: Path) -> Sequence[Row]:
    """All rows of this module."""
    stack = Stack(VAR, Ports(Ports.from_environment().base + PORTS_ABOVE_LOCAL), "sim")
    if VAR.exists():
        stack.down()
        shutil.rmtree(VAR)
    try:
        await asyncio.to_thread(stack.up, lambda line: None)
        async with signed_in(stack) as people:
            key = await asyncio.to_thread(_public_key)
            await _a_cluster_comes_and_goes(people, key)
            idle = await _idle_row(stack)
            memory = _memory_row(stack)
        return [await _api_row(stack, key), memory, idle]
    finally:
        await asyncio.to_thread(stack.down)


def _public_key() -> str:
    """A key pair made for this run; the private half is not kept."""
    path = VAR / "bench_key"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", str(path)]
    subprocess.run(argv, check=True)
    path.unlink()
    return path.with_suffix(".pub").read_text().strip()


async def _a_cluster_comes_and_goes(people: People, key: str) -> None:
    """Enrol everything, create a cluster of two, delete it: every part has done its work once."""

    async def known() -> bool:
        return len([m async for m in people.operator.machines.list()]) > 0

    await until(known, OPERATION_SECONDS, "the machines of the manifest")
    enrolled = await people.operator.machines.enrol(racks=["r1", "r2", "r3"])
    await _ended(people.operator, enrolled.operation_id)
    created = await people.alice.clusters.create(name="warm", profile=PROFILE, node_count=2, keys=[key])
    await _ended(people.alice, created.operation_id)
    deleted = await people.alice.clusters.delete(str(created.raw["cluster_id"]))
    await _ended(people.alice, deleted.operation_id)


async def _ended(client: Client, operation_id: str) -> None:
    async with asyncio.timeout(OPERATION_SECONDS):
        async for operation in client.operations.watch(operation_id, every_seconds=0.5):
            if operation.final:
                return


# -- the front door -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answers:
    """Milliseconds from when a request was due until its answer, and the answers' statuses."""

    milliseconds: list[float]
    statuses: list[int]


async def _api_row(stack: Stack, key: str) -> Row:
    token = stack.oidc.token("svc-alice", TENANT_AUDIENCE)
    async with httpx.AsyncClient(
        base_url=stack.tenant_url, headers={"Authorization": f"Bearer {token}"}, timeout=30
    ) as http:
        bodies = [
            {"name": f"bench-{number}", "profile": PROFILE, "node_count": 1, "ssh_authorized_keys": [key]}
            for number in range(RATE * SECONDS)
        ]
        floor = await _open_loop(http, [("GET", "/me", None)] * len(bodies))
        before = _cpu_seconds(stack)
        posted = await _open_loop(http, [("POST", "/clusters", body) for body in bodies])
        spent = {name: value - before[name] for name, value in _cpu_seconds(stack).items()}
    accepted = posted.statuses.count(202)
    others = {status: posted.statuses.count(status) for status in set(posted.statuses) - {202}}
    busy = ", ".join(f"{name} {value:.1f}" for name, value in sorted(spent.items(), key=lambda item: -item[1])[:6])
    value, peer_value = p99(posted.milliseconds), p99(floor.milliseconds)
    middle, floor_middle = (sorted(a.milliseconds)[len(a.milliseconds) // 2] for a in (posted, floor))
    return Row(
        id="api.create_cluster_p99",
        what=f"POST a cluster → 202 at {RATE}/s in an open loop for {SECONDS} s, p99, while the system works on them",
        value=round(value, 1),
        unit="ms",
        goal=f"< {API_GOAL_MS:.0f} ms",
        met=value < API_GOAL_MS and accepted == len(bodies),
        peer=f"GET /v1/me at {RATE}/s, p99: the gateway and one call over the bus",
        peer_value=round(peer_value, 1),
        ratio=ratio(value, peer_value),
        note=f"{accepted} of {len(bodies)} answered 202{f', others {others}' if others else ''}; "
        f"p50 {middle:.1f} ms (peer {floor_middle:.1f}); CPU seconds meanwhile: {busy}; {load_note()}",
    )


async def _open_loop(http: httpx.AsyncClient, requests: Sequence[tuple[str, str, dict[str, Any] | None]]) -> _Answers:
    answers = _Answers([], [])
    began = time.perf_counter()

    async def one(due: float, method: str, path: str, body: dict[str, Any] | None) -> None:
        response = await http.request(method, path.removeprefix("/"), json=body)
        answers.milliseconds.append((time.perf_counter() - due) * 1000)
        answers.statuses.append(response.status_code)

    async with asyncio.TaskGroup() as group:
        for number, request in enumerate(requests):
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(due, *request))
    return answers


# -- memory and CPU at rest ---------------------------------------------------------------------


def _ours(stack: Stack) -> list[Process]:
    """The services, the satellite, both NATS servers and PostgreSQL: what is ours, not the sign-in."""
    wanted = {process.name for process in stack.services()} | set(SERVERS)
    return [process for process in stack.processes() if process.name in wanted]


def _memory_row(stack: Stack) -> Row:
    mib = {p.name: sum(pss_kib(pid) for pid in family(p.pid())) / 1024 for p in _ours(stack)}
    total = sum(mib.values())
    each = ", ".join(f"{name} {value:.0f}" for name, value in sorted(mib.items(), key=lambda item: -item[1]))
    return Row(
        id="memory.all",
        what="PSS of all services, the satellite, both NATS servers and PostgreSQL after a cluster came and went",
        value=round(total),
        unit="MiB",
        goal=f"< {MEMORY_GOAL_MIB:.0f} MiB",
        met=total < MEMORY_GOAL_MIB and all(value > 0 for value in mib.values()),
        note=f"MiB: {each}; {len(mib)} programs",
    )


def _cpu_seconds(stack: Stack) -> dict[str, float]:
    return {p.name: sum(cpu_ticks(pid) for pid in family(p.pid())) / TICKS for p in _ours(stack)}


async def _idle_row(stack: Stack) -> Row:
    await asyncio.sleep(SETTLE_SECONDS)  # At rest is what is measured.
    before = _cpu_seconds(stack)
    began = time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - began
    percent = {name: (value - before[name]) / seconds * 100 for name, value in _cpu_seconds(stack).items()}
    services = {name: value for name, value in percent.items() if name not in SERVERS}
    most = max(services.values())
    each = ", ".join(f"{name} {value:.1f}" for name, value in sorted(percent.items(), key=lambda item: -item[1]))
    return Row(
        id="cpu.idle",
        what="CPU of the busiest service while nothing is asked of the system",
        value=round(most, 2),
        unit="% of a core",
        goal=f"< {IDLE_GOAL_PERCENT:.0f} %",
        met=most < IDLE_GOAL_PERCENT,
        note=f"%: {each}; all together {sum(percent.values()):.1f} % of one core; {load_note()}",
    )


def family(pid: int | None) -> list[int]:
    """A process and all its descendants; empty when it does not run."""
    if pid is None:
        return []
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def pss_kib(pid: int) -> int:
    """The proportional share of memory of one process, KiB; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def cpu_ticks(pid: int) -> int:
    """User and system time of one process so far, in clock ticks."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold spaces; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
