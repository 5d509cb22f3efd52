"""The processes of the event measurement, ours and the peer's: `python -m bench.event_parts ROLE …`.

Clocks are the computer's monotonic one, which all processes share; so one process's start and another's end can
be subtracted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import nats
from nats.js import JetStreamContext
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.servers import say, told_to_go
from libs.bus.context import Context
from libs.bus.inbox import Inbox, Received
from libs.bus.outbox import Outbox
from libs.bus.pull import Puller
from libs.bus.tables import DONE
from libs.bus.topology import event_stream, inbox_consumer
from libs.contracts.envelope import Envelope
from libs.contracts.inventory import MachineFacts, MachineState, MachineUpdated
from libs.projection import Projection, Projector, upsert_newer
from libs.projection.projector import get_position
from libs.runtime.broker import connect
from libs.runtime.collector import ease_collector
from libs.runtime.database import Database
from libs.runtime.service import App, Service
from libs.runtime.settings import ServiceSettings

OWNER, READER = "inventory", "reservation"
MODULE = "bench.event_parts"
WRITERS, ENTITIES, BARE = 8, 1000, "BARE"
CONSUME_LIMIT_SECONDS = 180.0

machine = Table(
    "machine",
    MetaData(schema=OWNER),
    Column("id", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
)
mirror = Table(
    "mirror",
    MetaData(schema=READER),
    Column("id", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("seen", Integer, nullable=False),
)
TABLES = (
    f"CREATE TABLE {OWNER}.machine (id text PRIMARY KEY, version bigint NOT NULL, state text NOT NULL)",
    f"CREATE TABLE {READER}.mirror "
    "(id text PRIMARY KEY, version bigint NOT NULL, state text NOT NULL, seen integer NOT NULL)",
    f"INSERT INTO {OWNER}.machine SELECT 'm' || n, 0, 'AVAILABLE' FROM generate_series(0, {ENTITIES - 1}) n",
)

GUARDED_UPDATE = text(
    f"""UPDATE {OWNER}.machine m SET version = m.version + 1, state = n.state
    FROM unnest(CAST(:ids AS text[]), CAST(:versions AS bigint[]), CAST(:states AS text[])) n (id, version, state)
    WHERE m.id = n.id AND m.version = n.version"""
)
Change = tuple[str, int, MachineState]  # Machine, version before, new state.


async def commit(ctx: Context, changes: Sequence[Change]) -> None:
    """State changes of one transaction: a guarded update of all, and an event each."""
    ids, versions, states = zip(*changes, strict=True)
    new = {"ids": list(ids), "versions": list(versions), "states": [state.value for state in states]}
    updated = await ctx.conn.execute(GUARDED_UPDATE, new)
    if updated.rowcount != len(changes):
        raise RuntimeError("somebody else changed one of these machines")
    for name, version, state in changes:
        emit(ctx, name, version + 1, state)


def emit(ctx: Context, name: str, version: int, state: MachineState) -> None:
    """The event of one change."""
    facts = MachineFacts(
        id=name,
        name=f"fra1-r1-{name}",
        site="fra1",
        rack="r1",
        device_type="dgx-h100",
        role="gpu-node",
        profile="h100-sxm-8",
        state=state,
        eligible=state is MachineState.AVAILABLE,
        state_since=ctx.now,
        version=version,
    )
    ctx.emit(MachineUpdated(machine=facts, changed=("state",)), entity_id=name, entity_version=version, site="fra1")


def changes_of(which: int) -> Iterator[Change]:
    """One writer's endless changes: every machine of its own in turn, each a version further every time round."""
    for turn in itertools.count():
        step, number = divmod(turn, ENTITIES // WRITERS)
        state = MachineState.CLAIMED if step % 2 == 0 else MachineState.AVAILABLE
        yield f"m{number * WRITERS + which}", step, state


async def produce(nats_url: str, database_url: str, seconds: int, together: int) -> None:
    """Writers and the relay of one service in one process; `together` changes share a transaction.

    Says how much was committed, from when until when.
    """
    settings = ServiceSettings()
    database = Database(database_url, application_name="bench-owner")
    app = App(Service(name=OWNER, metadata=machine.metadata, settings=settings), database)
    client = await nats.connect(nats_url)
    app.outbox = Outbox(OWNER, database, client.jetstream(publish_async_max_pending=4000), "bench")
    relay = asyncio.create_task(app.outbox.run())
    say(ready=True)
    await told_to_go()
    began, count = time.monotonic(), 0

    async def writer(which: int) -> None:
        nonlocal count
        changes = changes_of(which)
        while time.monotonic() < began + seconds:
            async with app.transaction() as ctx:
                await commit(ctx, list(itertools.islice(changes, together)))
            count += together

    async with asyncio.TaskGroup() as group:
        for which in range(WRITERS):
            group.create_task(writer(which))
    say(began=began, committed=time.monotonic(), count=count, cpu=time.process_time())
    await relay


async def relay(nats_url: str, database_url: str) -> None:
    """The relay alone, on an outbox that was filled before. Says from when until when it took to publish all of it."""
    database = Database(database_url, application_name="bench-owner")
    client = await nats.connect(nats_url)
    outbox = Outbox(OWNER, database, client.jetstream(publish_async_max_pending=4000), "bench")
    say(ready=True)
    await told_to_go()
    began = time.monotonic()
    await outbox.relay_all()
    say(began=began, ended=time.monotonic(), cpu=time.process_time())
    await client.close()


async def apply_mirror(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    rows = [_mirrored(event) for event in events]
    await upsert_newer(conn, mirror, rows, key=("id",), version="version")


def _mirrored(event: Envelope) -> dict[str, object]:
    return {"id": event.subject, "version": event.entityversion, "state": event.data["machine"]["state"], "seen": 1}


async def project(nats_url: str, database_url: str) -> None:
    """A consumer's projection. Says when the last change was committed there."""
    database = Database(database_url, application_name="bench-reader")
    client = await connect(ServiceSettings(nats_url=nats_url), READER)
    seen = 0

    async def apply(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
        nonlocal seen
        await apply_mirror(conn, events)
        seen += len(events)

    projection = Projection("mirror", (OWNER,), (mirror,), apply)
    projector = Projector(READER, projection, database, client.jetstream(), "bench")
    task = asyncio.create_task(projector.run())

    async def committed(count: int) -> bool:
        async with database.transaction() as conn:
            return await get_position(conn, READER, "mirror", OWNER) >= count

    await _consumed(committed, task, lambda: seen)


async def take_in(nats_url: str, database_url: str) -> None:
    """A consumer's inbox: land, then handle in order per key with an upsert each batch; effects exactly once."""
    database = Database(database_url, application_name="bench-reader")
    client = await connect(ServiceSettings(nats_url=nats_url), READER)
    js = client.jetstream()
    handled = 0

    async def handle(conn: AsyncConnection, received: Sequence[Received]) -> None:
        nonlocal handled
        rows = [_mirrored(message.envelope) for message in received]
        statement = insert(mirror)
        changes = {name: statement.excluded[name] for name in ("version", "state", "seen")}
        newest = {str(row["id"]): row for row in rows}
        await conn.execute(statement.on_conflict_do_update(index_elements=["id"], set_=changes), list(newest.values()))
        handled += len(received)

    inbox = Inbox(READER, database, js, handle)

    async def work() -> None:
        while True:
            inbox.clear()
            if not await inbox.work_once():
                await inbox.wait()

    landing = asyncio.create_task(inbox.land_forever(event_stream(OWNER)))
    working = asyncio.create_task(work())

    async def committed(count: int) -> bool:
        async with database.transaction() as conn:
            query = f"SELECT count(*) FROM {READER}.inbox WHERE state = {DONE}"
            return int(await conn.scalar(text(query)) or 0) >= count

    await _consumed(committed, asyncio.gather(landing, working), lambda: handled)


async def _consumed(
    committed: Callable[[int], Awaitable[bool]], work: asyncio.Future[Any], handled: Callable[[], int]
) -> None:
    """Told how many there are once all are written, say when the last of them was committed here."""
    say(ready=True)
    count = int(await asyncio.to_thread(sys.stdin.readline))
    began = time.monotonic()
    end = time.monotonic() + CONSUME_LIMIT_SECONDS
    # First the count in memory, which costs nothing; then whether the last of it is committed.
    while not (handled() >= count and await committed(count)):
        if work.done():
            work.result()
        if time.monotonic() > end:
            raise TimeoutError("not everything was consumed in time")
        await asyncio.sleep(0.005)
    say(began=began, ended=time.monotonic(), cpu=time.process_time())
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def bare_publish(nats_url: str, count: int, payload: bytes) -> None:
    """The peer: pipelined publish of as many bytes, nothing else."""
    client = await nats.connect(nats_url)
    js = client.jetstream(publish_async_max_pending=4000)
    say(ready=True)
    await told_to_go()
    began = time.monotonic()
    futures = []
    for number in range(count):
        futures.append(await js.publish_async("bare.events", payload, headers={"Nats-Msg-Id": f"b{number}"}))
        if len(futures) == 1000:
            await asyncio.gather(*futures)
            futures = []
    await asyncio.gather(*futures)
    say(began=began, committed=time.monotonic(), cpu=time.process_time())


async def bare_consume(nats_url: str, count: int) -> None:
    """The peer: take and acknowledge them."""
    client = await nats.connect(nats_url)
    js: JetStreamContext = client.jetstream()
    seen = 0
    async with Puller(client, BARE, inbox_consumer("bare"), batch=500) as puller:
        say(ready=True)
        began = time.monotonic()
        while seen < count:
            messages = await puller.next_batch(5.0)
            for message in messages:
                await message.ack()
            seen += len(messages)
    say(began=began, ended=time.monotonic(), cpu=time.process_time())
    del js


def main() -> None:
    role, nats_url, *rest = sys.argv[1:]
    ease_collector()  # As a service does; the peer gains by it, too.
    match role:
        case "produce":
            asyncio.run(produce(nats_url, rest[0], int(rest[1]), int(rest[2])))
        case "relay":
            asyncio.run(relay(nats_url, rest[0]))
        case "project":
            asyncio.run(project(nats_url, rest[0]))
        case "take_in":
            asyncio.run(take_in(nats_url, rest[0]))
        case "bare_publish":
            asyncio.run(bare_publish(nats_url, int(rest[0]), b"x" * int(rest[1])))
        case "bare_consume":
            asyncio.run(bare_consume(nats_url, int(rest[0])))


if __name__ == "__main__":
    main()
