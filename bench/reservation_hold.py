"""reservation.hold8_p99: hold and release 8 of 10,000 machines, 50 times a second in an open loop.

Each hold and each release is one transaction of the service's own code on a durable PostgreSQL, its events written to
the outbox; the broker is left out. The peer is the least that could do the job, in the same run on the same server:
two bare statements with SKIP LOCKED, without states, reasons, events or idempotency.

`python -m bench reservation.hold8_p99` measures it alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from bench.rows import Row, load_note, p99, ratio
from libs.contracts.envelope import Envelope
from libs.contracts.inventory import MachineFacts, MachineState, MachineUpdated
from libs.contracts.reservation import HoldMachines, ReleaseReservation
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedPostgres
from libs.runtime.migrations import migrate
from libs.runtime.service import App
from libs.testing.kit import make_event
from libs.testing.servers import free_port
from services.reservation.app import service
from services.reservation.handlers import hold_machines, release_reservation

MACHINES, RACK_SIZE, COUNT = 10_000, 8, 8
RATE, SECONDS = 50, 20
GOAL_MS = 100.0
AT_ONCE = 8  # A service's own connections; what comes beyond waits, and its waiting counts.
PROFILE = "gpu-h100-8"
Pair = Callable[[int], Awaitable[None]]


def _machines() -> list[Envelope]:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    events = []
    for number in range(MACHINES):
        facts = MachineFacts(
            id=f"m{number:05}",
            name=f"gpu-{number:05}",
            site="fra1",
            rack=f"r{number // RACK_SIZE:04}",
            device_type="dgx-h100",
            role="gpu-node",
            profile=PROFILE,
            state=MachineState.AVAILABLE,
            eligible=True,
            state_since=since,
            version=1,
        )
        events.append(make_event(MachineUpdated(machine=facts, changed=()), entity_id=facts.id, entity_version=1))
    return events


async def open_loop(pair: Pair) -> list[float]:
    """Milliseconds from when each pair was due until it was done: waiting for a late start counts."""
    took: list[float] = []
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, due: float) -> None:
        async with at_once:
            await pair(number)
        took.append((time.perf_counter() - due) * 1000)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(RATE * SECONDS):
            due = start + number / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(number, due))
    return sorted(took)


async def ours(url: str) -> tuple[list[float], int]:
    """Our latencies and the number of double claims (0, or the books are wrong)."""
    await migrate(url, "reservation")
    database = Database(url, application_name="bench")
    app = App(service, database)
    async with database.transaction() as conn:
        await service.projections[0].apply(conn, _machines())
    held: set[str] = set()
    doubles = 0

    async def pair(number: int) -> None:
        nonlocal doubles
        name = f"rsv-{number}"
        async with app.transaction() as ctx:
            reply = await hold_machines(
                ctx, HoldMachines(reservation_id=name, tenant="bench", profile=PROFILE, count=COUNT)
            )
        machines = {machine["id"] for machine in reply.data["machines"]}
        doubles += len(machines & held)
        held.update(machines)
        held.difference_update(machines)
        async with app.transaction() as ctx:
            await release_reservation(ctx, ReleaseReservation(reservation_id=name, reason="bench"))

    try:
        return await open_loop(pair), doubles
    finally:
        await database.close()


async def bare(url: str) -> list[float]:
    """The peer's latencies."""
    pool = await asyncpg.create_pool(url, min_size=4, max_size=12)
    await pool.execute("CREATE TABLE bare (id text PRIMARY KEY, rack text NOT NULL, holder text)")
    await pool.execute("CREATE INDEX bare_free ON bare (rack, id) WHERE holder IS NULL")
    rows = [(f"m{number:05}", f"r{number // RACK_SIZE:04}") for number in range(MACHINES)]
    await pool.executemany("INSERT INTO bare (id, rack) VALUES ($1, $2)", rows)
    take = """UPDATE bare SET holder = $1 WHERE id IN (SELECT id FROM bare WHERE holder IS NULL ORDER BY rack, id
        LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING id"""

    async def pair(number: int) -> None:
        await pool.fetch(take, f"rsv-{number}", COUNT)
        await pool.execute("UPDATE bare SET holder = NULL WHERE holder = $1", f"rsv-{number}")

    await pool.execute("CREATE INDEX bare_holder ON bare (holder) WHERE holder IS NOT NULL")
    try:
        return await open_loop(pair)
    finally:
        await pool.close()


async def measure(folder: Path) -> Sequence[Row]:
    """The row of the table."""
    server = EmbeddedPostgres(folder, free_port())
    process = server.start()
    try:
        admin = await asyncpg.connect(server.url())
        await admin.execute("CREATE DATABASE bench")
        await admin.close()
        latencies, doubles = await ours(server.url("bench"))
        peer = await bare(server.url("bench"))
    finally:
        process.stop()
    value, peer_value = round(p99(latencies), 1), round(p99(peer), 1)
    row = Row(
        id="reservation.hold8_p99",
        what=f"hold and release {COUNT} of {MACHINES:,} machines, {RATE}/s open loop, p99",
        value=value,
        unit="ms",
        goal=f"< {GOAL_MS:.0f} ms, zero double claims",
        met=value < GOAL_MS and doubles == 0,
        peer="two bare asyncpg statements with SKIP LOCKED on the same server, p99",
        peer_value=peer_value,
        ratio=ratio(value, peer_value),
        note=f"p50 {latencies[len(latencies) // 2]:.1f} ms; {doubles} double claims; without the broker; {load_note()}",
    )
    return [row]
