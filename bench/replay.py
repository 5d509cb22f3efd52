"""replay.million: reservation's pool of machines rebuilt from a million machine events and swapped in.

The job that `slipway projections rebuild --swap` starts, in a process of its own: read, applied to the tables beside
the live ones with its position in each transaction, compared, put in their place. Its memory is the process's highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import nats

from bench.event_parts import OWNER
from bench.replay_parts import MACHINES, MODULE, READER
from bench.rows import Row, load_note, ratio
from bench.servers import Servers, execute, part, servers
from libs.bus.topology import event_stream
from libs.runtime.migrations import migrate

EVENTS, BARE_EVENTS = 1_000_000, 200_000
GOAL, GOAL_MIB = 20_000.0, 300.0


async def measure(folder: Path) -> Sequence[Row]:
    """One run: a million events take their time."""
    with servers(folder) as made:
        url = await _filled(made)
        async with part(MODULE, "rebuild", made.nats_url, url) as running:
            await running.go()
            said = await running.said()
        await _check(url, said)
        peer = await _bare(made)
    seconds = said["ended"] - said["began"]
    value = EVENTS / seconds
    return [
        Row(
            id="replay.million",
            what=f"{EVENTS} events of {MACHINES} machines → a projection rebuilt, compared and swapped in",
            value=round(value),
            unit="events/s",
            goal=f">= {GOAL:.0f}/s, < {GOAL_MIB:.0f} MiB",
            met=value >= GOAL and said["mebibytes"] < GOAL_MIB,
            peer=f"bare nats-py: {BARE_EVENTS} of these messages taken, nothing done",
            peer_value=round(peer),
            ratio=ratio(value, peer),
            note=f"{seconds:.1f} s, {said['cpu'] / EVENTS * 1e6:.0f} µs of CPU an event, "
            f"{said['mebibytes']:.0f} MiB at most; {load_note()}",
        )
    ]


async def _filled(made: Servers) -> str:
    """A stream of all events, and a service's database that says it has read them but has no rows."""
    client = await nats.connect(made.nats_url)
    # What is published here is published once; remembering the ids of a million messages is another measurement.
    await client.jetstream().add_stream(name=event_stream(OWNER), subjects=["evt.>"], duplicate_window=1)
    await client.close()
    async with part(MODULE, "fill", made.nats_url, str(EVENTS)) as filling:
        await filling.go()
        await filling.said()
    url = await made.database("bench")
    await migrate(url, READER)
    await execute(
        url,
        f"INSERT INTO {READER}.projection_position (projection, stream, position, updated_at) "
        f"VALUES ('pool', '{OWNER}', {EVENTS}, now())",
    )
    return url


async def _check(url: str, said: dict[str, Any]) -> None:
    """Every machine's row is there as the last event says. Raises RuntimeError."""
    conn = await asyncpg.connect(url)
    right = await conn.fetchval(f"SELECT count(*) FROM {READER}.pool WHERE version = {EVENTS // MACHINES}")
    await conn.close()
    if said["state"] != "done" or said["events"] != EVENTS or right != MACHINES:
        raise RuntimeError(f"{right} of {MACHINES} machines are right after a rebuild that is {said}")


async def _bare(made: Servers) -> float:
    async with part(MODULE, "bare", made.nats_url, str(BARE_EVENTS)) as running:
        await running.go()
        said = await running.said()
    return float(said["count"] / (said["ended"] - said["began"]))
