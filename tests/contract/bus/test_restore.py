"""A database restored from an older backup behind a newer stream: nothing acts on the past, a human lets it go on."""

from __future__ import annotations

from typing import Any

import asyncpg
import nats.js.errors
import pytest
from sqlalchemy import select

from libs.bus import restore
from libs.bus.admission import EPOCH_TYPE
from libs.bus.tables import bus_tables
from libs.contracts.envelope import Envelope, decode, new_message_id, now_utc
from libs.runtime.database import Database
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_dead_letters import asked, letters, told
from tests.contract.bus.test_promises import command, mirrored, outbox_is_empty, publish, stream_events
from tests.contract.bus.toy import Switches, emit_count


async def _as_superuser(bench: Bench, *statements: str) -> None:
    admin = await asyncpg.connect(bench.postgres.url())
    try:
        for statement in statements:
            await admin.execute(statement)
    finally:
        await admin.close()


def _name(bench: Bench) -> str:
    return bench.database_url.rpartition("/")[2]


async def back_up(bench: Bench) -> None:
    """A copy of the database as it is now. Nobody may be connected."""
    name = _name(bench)
    await _as_superuser(bench, f"CREATE DATABASE {name}_backup TEMPLATE {name}")


async def put_back(bench: Bench) -> None:
    """The database is what it was at the backup."""
    name = _name(bench)
    await _as_superuser(bench, f"DROP DATABASE {name} WITH (FORCE)", f"ALTER DATABASE {name}_backup RENAME TO {name}")


async def _held(app: App) -> bool:
    return app.history is not None and app.history.held is not None


async def _counted(app: App, wanted: dict[str, int]) -> bool:
    return await mirrored(app) == wanted


async def test_a_restored_service_waits_for_a_human_and_then_goes_on_after_the_streams_last(bench: Bench) -> None:
    Switches.fail = {"stuck": 10_000}
    try:
        async with bench.running("before") as app:
            await publish(bench, command("a"), command("a"), command("stuck"))
            async with app.transaction(actor="user:test") as ctx:
                operation = await ctx.start_saga(
                    "toy", {"machines": [{"id": "stuck"}]}, target_kind="toy", target_id="t"
                )
            await eventually(lambda: _counted(app, {"a": 2}), within_seconds=30)
            await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        await back_up(bench)
        Switches.fail = {}
        async with bench.running("after") as app:
            await publish(bench, command("a"), command("a"), command("b"))
            await eventually(lambda: _finished(app, operation), within_seconds=90, what="the saga went on to its end")
            await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        newer = await stream_events(bench)
        await put_back(bench)
        async with bench.running("restored") as app:
            await eventually(lambda: _held(app), within_seconds=30)
            await _nothing_acts(bench, app, operation, newer)
            await _accepted(bench, app, operation, newer)
    finally:
        Switches.fail = {}


async def _finished(app: App, operation: str) -> bool:
    async with app.database.transaction() as conn:
        inbox = bus_tables("inventory").inbox
        await conn.execute(inbox.update().where(inbox.c.state == 0).values(due_at=now_utc()))
    return bool((await asked(app, "get_operation", operation_id=operation)).body["status"] == "SUCCEEDED")


async def _nothing_acts(bench: Bench, app: App, operation: str, newer: list[Envelope]) -> None:
    assert any("restored" in problem for problem in app.problems())
    assert (await told(app, "cancel_operation", operation_id=operation)).status == 503
    async with app.database.transaction() as conn:
        await conn.execute(bus_tables("inventory").saga_timer.update().values(due_at=now_utc()))
    await publish(bench, command("later"))
    await eventually(lambda: _landed(app, "later"), within_seconds=30, what="messages still land")
    await eventually(lambda: _told_the_epoch(bench), within_seconds=30)
    assert [e.id for e in await stream_events(bench)] == [e.id for e in newer], "nothing was published"
    assert await _row(app, "SELECT count(*) FROM inventory.counter WHERE id = 'later'") == 0
    shown = (await asked(app, "restore")).body
    assert shown["waiting"] and shown["epoch"] == 2
    assert shown["lost_events"] == len(newer) - shown["own_last"] > 0
    lost = {(item["entity"], item["id"]): item for item in shown["items"]}
    assert (lost["rack", "a"]["first_version"], lost["rack", "a"]["last_version"]) == (3, 4)
    assert lost["rack", "b"]["first_version"] == 1
    assert lost["operation", operation]["last_type"] == "finished"
    # What waited in the backup had been handled after it; it is a human's to say whether it is handled now.
    assert {letter["cause"] for letter in await letters(app)} == {"before_restore"}


async def _landed(app: App, key: str) -> bool:
    return bool(await _row(app, f"SELECT count(*) FROM inventory.inbox WHERE key = '{key}'") == 1)


async def _told_the_epoch(bench: Bench) -> bool:
    async with bench.js() as js:
        try:
            message = await js.get_last_msg("CMD_cost", "cmd.cost.epoch.v1")
        except nats.js.errors.NotFoundError:
            return False
        told_epoch = decode(message.data)
        return told_epoch.type == EPOCH_TYPE and told_epoch.epoch == 2


async def _accepted(bench: Bench, app: App, operation: str, newer: list[Envelope]) -> None:
    assert (await told(app, "accept_restore", epoch=7, reason="wrong one")).status == 422
    answer = await told(app, "accept_restore", epoch=2, reason="INC-1")
    assert answer.status == 200 and answer.body["goes_on_after"] == len(newer)
    assert answer.body["parked_sagas"] == 1 and sorted(answer.body["not_found"]) == ["rack b", "rack stuck"]
    assert (await told(app, "accept_restore", epoch=2, reason="again")).status == 409
    await publish(bench, command("a"))
    await eventually(lambda: outbox_is_empty(app), within_seconds=30)
    await eventually(lambda: _has_more_events(bench, len(newer) + 3), within_seconds=30)
    events = await stream_events(bench)
    assert [e.stream_sequence for e in events] == list(range(1, len(events) + 1))
    assert {e.epoch for e in events[: len(newer)]} == {1} and {e.epoch for e in events[len(newer) :]} == {2}
    tenant_numbers = [int(e.tenantsequence or 0) for e in events]
    assert tenant_numbers == list(range(1, len(events) + 1))
    versions = [e.entityversion for e in events if e.subject == "a"]
    assert versions == [1, 2, 3, 4, 5], "newer for everybody than what they saw of the lost future"
    got = (await asked(app, "get_operation", operation_id=operation)).body
    assert "restored from a backup" in got["waiting_for"]
    parked = [e for e in events if e.subject == operation]
    assert [e.entityversion for e in parked] == list(range(1, len(parked) + 1))
    assert parked[-1].epoch == 2 and "restored" in parked[-1].data["operation"]["waiting_for"]
    assert (await told(app, "resume_operation", operation_id=operation)).status == 202


async def _has_more_events(bench: Bench, count: int) -> bool:
    async with bench.js() as js:
        return bool((await js.stream_info("EVT_inventory")).state.last_seq >= count)


async def _row(app: App, sql: str) -> Any:
    from tests.contract.bus.toy import scalar

    async with app.read() as conn:
        return await scalar(conn, sql)


async def test_a_peer_refuses_what_was_sent_before_the_restore_of_its_sender(bench: Bench) -> None:
    def sent(key: str, epoch: int) -> tuple[str, bytes, dict[str, str]]:
        subject, payload, _ = command(key)
        return (
            subject,
            decode(payload).model_copy(update={"epoch": epoch, "source": "/slipway/provisioning"}).encode(),
            {},
        )

    def announced() -> tuple[str, bytes, dict[str, str]]:
        envelope = Envelope(
            id=new_message_id(),
            source="/slipway/provisioning",
            type=EPOCH_TYPE,
            time=now_utc(),
            subject="provisioning",
            correlationid="c",
            epoch=2,
            data={},
        )
        return "cmd.inventory.epoch.v1", envelope.encode(), {}

    async with bench.running() as app:
        await publish(bench, sent("early", 1))
        await eventually(lambda: _counted(app, {"early": 1}), within_seconds=30)
        await publish(bench, announced(), sent("stale", 1), command("other"), sent("new", 2))
        await eventually(lambda: _counted(app, {"early": 1, "other": 1, "new": 1}), within_seconds=30)
        (letter,) = await letters(app)
        assert letter["cause"] == "stale_epoch" and letter["original"]["subject"] == "stale"


async def test_a_service_with_somebody_elses_database_says_so_and_does_nothing(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, command("a"))
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        await eventually(lambda: _counted(app, {"a": 1}), within_seconds=30)
    database = Database(bench.database_url, application_name="tamper")
    async with database.transaction() as conn:
        await conn.execute(bus_tables("inventory").outbox.update().values(message_id="another"))
    await database.close()
    async with bench.running("again") as app:
        await eventually(lambda: _foreign(app), within_seconds=30)
        assert (await told(app, "cancel_operation", operation_id="x")).status == 503


async def _foreign(app: App) -> bool:
    return any("do not belong together" in problem for problem in app.problems())


async def test_events_of_the_backup_that_were_published_after_it_keep_their_numbers(bench: Bench) -> None:
    database = Database(bench.database_url, application_name="crashed")
    app = App(bench.service(), database)
    async with app.transaction() as ctx:
        emit_count(ctx, "kept", 1, 1)
    await database.close()
    await back_up(bench)
    async with bench.running() as app:
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
    await put_back(bench)
    async with bench.running("restored") as app:
        await eventually(lambda: _held(app), within_seconds=30)
        await publish(bench, command("more"))
        await eventually(lambda: _landed(app, "more"), within_seconds=30)
    # Nobody can sign in: whoever starts the process says what a human would. Another epoch's word does not count.
    service = bench.service()
    service.settings.accept_restore = "3:another restore"
    async with bench.running("still", service=service) as app:
        await eventually(lambda: _held(app), within_seconds=30)
    service.settings.accept_restore = "2:test"
    async with bench.running("accepted", service=service) as app:
        await eventually(lambda: _counted(app, {"kept": 1, "more": 1}), within_seconds=30)
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
    assert [(e.subject, e.stream_sequence) for e in await stream_events(bench)] == [("kept", 1), ("more", 2)]


@pytest.mark.parametrize("replicas", [2])
async def test_of_several_replicas_that_notice_one_raises_the_epoch(bench: Bench, replicas: int) -> None:
    async with bench.running() as app:
        await publish(bench, command("a"))
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        await eventually(lambda: _counted(app, {"a": 1}), within_seconds=30)
    database = Database(bench.database_url, application_name="older")
    async with database.transaction() as conn:
        await conn.execute(bus_tables("inventory").outbox.delete())
        await conn.exec_driver_sql("UPDATE inventory.tenant_sequence SET last = 0")
    await database.close()
    async with bench.running("one") as one, bench.running("two") as two:
        await eventually(lambda: _held(one), within_seconds=30)
        await eventually(lambda: _held(two), within_seconds=30)
        async with one.read() as conn:
            assert await restore.read_epoch(conn, "inventory") == replicas
            assert len((await conn.execute(select(bus_tables("inventory").inbox.c.id))).all()) == 1
        assert (await told(two, "accept_restore", epoch=2, reason="test")).status == 200
        await publish(bench, command("b"))
        await eventually(lambda: _counted(one, {"a": 1, "b": 1}), within_seconds=30, what="the other goes on as well")
