"""events.end_to_end: committed state changes → outbox → sequencer → JetStream → a consumer's projection, or inbox.

Three processes as in a deployment (owner, broker, consumer) and durable PostgreSQL. The peer publishes as many
messages of the same size to the same broker, pipelined, and another process takes and acknowledges them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import asyncpg
import nats
from nats.js import api

from bench.event_parts import BARE, OWNER, READER, TABLES
from bench.rows import Row, load_note, pair_ratio
from bench.servers import Servers, part, servers
from libs.bus.tables import bus_ddl
from libs.bus.topology import event_stream, inbox_consumer

WRITE_SECONDS = 8
PAIRS = 3
GOAL = 3000.0
MODULE = "bench.event_parts"
READERS = {"project": ("events.end_to_end", "projection"), "take_in": ("events.end_to_end_inbox", "inbox")}


async def measure(folder: Path) -> list[Row]:
    """Both rows, pairs interleaved."""
    pairs: dict[str, list[tuple[float, float]]] = {role: [] for role in READERS}
    notes: dict[str, str] = {}
    for _ in range(PAIRS):
        for role in READERS:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                Path(name).chmod(0o755)
                with servers(Path(name)) as made:
                    own, count, size, note = await _ours(made, role)
                    peer = await _bare(made, count, size)
            pairs[role].append((own, peer))
            notes[role] = f"last run: {count} changes of {size} bytes, {note}"
    return [_row(role, pairs[role], notes[role]) for role in READERS]


def _row(role: str, pairs: list[tuple[float, float]], note: str) -> Row:
    name, where = READERS[role]
    value, peer_value, of_peer = pair_ratio(pairs)
    each = ", ".join(f"{own:.0f}" for own, _ in pairs)
    return Row(
        id=name,
        what=f"committed state changes (8 writers) → outbox → JetStream → consumer's {where}, one transaction a change",
        value=round(value),
        unit="changes/s",
        goal=f">= {GOAL:.0f}/s",
        met=value >= GOAL,
        peer="bare nats-py: pipelined publish, consume and acknowledge of as many bytes on the same server",
        peer_value=round(peer_value),
        ratio=of_peer,
        note=f"written for {WRITE_SECONDS} s; runs {each}; {note}; {load_note()}",
    )


async def _ours(made: Servers, role: str) -> tuple[float, int, int, str]:
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
    await js.add_consumer(event_stream(OWNER), _durable(inbox_consumer(READER)))
    produce = part(MODULE, "produce", made.nats_url, database_url, str(WRITE_SECONDS))
    async with part(MODULE, role, made.nats_url, database_url) as reader, produce as writer:
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


async def _bare(made: Servers, count: int, size: int) -> float:
    client = await nats.connect(made.nats_url)
    js = client.jetstream()
    await js.add_stream(name=BARE, subjects=["bare.>"], duplicate_window=120)
    await js.add_consumer(BARE, _durable(inbox_consumer("bare")))
    await client.close()
    consume = part(MODULE, "bare_consume", made.nats_url, str(count))
    publish = part(MODULE, "bare_publish", made.nats_url, str(count), str(size))
    async with consume as reader, publish as writer:
        await writer.go()
        wrote, read = await writer.said(), await reader.said()
    return float(count / (read["ended"] - wrote["began"]))


def _durable(name: str) -> api.ConsumerConfig:
    return api.ConsumerConfig(durable_name=name, ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=20_000)
