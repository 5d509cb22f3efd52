"""The service of the saga measurement, in a process: `python -m bench.saga_parts NATS DATABASE SECONDS EFFECT`.

Six steps, each a command of the service to itself, kept in its inbox, to a handler that commits a row (EFFECT `effect`)
or does nothing (`nothing`), and its answer back the same way.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, MetaData, Table, Text, text

from bench.servers import say, told_to_go
from libs.bus.context import Context
from libs.contracts.inventory import (
    EnrolMachine,
    InventoryOperationFinished,
    InventoryOperationProgressed,
    InventoryOperationStarted,
)
from libs.contracts.replies import Reply, ok
from libs.runtime.collector import ease_collector
from libs.runtime.database import Database
from libs.runtime.service import App, Service
from libs.runtime.settings import ServiceSettings
from libs.saga import saga, step

OWNER, STEPS, AT_ONCE = "inventory", 6, 50
LIMIT_SECONDS = 240.0
LOOK_SECONDS = 0.02
DONE_TABLE = f"CREATE TABLE {OWNER}.done (command text PRIMARY KEY)"
done = Table("done", MetaData(schema=OWNER), Column("command", Text, primary_key=True))


async def enrol(ctx: Context, command: EnrolMachine) -> Reply:
    """A handler with an effect: one row for each command."""
    assert ctx.cause is not None
    await ctx.conn.execute(done.insert().values(command=ctx.cause.id))
    return ok(machine_id=command.machine_id)


async def do_nothing(ctx: Context, command: EnrolMachine) -> Reply:
    return ok(machine_id=command.machine_id)


HANDLERS = {"effect": enrol, "nothing": do_nothing}


def ask(data: dict[str, Any]) -> EnrolMachine:
    return EnrolMachine(machine_id=data["machine_id"])


six_steps = saga("six_steps", *(step(ask, name=f"step_{n}", within=timedelta(minutes=2)) for n in range(STEPS)))


async def run(nats_url: str, database_url: str, seconds: int, effect: str) -> None:
    """Keep 50 sagas under way for `seconds`, then until all have ended; say how many, from when until when."""
    service = Service(
        name=OWNER,
        metadata=done.metadata,
        settings=ServiceSettings(nats_url=nats_url),
        commands={EnrolMachine: HANDLERS[effect]},
        sagas=(six_steps,),
        operation_events=(InventoryOperationStarted, InventoryOperationProgressed, InventoryOperationFinished),
    )
    database = Database(database_url, application_name="bench")
    app = App(service, database)
    running = asyncio.create_task(app.run())
    while app.outbox is None:  # noqa: ASYNC110 (the shell has no event for it, and this is once)
        await asyncio.sleep(LOOK_SECONDS)
    say(ready=True)
    await told_to_go()
    began, started, ended = time.monotonic(), 0, 0
    while time.monotonic() < began + seconds or ended < started:
        if running.done():
            running.result()
        free = AT_ONCE - (started - ended) if time.monotonic() < began + seconds else 0
        await asyncio.gather(*(_start(app, f"m{started + number}") for number in range(free)))
        started += free
        await asyncio.sleep(LOOK_SECONDS)
        ended = await _ended(database)
        if time.monotonic() - began > LIMIT_SECONDS:
            raise TimeoutError(f"{ended} of {started} sagas ended in {LIMIT_SECONDS:.0f} s")
    say(began=began, ended=time.monotonic(), count=started, cpu=time.process_time())
    running.cancel()


async def _start(app: App, machine_id: str) -> None:
    """One saga in a transaction of its own, beside others, as requests start them."""
    async with app.transaction() as ctx:
        await ctx.start_saga("six_steps", {"machine_id": machine_id}, target_kind="machine", target_id=machine_id)


async def _ended(database: Database) -> int:
    async with database.transaction() as conn:
        query = f"SELECT count(*) FROM {OWNER}.saga WHERE status = 'SUCCEEDED'"
        return int(await conn.scalar(text(query)) or 0)


if __name__ == "__main__":
    ease_collector()  # As a service does.
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
