"""saga.throughput: durable sagas of 6 steps, 50 at a time, in one service process with durable PostgreSQL."""

from __future__ import annotations

import tempfile
from pathlib import Path

import asyncpg
import nats

from bench.rows import Row, load_note, pair_ratio
from bench.saga_parts import AT_ONCE, DONE_TABLE, OWNER, STEPS
from bench.saga_peer import TABLES as PEER_TABLES
from bench.servers import Servers, part, servers
from libs.bus.tables import bus_ddl
from libs.bus.topology import apply_hub, load_topology

RUN_SECONDS, PEER_COUNT = 8, 300
PAIRS = 3
GOAL = 100.0


async def measure(folder: Path) -> list[Row]:
    """The row, from pairs."""
    pairs: list[tuple[float, float]] = []
    cpu = ""
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            Path(name).chmod(0o755)
            with servers(Path(name)) as made:
                own, cpu = await ours(made, RUN_SECONDS)
                pairs.append((own, await _bare(made)))
    value, peer_value, of_peer = pair_ratio(pairs)
    return [
        Row(
            id="saga.throughput",
            what=f"durable {STEPS}-step sagas, a command to a handler with a committed row a step, {AT_ONCE} at once",
            value=round(value, 1),
            unit="sagas/s",
            goal=f">= {GOAL:.0f}/s",
            met=value >= GOAL,
            peer=f"{STEPS} bare NATS requests, a committed row after each: no outbox, log, limits or undo",
            peer_value=round(peer_value, 1),
            ratio=of_peer,
            note=f"runs {', '.join(f'{own:.0f}' for own, _ in pairs)}, {RUN_SECONDS} s each; {cpu}; {load_note()}",
        )
    ]


async def ours(made: Servers, seconds: int, *, effect: bool = True) -> tuple[float, str]:
    """Our sagas a second, and what they cost; `effect`: each step commits a row of its own in the handler."""
    statements = [f"CREATE SCHEMA {OWNER}", *bus_ddl(OWNER), DONE_TABLE]
    url = await made.database("bench", statements)
    client = await nats.connect(made.nats_url)
    await apply_hub(client.jetstream(), load_topology(), ("fra1",))
    await client.close()
    role = "effect" if effect else "nothing"
    async with part("bench.saga_parts", made.nats_url, url, str(seconds), role) as running:
        await running.go()
        said = await running.said()
    conn = await asyncpg.connect(url)
    steps = await conn.fetchval(f"SELECT count(*) FROM {OWNER}.done")
    await conn.close()
    count = int(said["count"])
    if effect and steps != count * STEPS:
        raise RuntimeError(f"{steps} steps were done for {count} sagas of {STEPS}")
    took = said["ended"] - said["began"]
    return count / took, f"service's CPU {said['cpu'] / count * 1000:.1f} ms a saga"


async def _bare(made: Servers) -> float:
    url = await made.database("peer", [PEER_TABLES])
    async with part("bench.saga_peer", made.nats_url, url, str(PEER_COUNT)) as running:
        await running.go()
        said = await running.said()
    return float(PEER_COUNT / (said["ended"] - said["began"]))
