"""inventory.enrol_1000: a thousand machines from EXPECTED to AVAILABLE by one command, on the simulated site.

The whole local system with private ports below var/bench-enrol. The manifest and the simulated hardware are the lab's
fleet many times over, 50 machines a rack, all right. Each machine is made, inspected, compared, wiped under a run id,
validated and judged, as in production; a step of the simulated hardware takes 20 ms, so that the figure is the
system's own work.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from slipway.client import Client

from bench.rows import Row, load_note
from bench.system import TICKS, cpu_ticks, family
from deploy.demo.people import signed_in
from deploy.demo.story import until
from deploy.local.layout import REPOSITORY, SITE, Ports
from deploy.local.site_parts import FLEET_FILE
from deploy.local.stack import Stack

VAR = REPOSITORY / "var" / "bench-enrol"
PORTS_ABOVE_LOCAL = 800
MACHINES, RACK = 1000, 50
STEP_SECONDS = "0.02"
# BMCs are asked by the satellite, a few at a time: that is what throttles an enrolment however many machines it names.
COMMANDS_AT_ONCE = "32"
GOAL_SECONDS = 60.0
READ_SECONDS, ENROL_SECONDS = 180.0, 1200.0


async def measure(folder: Path, machines: int = MACHINES) -> Sequence[Row]:
    """One run; a machine that does not become AVAILABLE fails the row."""
    stack = Stack(VAR, Ports(Ports.from_environment().base + PORTS_ABOVE_LOCAL), "sim")
    if VAR.exists():
        stack.down()
        shutil.rmtree(VAR)
    try:
        await asyncio.to_thread(stack.up, lambda line: None)
        fleet = folder / "fleet.yaml"
        fleet.write_text(yaml.safe_dump(_fleet(machines)))
        await asyncio.to_thread(_with_fleet, stack, fleet)
        async with signed_in(stack) as people:
            await _known(people.operator, machines)
            before = _cpu_seconds(stack)
            seconds, available = await _enrolled(people.operator, machines)
            spent = {name: value - before[name] for name, value in _cpu_seconds(stack).items()}
    finally:
        await asyncio.to_thread(stack.down)
    return [_row(machines, seconds, available, spent)]


def _row(machines: int, seconds: float, available: int, spent: dict[str, float]) -> Row:
    busy = ", ".join(f"{name} {value:.1f}" for name, value in sorted(spent.items(), key=lambda item: -item[1])[:7])
    return Row(
        id="inventory.enrol_1000",
        what=f"enrol {machines} machines by one command: all made, inspected, wiped, validated and AVAILABLE",
        value=round(seconds, 1),
        unit="s",
        goal=f"≤ {GOAL_SECONDS:.0f} s",
        met=seconds <= GOAL_SECONDS and available == machines == MACHINES,
        note=f"{available} of {machines} AVAILABLE, {available / seconds:.1f} a second; "
        f"CPU seconds: {busy}, all {sum(spent.values()):.1f}; {load_note()}",
    )


def _cpu_seconds(stack: Stack) -> dict[str, float]:
    return {p.name: sum(cpu_ticks(pid) for pid in family(p.pid())) / TICKS for p in stack.processes()}


def _fleet(machines: int) -> dict[str, Any]:
    """The lab's fleet, `machines` times its first machine, each with names, serial number and addresses of its own."""
    lab = yaml.safe_load(FLEET_FILE.read_text())
    first = next(machine for machine in lab["machines"] if machine["gpus_installed"] == 8)
    made = [_machine(first, number) for number in range(machines)]
    racks = [{"name": name} for name in dict.fromkeys(machine["rack"] for machine in made)]
    return {**lab, "racks": racks, "machines": made}


def _machine(first: dict[str, Any], number: int) -> dict[str, Any]:
    rack, place = f"b{number // RACK + 1}", number % RACK + 1
    high, low = divmod(number, 256)
    return {
        **first,
        "name": f"{SITE}-{rack}-gpu-{place:02}",
        "rack": rack,
        "position": None,
        "serial": f"1661{number:09}",
        "asset_tag": f"BENCH-{number}",
        "bmc_mac": f"48:b0:2d:0b:{high:02x}:{low:02x}",
        "bmc_ip": f"10.60.{high}.{low}",
        "nic_macs": [f"94:6d:ae:{port:02x}:{high:02x}:{low:02x}" for port in (1, 2)],
        "ssh_port_offset": number,
    }


def _with_fleet(stack: Stack, fleet: Path) -> None:
    """Inventory and satellite, started again with the large fleet; nothing of the small one was taken in for long."""
    more = {
        "inventory": {"SLIPWAY_MANIFEST_FILE": str(fleet)},
        "satellite": {
            "SLIPWAY_FLEET_FILE": str(fleet),
            "SLIPWAY_SIMULATED_STEP_SECONDS": STEP_SECONDS,
            "SLIPWAY_MAX_RUNNING_COMMANDS": COMMANDS_AT_ONCE,
        },
    }
    for name, environment in more.items():
        process = stack.satellite() if name == "satellite" else stack.service(name)
        process.stop()
        replace(process, env={**process.env, **environment}).start()


async def _known(operator: Client, machines: int) -> None:
    async def read() -> bool:
        return await _count(operator, "EXPECTED", machines) >= machines

    await until(read, READ_SECONDS, f"the {machines} machines of the manifest")


async def _count(operator: Client, state: str, most: int) -> int:
    """How many of the bench's own machines are in the state."""
    found = 0
    async for machine in operator.machines.list(state=[state], limit=200):
        found += machine.rack.startswith("b")
    return min(found, most)


async def _enrolled(operator: Client, machines: int) -> tuple[float, int]:
    """Seconds from the request until the operation ended, and how many machines are AVAILABLE then."""
    racks = [f"b{number + 1}" for number in range((machines + RACK - 1) // RACK)]
    began = time.perf_counter()
    started = await operator.machines.enrol(racks=racks)
    async with asyncio.timeout(ENROL_SECONDS):
        async for operation in operator.operations.watch(started.operation_id, every_seconds=0.5):
            if operation.final:
                break
    return time.perf_counter() - began, await _count(operator, "AVAILABLE", machines)
