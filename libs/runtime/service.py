"""The shell around every hub service: connects, migrates, relays, lands, works, projects, answers, and says how it is.

A service hands in what it can do (`Service`); this is the only code that runs it. Everything is a task under one
group: a fault inside a task is logged and tried again by the task itself; a task that ends is a bug and ends
the process, which its supervisor starts again. Nothing lives only in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import structlog
from nats.aio.client import Client
from nats.js import JetStreamContext
from prometheus_client import Counter
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.archive import Archive
from libs.bus.context import Context
from libs.bus.gate import Gate
from libs.bus.inbox import Inbox, Received
from libs.bus.outbox import Outbox
from libs.bus.pressure import Limits, Pressure
from libs.bus.refill import LostCommands
from libs.bus.replay import Replays
from libs.bus.retention import Policy, Retention
from libs.bus.topology import command_stream
from libs.contracts.calls import Answer, Call
from libs.contracts.envelope import SYSTEM_ACTOR, Envelope
from libs.contracts.upcasters import UPCASTERS
from libs.projection import Projector, Rebuild
from libs.runtime.answering import Answering
from libs.runtime.broker import RECONNECT_SECONDS, connect
from libs.runtime.collector import ease_collector
from libs.runtime.database import Database
from libs.runtime.declared import Periodic, Service
from libs.runtime.door import Door
from libs.runtime.handling import handle_batch
from libs.runtime.health import Health
from libs.runtime.history import History
from libs.runtime.logs import set_up_logging
from libs.runtime.migrations import migrate
from libs.runtime.tasks import TaskSet, end_all
from libs.saga.engine import SagaEngine

TIMER_IDLE_SECONDS = 0.5  # Timers are limits of seconds and more; half a second late is early enough.

log = structlog.get_logger("service")
PERIODIC_FAILED = Counter("slipway_periodic_failures_total", "Periodic tasks that failed", ["service", "task"])


class App:
    """A running service, as its periodic tasks see it."""

    def __init__(self, service: Service, database: Database) -> None:
        self.service, self.database = service, database
        self.settings = service.settings
        self.state: dict[str, Any] = {}
        self.holder = f"{socket.gethostname()}:{os.getpid()}"
        self.engine: SagaEngine | None = None
        if service.sagas:
            assert service.operation_events is not None, f"{service.name} has sagas but no operation events"
            self.engine = SagaEngine(service.name, service.sagas, service.operation_events)
        self.nats: Client | None = None
        self.outbox: Outbox | None = None
        self.inbox: Inbox | None = None
        self.projectors: dict[str, Projector] = {}
        self.rebuilds: dict[str, Rebuild] = {}
        self.replays: Replays | None = None
        # What keeps this process from writing, and from publishing; both are open until something is known against it.
        self.writes, self.relays = Gate(), Gate()
        limits = Limits(self.settings.outbox_soft_limit, self.settings.outbox_hard_limit)
        self.pressure = Pressure(service.name, database, self.writes, limits)
        self.history: History | None = None
        self.door = Door(self)

    @property
    def epoch(self) -> int:
        """Rises when the database was restored; every message carries it."""
        return self.history.epoch if self.history is not None else 1

    @asynccontextmanager
    async def transaction(self, actor: str = SYSTEM_ACTOR, correlation_id: str = "") -> AsyncIterator[Context]:
        """A context whose messages are written at the end, in one transaction with everything else."""
        async with self.database.transaction() as conn:
            ctx = Context(
                conn, self.service.name, actor=actor, correlation_id=correlation_id, epoch=self.epoch, sagas=self.engine
            )
            yield ctx
            sent = await ctx.flush()
        if sent:
            self.wake()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with self.database.transaction() as conn:
            yield conn

    async def give_leases_back(self) -> None:
        """Let another replica go on at once instead of after the leases' time."""
        with contextlib.suppress(Exception):
            async with self.database.transaction() as conn:
                statement = f"UPDATE {self.service.name}.lease SET expires_at = '-infinity' WHERE holder = :me"
                await conn.execute(text(statement), {"me": self.holder})

    def wake(self) -> None:
        """Something was committed: relay it, and work on what the service told itself."""
        if self.outbox is not None:
            self.outbox.wake()
        if self.inbox is not None:
            self.inbox.wake()

    # -- handling -------------------------------------------------------------------------------

    def context(
        self, conn: AsyncConnection, cause: Envelope | None, outgoing: list[dict[str, Any]] | None = None
    ) -> Context:
        shared = [] if outgoing is None else outgoing
        return Context(conn, self.service.name, cause=cause, epoch=self.epoch, sagas=self.engine, outgoing=shared)

    async def handle_batch(self, conn: AsyncConnection, received: Sequence[Received]) -> None:
        """What came from the bus, in the given transaction."""
        await handle_batch(self, conn, received)

    async def run_call(self, call: Call) -> Answer:
        """A write of the gateway."""
        return await self.door.run_call(call)

    async def run_query(self, call: Call) -> Answer:
        """A read of the gateway."""
        return await self.door.run_query(call)

    # -- running --------------------------------------------------------------------------------

    def problems(self) -> Iterable[str]:
        """What is missing right now; empty when ready."""
        if self.nats is None or not self.nats.is_connected:
            yield "not connected to NATS"
        if self.history is not None:
            yield from self.history.problems()
        yield from self.pressure.problems()
        for name, projector in self.projectors.items():
            for stream, caught_up in projector.caught_up.items():
                if not caught_up:
                    yield f"projection {name} has not caught up with {stream}"

    async def run(self) -> None:
        """Run until cancelled."""
        self.nats = await connect(self.settings, self.service.name)
        js = self.nats.jetstream(publish_async_max_pending=4000)
        self.outbox = Outbox(self.service.name, self.database, js, self.holder)
        self.inbox = Inbox(self.service.name, self.database, js, self.handle_batch)
        self.projectors = {
            projection.name: Projector(self.service.name, projection, self.database, js, self.holder)
            for projection in self.service.projections
        }
        self.replays = Replays(self.service.name, self.database, js, self.holder)
        self.rebuilds = {
            projection.name: Rebuild(self.service.name, projection, self.database, js, self.holder)
            for projection in self.service.projections
        }
        self.outbox.gate, self.outbox.archive = self.relays, Archive(self.service.name, self.nats)
        self.history = History(self.service.name, self.database, js, self.writes, self.relays)
        await self.history.look_until_known()
        await self.door.accept_as_set()
        held = bool(self.relays.reasons)
        if not held:
            await self._begin()
        async with TaskSet() as tasks:
            for task in self._always():
                tasks.add(task)
            tasks.add(self._act(js, begin=held))
            await Answering(self.service.name, self.run_query, self.run_call, self.door.names()).begin(self.nats)
            await tasks.first_end()

    async def _begin(self) -> None:
        if self.service.on_start is not None:
            await self.service.on_start(self)

    async def _act(self, js: JetStreamContext, *, begin: bool) -> None:
        """Everything that writes or publishes; after a restore it waits here for a human."""
        if begin:
            await self.relays.wait()
            await self._begin()
        async with TaskSet() as tasks:
            for task in self._acting(js):
                tasks.add(task)
            await tasks.first_end()

    def _always(self) -> Iterable[Any]:
        """What changes nothing but our copies of what others said."""
        assert self.inbox is not None and self.history is not None
        yield self.history.watch()
        yield self.pressure.watch()
        yield self.inbox.measure_forever()
        yield self.inbox.land_forever(command_stream(self.service.name))
        yield self.inbox.land_forever("OBS")
        if self.engine is not None:
            yield self.engine.measure_forever(self.database)
        for projector in self.projectors.values():
            yield projector.run()
        assert self.replays is not None
        yield self.replays.run()
        for rebuild in self.rebuilds.values():
            yield rebuild.run()

    def _acting(self, js: JetStreamContext) -> Iterable[Any]:
        assert self.outbox is not None and self.nats is not None
        name, settings = self.service.name, self.settings
        keep, memory = timedelta(days=settings.outbox_keep_days), timedelta(days=settings.inbox_memory_days)
        policy = Policy(events=keep, commands=keep, memory=memory)
        yield self.outbox.run()
        yield Retention(name, self.database, Archive(name, self.nats), self.holder, policy).run()
        yield LostCommands(name, self.database, js, self.holder).run()
        for _ in range(settings.inbox_workers):
            yield self._work_inbox()
        if self.engine is not None:
            yield self._fire_timers()
        for periodic in self.service.periodic:
            yield self._run_periodic(periodic)

    async def _work_inbox(self) -> None:
        assert self.inbox is not None and self.outbox is not None
        inbox = self.inbox
        while True:
            worked = 0
            await self.writes.wait()
            inbox.clear()
            try:
                worked = await inbox.work_once()
                await self.pressure.worked(worked)
            except Exception as error:
                log.warning("inbox_failed", error=repr(error))
                await asyncio.sleep(RECONNECT_SECONDS)
            if worked:
                self.outbox.wake()
            else:
                await inbox.wait()

    async def _fire_timers(self) -> None:
        assert self.engine is not None
        while True:
            fired = 0
            await self.writes.wait()
            try:
                if await self.engine.timers_due(self.database):
                    async with self.database.transaction() as conn:
                        fired = await self.engine.fire_due_timers(conn, self.context)
            except Exception as error:
                log.warning("timers_failed", error=repr(error))
            if fired:
                self.wake()
            else:
                await asyncio.sleep(TIMER_IDLE_SECONDS)

    async def _run_periodic(self, periodic: Periodic) -> None:
        while True:
            await self.writes.wait()
            try:
                await periodic.run(self)
            except Exception as error:
                PERIODIC_FAILED.labels(self.service.name, periodic.name).inc()
                log.warning("periodic_failed", task=periodic.name, error=repr(error), exc_info=error)
            await asyncio.sleep(periodic.every_seconds)


async def run_service(service: Service) -> None:
    """Migrate if we may, then run with health endpoints until SIGTERM or SIGINT."""
    settings = service.settings
    UPCASTERS.check()
    if settings.owner_database_url.get_secret_value():
        applied = await migrate(settings.owner_database_url.get_secret_value(), service.name)
        log.info("migrated", applied=applied)
    database = Database(settings.database_url.get_secret_value(), application_name=service.name)
    app = App(service, database)
    health = Health(settings.metrics_host, settings.metrics_port, lambda: list(app.problems()))
    health.start()
    log.info("started", service=service.name, health_port=health.port)
    ease_collector()
    main_task = asyncio.ensure_future(app.run())
    beat_task = asyncio.ensure_future(_beat(health))
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Until it has really ended: a cancellation while it starts may be swallowed.
        loop.add_signal_handler(number, lambda: ending.append(asyncio.create_task(end_all([main_task]))))
    try:
        await main_task
    except asyncio.CancelledError:
        log.info("stopped", service=service.name)
    finally:
        beat_task.cancel()
        health.stop()
        await app.give_leases_back()
        if app.nats is not None:
            with contextlib.suppress(Exception):
                await app.nats.close()
        await database.close()


async def _beat(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(1)


def main(service: Service) -> None:
    """The entry point of `python -m services.<name>.app`."""
    set_up_logging(service.name, service.settings.log_format, service.settings.log_level)
    asyncio.run(run_service(service))


__all__ = ["App", "Periodic", "Service", "main", "run_service"]
