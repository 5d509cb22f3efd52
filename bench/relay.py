"""relay.vs_bare and consume.per_process: each half of the way of an event alone, with the other half done before.

First an outbox is filled and only the relay runs; then a stream is full and only a consumer runs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import asyncpg
import nats

from bench.event_parts import ENTITIES, MODULE, OWNER, READER, TABLES, emit
from bench.event_peer import bare_halves, durable
from bench.rows import Row, load_note, pair_ratio
from bench.servers import Servers, part, servers
from libs.bus.context import Context
from libs.bus.tables import bus_ddl
from libs.bus.topology import event_stream, inbox_consumer
from libs.contracts.inventory import MachineState

EVENTS = 60_000
PAIRS = 3
RELAY_GOAL, RELAY_RATIO, CONSUME_GOAL = 20_000.0, 0.5, 15_000.0
CONSUMERS = {"project": "projection", "take_in": "inbox and its handler"}

# One real event, copied in SQL with an id, a machine and a version of its own for each row.
FILL = f"""INSERT INTO {OWNER}.outbox (message_id, is_event, subject, tenant, payload, created_at)
SELECT id, true, $2, '-', convert_to(replace(replace(replace($1, $3, id), $4, machine), $5, version), 'UTF8'), now()
FROM (SELECT gen_random_uuid()::text AS id, 'm' || n % {ENTITIES} AS machine,
        (n / {ENTITIES} + 1)::text AS version FROM generate_series(0, {EVENTS - 1}) n) made"""
MACHINE, VERSION = "THE-MACHINE", 987_654_321


async def measure(folder: Path) -> list[Row]:
    """Both halves, pairs interleaved."""
    relayed: list[tuple[float, float]] = []
    consumed: dict[str, list[tuple[float, float]]] = {role: [] for role in CONSUMERS}
    cpu: dict[str, str] = {}
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            Path(name).chmod(0o755)
            with servers(Path(name)) as made:
                url, size = await _filled(made)
                said = await _run(made, "relay", url)
                published, taken = await bare_halves(made, EVENTS, size)
                relayed.append((EVENTS / (said["ended"] - said["began"]), published))
                cpu["relay"] = f"{said['cpu'] / EVENTS * 1e6:.0f} µs of CPU an event"
                for role in CONSUMERS:
                    said = await _run(made, role, url)
                    consumed[role].append((EVENTS / (said["ended"] - said["began"]), taken))
                    cpu[role] = f"{said['cpu'] / EVENTS * 1e6:.0f} µs of CPU an event"
    return [_relay_row(relayed, cpu["relay"]), *(_consume_row(role, consumed[role], cpu[role]) for role in CONSUMERS)]


async def _filled(made: Servers) -> tuple[str, int]:
    """A database whose outbox holds all events, the stream and its durable; and the size of one event."""
    statements = [
        *(f"CREATE SCHEMA {name}" for name in (OWNER, READER)),
        *(statement for name in (OWNER, READER) for statement in bus_ddl(name)),
        *TABLES,
    ]
    url = await made.database("bench", statements)
    ctx = Context(None, OWNER)  # type: ignore[arg-type]  # It only collects here.
    emit(ctx, MACHINE, VERSION, MachineState.AVAILABLE)
    row = ctx.outgoing[0]
    payload, subject = row["payload"].decode(), row["subject"]
    conn = await asyncpg.connect(url)
    await conn.execute(FILL, payload, subject, row["message_id"], MACHINE, str(VERSION))
    await conn.close()
    client = await nats.connect(made.nats_url)
    js = client.jetstream()
    await js.add_stream(name=event_stream(OWNER), subjects=["evt.>"], duplicate_window=120)
    await js.add_consumer(event_stream(OWNER), durable(inbox_consumer(READER)))
    await client.close()
    return url, len(payload)


async def _run(made: Servers, role: str, url: str) -> dict[str, Any]:
    async with part(MODULE, role, made.nats_url, url) as running:
        await running.go(str(EVENTS))
        return await running.said()


def _relay_row(pairs: list[tuple[float, float]], cpu: str) -> Row:
    value, peer_value, of_peer = pair_ratio(pairs)
    return Row(
        id="relay.vs_bare",
        what="outbox rows committed → numbered → acknowledged by JetStream, the relay alone",
        value=round(value),
        unit="events/s",
        goal=f">= {RELAY_GOAL:.0f}/s, >= {RELAY_RATIO} of bare",
        met=value >= RELAY_GOAL and of_peer >= RELAY_RATIO,
        peer="bare nats-py: pipelined publish of as many bytes on the same server",
        peer_value=round(peer_value),
        ratio=of_peer,
        note=f"{EVENTS} events; runs {_each(pairs)}; {cpu}; {load_note()}",
    )


def _consume_row(role: str, pairs: list[tuple[float, float]], cpu: str) -> Row:
    value, peer_value, of_peer = pair_ratio(pairs)
    return Row(
        id="consume.per_process" if role == "project" else "consume.per_process_inbox",
        what=f"a full stream → a consumer's {CONSUMERS[role]}, one process alone",
        value=round(value),
        unit="events/s",
        goal=f">= {CONSUME_GOAL:.0f}/s",
        met=value >= CONSUME_GOAL,
        peer="bare nats-py: take and acknowledge as many bytes",
        peer_value=round(peer_value),
        ratio=of_peer,
        note=f"{EVENTS} events; runs {_each(pairs)}; {cpu}; {load_note()}",
    )


def _each(pairs: list[tuple[float, float]]) -> str:
    return ", ".join(f"{own:.0f}" for own, _ in pairs)
