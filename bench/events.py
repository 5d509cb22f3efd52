"""events.end_to_end: committed state changes → outbox → sequencer → JetStream → a consumer's projection, or inbox.

Three processes as in a deployment (owner, broker, consumer) and durable PostgreSQL. The peer publishes as many
messages of the same size to the same broker, pipelined, and another process takes and acknowledges them.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import nats

from bench.event_parts import MODULE, OWNER, READER, TABLES, WRITERS
from bench.event_peer import bare, durable
from bench.rows import Row, load_note, pair_ratio
from bench.servers import Servers, part, servers
from libs.bus.tables import bus_ddl
from libs.bus.topology import event_stream, inbox_consumer

WRITE_SECONDS = 8
PAIRS = 3
GOAL = 3000.0
TOGETHER = 50  # Changes a transaction: what an inbox worker does with a backlog, or a bulk request with its machines.


@dataclass(frozen=True)
class Case:
    """One row: what reads the events, and how many changes share a transaction."""

    id: str
    reader: str
    where: str
    together: int
    goal: float | None


CASES = (
    Case("events.end_to_end", "project", "projection", TOGETHER, GOAL),
    Case("events.end_to_end_inbox", "take_in", "inbox", TOGETHER, GOAL),
    Case("events.one_by_one", "project", "projection", 1, None),
)


async def measure(folder: Path) -> list[Row]:
    """All rows, pairs interleaved."""
    pairs: dict[str, list[tuple[float, float]]] = {case.id: [] for case in CASES}
    notes: dict[str, str] = {}
    for _ in range(PAIRS):
        for case in CASES:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                Path(name).chmod(0o755)
                with servers(Path(name)) as made:
                    own, count, size, note = await _ours(made, case)
                    peer = await bare(made, count, size)
            pairs[case.id].append((own, peer))
            notes[case.id] = f"last run: {count} changes of {size} bytes, {note}"
    return [_row(case, pairs[case.id], notes[case.id]) for case in CASES]


def _row(case: Case, pairs: list[tuple[float, float]], note: str) -> Row:
    value, peer_value, of_peer = pair_ratio(pairs)
    each = ", ".join(f"{own:.0f}" for own, _ in pairs)
    share = f"{case.together} changes a transaction" if case.together > 1 else "a transaction a change"
    return Row(
        id=case.id,
        what=f"committed state changes ({share}, {WRITERS} writers) → outbox → JetStream → consumer's {case.where}",
        value=round(value),
        unit="changes/s",
        goal=f">= {case.goal:.0f}/s" if case.goal else "-",
        met=value >= case.goal if case.goal else None,
        peer="bare nats-py: pipelined publish, consume and acknowledge of as many bytes on the same server",
        peer_value=round(peer_value),
        ratio=of_peer,
        note=f"written for {WRITE_SECONDS} s; runs {each}; {note}; {load_note()}",
    )


async def _ours(made: Servers, case: Case) -> tuple[float, int, int, str]:
    """Changes a second from the first transaction to the last one seen, their number and mean size, where time went."""
    statements = [
        *(f"CREATE SCHEMA {name}" for name in (OWNER, READER)),
        *(statement for name in (OWNER, READER) for statement in bus_ddl(name)),
        *TABLES,
    ]
    database_url = await made.database("bench", statements)
    client = await nats.connect(made.nats_url)
    js = client.jetstream()
    await js.add_stream(name=event_stream(OWNER), subjects=["evt.>"], duplicate_window=120)
    await js.add_consumer(event_stream(OWNER), durable(inbox_consumer(READER)))
    produce = part(MODULE, "produce", made.nats_url, database_url, str(WRITE_SECONDS), str(case.together))
    async with part(MODULE, case.reader, made.nats_url, database_url) as reader, produce as writer:
        await writer.go()
        wrote = await writer.said()
        await reader.go(str(wrote["count"]))
        read = await reader.said()
    count = int(wrote["count"])
    state = (await js.stream_info(event_stream(OWNER))).state
    await client.close()
    await _check(database_url)
    seconds = read["ended"] - wrote["began"]
    commits = count / (wrote["committed"] - wrote["began"])
    cpu = (
        f"writers alone {commits:.0f}/s; CPU owner {wrote['cpu']:.1f} s, consumer {read['cpu']:.1f} s of {seconds:.1f}"
    )
    return count / seconds, count, state.bytes // state.messages, cpu


async def _check(database_url: str) -> None:
    """What was committed is what the consumer has."""
    conn = await asyncpg.connect(database_url)
    wrong = await conn.fetchval(
        f"SELECT count(*) FROM {OWNER}.machine o LEFT JOIN {READER}.mirror m USING (id, version, state) "
        "WHERE m.id IS NULL AND o.version > 0"
    )
    await conn.close()
    if wrong:
        raise RuntimeError(f"{wrong} machines differ between owner and consumer")
