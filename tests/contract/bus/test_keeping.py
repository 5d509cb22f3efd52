"""What is kept and for how long, what happens when the broker is full, away or empty, and when a replica is killed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from libs.bus.archive import Archive
from libs.bus.lease import Lease
from libs.bus.outbox import IDLE_SECONDS
from libs.bus.refill import LostCommands
from libs.bus.retention import Policy, Retention
from libs.bus.tables import bus_tables
from libs.bus.topology import apply_hub, load_topology
from libs.contracts.envelope import decode, now_utc
from libs.runtime.database import Database
from libs.runtime.service import App
from tests.conftest import eventually, fresh_database
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_dead_letters import letters, told
from tests.contract.bus.test_promises import command, mirrored, outbox_is_empty, publish, stream_events
from tests.contract.bus.test_restore import _counted
from tests.contract.bus.toy import scalar, toy_service

OUTBOX, INBOX = bus_tables("inventory").outbox, bus_tables("inventory").inbox


async def row(app: App, sql: str) -> Any:
    async with app.read() as conn:
        return await scalar(conn, sql)


@asynccontextmanager
async def archive(bench: Bench, database_url: str) -> AsyncIterator[App]:
    """The audit service on the same broker."""
    from services.audit.app import make_service
    from services.audit.settings import Settings

    settings = Settings(nats_url=bench.nats_url, database_url=database_url)
    database = Database(database_url, application_name="audit")
    app = App(make_service(settings), database)
    task = asyncio.ensure_future(app.run())
    try:
        yield app
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if app.nats is not None:
            await app.nats.close()
        await database.close()


async def _archived(app: App, count: int) -> bool:
    return bool(await row(app, "SELECT count(*) FROM audit.event WHERE service = 'inventory'") == count)


async def age(app: App, days: int) -> None:
    async with app.database.transaction() as conn:
        await conn.execute(OUTBOX.update().values(published_at=now_utc() - timedelta(days=days)))


async def test_events_leave_the_outbox_once_archived_and_a_broker_that_lost_everything_is_filled_from_both(
    bench: Bench,
) -> None:
    kept = bench.postgres.url(await fresh_database(bench.postgres, "audit"))
    async with bench.running() as app:
        await publish(bench, *(command(f"m{n % 3}") for n in range(12)))
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        await eventually(lambda: _counted(app, {f"m{n}": 4 for n in range(3)}), within_seconds=30)
        await age(app, 8)
        assert app.nats is not None
        retention = Retention("inventory", app.database, Archive("inventory", app.nats), app.holder, Policy())
        assert await retention.once() == 0, "nobody says that they are archived"
        async with archive(bench, kept) as audit:
            await eventually(lambda: _archived(audit, 12), within_seconds=60)
            assert await retention.once() == 11, "all but the newest"
        await publish(bench, command("m0"))
        await eventually(lambda: _counted(app, {"m0": 5, "m1": 4, "m2": 4}), within_seconds=30)
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        assert await row(app, "SELECT min(seq) FROM inventory.outbox") == 12
    before = await stream_events(bench)
    process = bench.nats.process()
    process.kill()
    shutil.rmtree(bench.folder / "nats" / "hub" / "js")
    process.start()
    async with bench.js() as js:
        await apply_hub(js, load_topology(), ("fra1",))
    async with archive(bench, kept), bench.running("after") as app:
        await publish(bench, command("m1"))
        await eventually(lambda: _counted(app, {"m0": 5, "m1": 5, "m2": 4}), within_seconds=60)
    after = await stream_events(bench)
    assert [(e.id, e.sequence, e.data) for e in after[:13]] == [(e.id, e.sequence, e.data) for e in before]
    assert len(after) == 14 and after[13].subject == "m1"


async def test_commands_that_a_broker_lost_are_sent_again_and_have_one_effect(bench: Bench) -> None:
    machines = [{"id": f"s{n}"} for n in range(5)]
    async with bench.running() as app:
        async with app.transaction() as ctx:
            await ctx.start_saga("toy", {"machines": machines}, target_kind="toy", target_id="t1")
        await eventually(lambda: _counted(app, {f"s{n}": 2 for n in range(5)}), within_seconds=60)
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        async with bench.js() as js:
            watch = LostCommands("inventory", app.database, js, app.holder)
            assert await watch.look() == 0 and await watch.look() == 0, "nothing was lost so far"
            # The stream is made anew, as from a lost disk; its consumer too.
            await js.delete_stream("CMD_inventory")
            await apply_hub(js, load_topology(), ("fra1",))
            assert await watch.look() > 0
            assert await watch.look() == 0, "once is enough"
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        await publish(bench, command("s0"))
        await eventually(lambda: _counted(app, {"s0": 3} | {f"s{n}": 2 for n in range(1, 5)}), within_seconds=60)


async def test_a_repeat_of_a_message_that_was_forgotten_is_refused_instead_of_handled_twice(bench: Bench) -> None:
    subject, payload, _ = command("old")
    old = decode(payload).model_copy(update={"time": now_utc() - timedelta(days=15)}).encode()
    async with bench.running() as app:
        young = command("young")
        await publish(bench, (subject, old, {}), young)
        await eventually(lambda: _counted(app, {"old": 1, "young": 1}), within_seconds=30)
        async with app.database.transaction() as conn:
            aged = INBOX.update().where(INBOX.c.key == "old").values(received_at=now_utc() - timedelta(days=15))
            await conn.execute(aged)
        assert app.nats is not None
        retention = Retention("inventory", app.database, Archive("inventory", app.nats), app.holder, Policy())
        await retention.once()
        assert await row(app, "SELECT count(*) FROM inventory.inbox WHERE key = 'old'") == 0
        assert await row(app, "SELECT count(*) FROM inventory.inbox WHERE key = 'young'") == 1
        await publish(bench, (subject, old, {}), (young[0], young[1], {}), command("new"))
        await eventually(lambda: _counted(app, {"old": 1, "young": 1, "new": 1}), within_seconds=30)
        await eventually(lambda: _is_refused(app), within_seconds=30)
        assert await mirrored(app) == {"old": 1, "young": 1, "new": 1}


async def _is_refused(app: App) -> bool:
    return [letter["cause"] for letter in await letters(app)] == ["older_than_memory"]


async def test_when_the_broker_takes_nothing_work_waits_at_the_limit_and_nothing_is_lost(bench: Bench) -> None:
    service = toy_service(bench.nats_url, bench.database_url)
    service.settings.outbox_soft_limit, service.settings.outbox_hard_limit = 20, 150
    async with bench.js() as js:
        info = await js.stream_info("EVT_inventory")
        await js.update_stream(info.config.evolve(max_msgs=10))
        async with bench.running(service=service) as app:
            await publish(bench, *(command(f"m{n % 10}") for n in range(600)))
            await eventually(lambda: _says(app, "nothing more is accepted"), within_seconds=60)
            await eventually(lambda: _all_landed(app, 600), within_seconds=60)
            waiting = await row(app, "SELECT count(*) FROM inventory.outbox WHERE published_at IS NULL")
            assert 150 <= waiting <= 150 + 100, "at most one batch beyond the limit"
            assert await row(app, "SELECT count(*) FROM inventory.inbox WHERE state = 0") >= 300
            refused = await told(app, "cancel_operation", operation_id="x")
            assert refused.status == 503 and refused.body["code"] == "service.paused"
            await js.update_stream(info.config.evolve(max_msgs=-1))
            await eventually(lambda: _counted(app, {f"m{n}": 60 for n in range(10)}), within_seconds=90)
            await eventually(lambda: outbox_is_empty(app), within_seconds=30)
            await eventually(lambda: _ready(app), within_seconds=30)
    events = await stream_events(bench)
    assert len({e.id for e in events}) == len(events) == 600


async def _says(app: App, words: str) -> bool:
    return any(words in problem for problem in app.problems())


async def _ready(app: App) -> bool:
    return not list(app.problems())


async def _all_landed(app: App, count: int) -> bool:
    return bool(await row(app, "SELECT count(*) FROM inventory.inbox") == count)


def test_a_killed_sequencer_is_replaced_within_five_seconds_by_its_settings() -> None:
    assert Lease("s", "sequencer", "h").ttl_seconds + IDLE_SECONDS <= 5


@pytest.mark.slow
async def test_when_the_process_that_publishes_is_killed_another_goes_on_without_gap_or_repeat(bench: Bench) -> None:
    processes = [await _process(bench, name) for name in ("one", "two")]
    database = Database(bench.database_url, application_name="test")
    watcher = App(bench.service(), database)
    try:
        await publish(bench, command("a"))
        await eventually(lambda: _counted(watcher, {"a": 1}), within_seconds=60, what="they run")
        holder, token = await _lease(watcher)
        processes[("one", "two").index(holder)].send_signal(signal.SIGKILL)
        await publish(bench, *(command("a") for _ in range(20)))
        await eventually(lambda: _counted(watcher, {"a": 21}), within_seconds=60, what="the other publishes")
        await eventually(lambda: outbox_is_empty(watcher), within_seconds=30)
        successor, newer = await _lease(watcher)
        assert successor != holder and newer > token
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await database.close()
    events = await stream_events(bench)
    assert [e.entityversion for e in events] == list(range(1, 22))
    assert [e.stream_sequence for e in events] == list(range(1, 22))


async def _process(bench: Bench, name: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.contract.bus.toy_process", bench.nats_url, bench.database_url, name
    )


async def _lease(app: App) -> tuple[str, int]:
    async with app.read() as conn:
        found = await conn.exec_driver_sql("SELECT holder, token FROM inventory.lease WHERE name = 'sequencer'")
        holder, token = found.one()
        return str(holder), int(token)
