"""inventory.list_p99, inventory.vs_netbox, inventory.memory: lists of 100,000 machines through the operator door.

The whole local system with private ports below var/bench-inventory, on the simulated site; inventory's table is filled
past it and its source taken away, for a source that does not know these machines would hold them all. Each request has
two filters and a sort, another pair every time. The peer is NetBox's own device list in the same run: same page
size, one filter and the same sort, 200 devices (a small table, to its advantage), over its own gunicorn workers.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pynetbox

from bench.inventory_fleet import PROFILES, SITES, STATES, seed
from bench.rows import Row, load_note, p99, ratio
from bench.system import family, pss_kib
from deploy.lab.netbox import NetBoxLab, NetBoxPorts
from deploy.lab.oidc.accounts import OPERATOR_AUDIENCE
from deploy.local.layout import REPOSITORY, Ports
from deploy.local.preparation import database_url
from deploy.local.stack import Stack
from libs.runtime.migrations import owner_role
from libs.runtime.processes import Process
from libs.testing.servers import free_port

VAR = REPOSITORY / "var" / "bench-inventory"
PORTS_ABOVE_LOCAL = 600
MACHINES, PAGE = 100_000, 50
RATE, SECONDS = 100, 20
WARM_UP = 100
CLIENTS, PACE_SECONDS = 4, 10
LIST_GOAL_MS, MEMORY_GOAL_MIB, NETBOX_GOAL = 50.0, 400.0, 20.0
NETBOX_DEVICES = 200
SORTS = ("name", "-name", "state_since", "-state_since")
Params = dict[str, Any]


async def measure(folder: Path) -> Sequence[Row]:
    """All rows of this module."""
    stack = Stack(VAR, Ports(Ports.from_environment().base + PORTS_ABOVE_LOCAL), "sim")
    if VAR.exists():
        stack.down()
        shutil.rmtree(VAR)
    try:
        await asyncio.to_thread(stack.up, lambda line: None)
        service = await asyncio.to_thread(_without_source, stack)
        await seed(database_url(stack.var, stack.ports, owner_role("inventory")), MACHINES)
        headers = {"Authorization": f"Bearer {stack.oidc.token('svc-operator', OPERATOR_AUDIENCE)}"}
        async with httpx.AsyncClient(base_url=stack.operator_url, headers=headers, timeout=30) as http:
            listing = await _list_row(http)
            ours = await _pace(http, "machines", _questions())
        memory = _memory_row(service)
        return [listing, await _netbox_row(ours), memory]
    finally:
        await asyncio.to_thread(stack.down)


def _without_source(stack: Stack) -> Process:
    """Inventory, started again without the manifest."""
    service = stack.service("inventory")
    service.stop()
    service = replace(service, env={k: v for k, v in service.env.items() if k != "SLIPWAY_MANIFEST_FILE"})
    service.start()
    return service


def _questions() -> itertools.cycle[Params]:
    """Every pair of filters with every sort, in turn."""
    states, sites = sorted(set(STATES)), [f"fra{number + 1}" for number in range(SITES)]
    pairs: list[Params] = [{"state": state, "site": site} for state in states for site in sites]
    pairs += [{"profile": profile, "site": site} for profile in PROFILES for site in sites]
    pairs += [{"state": state, "profile": profile} for state in states for profile in PROFILES]
    return itertools.cycle([{**pair, "sort": sort, "limit": PAGE} for pair in pairs for sort in SORTS])


async def _list_row(http: httpx.AsyncClient) -> Row:
    questions = _questions()
    for _ in range(WARM_UP):
        (await http.get("machines", params=next(questions))).raise_for_status()
    took: list[float] = []
    wrong = 0

    async def one(due: float, params: Params) -> None:
        nonlocal wrong
        answer = await http.get("machines", params=params)
        took.append((time.perf_counter() - due) * 1000)
        wrong += answer.status_code != httpx.codes.OK or not answer.json()["items"]

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(RATE * SECONDS):
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(due, next(questions)))
    value = round(p99(took), 1)
    return Row(
        id="inventory.list_p99",
        what=f"GET machines: two filters, a sort, {PAGE} of {MACHINES:,}, {RATE}/s open loop for {SECONDS} s, p99",
        value=value,
        unit="ms",
        goal=f"< {LIST_GOAL_MS:.0f} ms",
        met=value < LIST_GOAL_MS and wrong == 0,
        note=f"p50 {sorted(took)[len(took) // 2]:.1f} ms; {wrong} wrong answers; through the gateway; {load_note()}",
    )


async def _pace(http: httpx.AsyncClient, path: str, questions: itertools.cycle[Params]) -> float:
    """Requests a second of `CLIENTS` at once, each asking as soon as it was answered."""
    until = time.perf_counter() + PACE_SECONDS
    done = 0

    async def ask() -> None:
        nonlocal done
        while time.perf_counter() < until:
            (await http.get(path, params=next(questions))).raise_for_status()
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(ask())
    return done / PACE_SECONDS


async def _netbox_row(ours: float) -> Row:
    ports = NetBoxPorts(free_port(), free_port(), free_port())
    lab = NetBoxLab((VAR / "netbox").resolve(), ports, software=(REPOSITORY / "var").resolve())
    try:
        await asyncio.to_thread(_filled, lab)
        params = ({"status": "staged", "ordering": sort, "limit": PAGE} for sort in ("name", "-name"))
        headers = {"Authorization": f"Bearer {lab.token}"}
        async with httpx.AsyncClient(base_url=f"{lab.url}/api/", headers=headers, timeout=60) as http:
            questions = itertools.cycle(list(params))
            for _ in range(2 * CLIENTS):
                (await http.get("dcim/devices/", params=next(questions))).raise_for_status()
            theirs = await _pace(http, "dcim/devices/", questions)
    finally:
        await asyncio.to_thread(lab.stop)
    times = ratio(ours, theirs)
    return Row(
        id="inventory.vs_netbox",
        what=f"list requests a second, {CLIENTS} clients, pages of {PAGE}: ours of {MACHINES:,} machines",
        value=round(ours, 1),
        unit="requests/s",
        goal=f"≥ {NETBOX_GOAL:.0f} × NetBox's device list",
        met=times is not None and times >= NETBOX_GOAL,
        peer=f"NetBox's own GET dcim/devices of {NETBOX_DEVICES} devices, requests/s",
        peer_value=round(theirs, 1),
        ratio=times,
        note=load_note(),
    )


def _filled(lab: NetBoxLab) -> None:
    """NetBox with the lab's fleet and more devices of one of its racks' kind."""
    lab.start()
    lab.seed()
    netbox = pynetbox.api(lab.url, token=lab.token)
    one = next(iter(netbox.dcim.devices.all()))
    pattern = {"site": one.site.id, "device_type": one.device_type.id, "role": one.role.id, "status": "staged"}
    netbox.dcim.devices.create([{**pattern, "name": f"more-{number:03}"} for number in range(NETBOX_DEVICES)])


def _memory_row(service: Process) -> Row:
    mib = sum(pss_kib(pid) for pid in family(service.pid())) / 1024
    return Row(
        id="inventory.memory",
        what=f"PSS of the inventory service with {MACHINES:,} machines after these lists",
        value=round(mib),
        unit="MiB",
        goal=f"< {MEMORY_GOAL_MIB:.0f} MiB",
        met=0 < mib < MEMORY_GOAL_MIB,
        note="without a source of truth: a walk over NetBox is another row's",
    )
