"""inventory.sync_ratio: a full walk over a real NetBox of 10,000 unchanged devices, beside what reading it costs.

Ours is all of it: the walk, the comparison of every machine in the service's own PostgreSQL, and the state of the
source written down. The peer reads the same two long lists, devices and their ports, with the same fields and page
size and does nothing with them. NetBox is kept below var/bench-netbox, because filling it takes a minute.

`python -m bench inventory.sync_ratio` measures it alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import requests

from bench.rows import Row, load_note, pair_ratio
from bench.servers import REPOSITORY, postgres
from deploy.lab.netbox import NetBoxLab, NetBoxPorts
from libs.runtime.database import Database
from libs.runtime.migrations import migrate
from libs.runtime.service import App
from libs.testing.servers import free_port
from services.inventory import app as inventory_app
from services.inventory import periodic, store
from services.inventory.adapters.netbox import DEVICE_FIELDS, PORT_FIELDS, RestNetBox
from services.inventory.adapters.netbox_rest import PAGE

DEVICES, PAIRS = 10_000, 3
GOAL = 1.3
ROLES = ("gpu-node", "cpu-node")
ANSWER_LIMIT_SECONDS = 120.0


async def measure(folder: Path, devices: int = DEVICES) -> Sequence[Row]:
    """One row. NetBox is stopped again and kept."""
    ports = NetBoxPorts(http=free_port(), postgres=free_port(), redis=free_port())
    netbox = NetBoxLab(REPOSITORY / "var" / "bench-netbox", ports, software=REPOSITORY / "var")
    try:
        await asyncio.to_thread(_filled, netbox, devices)
        with postgres(folder) as server:
            return [await _row(netbox, await _database(server.url()), devices)]
    finally:
        await asyncio.to_thread(netbox.stop)


def _filled(netbox: NetBoxLab, devices: int) -> None:
    netbox.start()
    netbox.seed()
    netbox.fill(devices)


async def _database(url: str) -> str:
    await migrate(url, "inventory")
    return url


async def _row(netbox: NetBoxLab, url: str, devices: int) -> Row:
    database = Database(url, application_name="bench-inventory")
    app = App(inventory_app.inventory(), database)
    await inventory_app.start(app)
    app.state["source"] = RestNetBox(netbox.url, lambda: netbox.token, ROLES, ANSWER_LIMIT_SECONDS)
    try:
        await _walk(app, devices)  # Registers them all.
        await _walk(app, devices)
        pairs = [(await _walk(app, devices), await asyncio.to_thread(_bare, netbox)) for _ in range(PAIRS)]
    finally:
        await database.close()
    ours, bare, ratio = pair_ratio(pairs)
    return Row(
        id="inventory.sync_ratio",
        what=f"full walk over {devices:,} unchanged devices of a real NetBox, compared and written down",
        value=round(ours, 2),
        unit="s",
        goal=f"≤ {GOAL} × the bare paged read",
        met=ratio <= GOAL,
        peer="the same lists read page by page, and nothing done with them",
        peer_value=round(bare, 2),
        ratio=ratio,
        note=load_note(),
    )


async def _walk(app: App, devices: int) -> float:
    """Seconds of one full walk. Raises RuntimeError when it was none."""
    async with app.transaction() as ctx:
        await store.set_source_state(ctx.conn, read_wanted=True)
    began = time.perf_counter()
    await periodic.read_source(app)
    took = time.perf_counter() - began
    async with app.read() as conn:
        state = await store.source_state(conn)
    if state["last_error"] or state["devices_seen"] < devices:
        raise RuntimeError(f"the walk saw {state['devices_seen']} devices: {state['last_error']}")
    return took


def _bare(netbox: NetBoxLab) -> float:
    """Seconds for the same lists by page, the next one where NetBox says."""
    began = time.perf_counter()
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {netbox.token}"
        for path, fields, role in (("devices", DEVICE_FIELDS, "role"), ("interfaces", PORT_FIELDS, "device_role")):
            query = {"limit": str(PAGE), "ordering": "id", "fields": ",".join(fields), role: list(ROLES)}
            page = session.get(f"{netbox.url}/api/dcim/{path}/", params=query, timeout=ANSWER_LIMIT_SECONDS).json()
            while page["next"]:
                page = session.get(page["next"], timeout=ANSWER_LIMIT_SECONDS).json()
    return time.perf_counter() - began
