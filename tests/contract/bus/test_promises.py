"""What the bus promises, each by a test that would fail without it, on the real broker and database."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

from sqlalchemy import select

from libs.bus.tables import DEAD, bus_tables
from libs.contracts.envelope import Envelope, decode, new_message_id, now_utc
from libs.contracts.inventory import EnrolMachine
from libs.contracts.message import json_data
from libs.runtime.database import Database
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.toy import Switches, counts, emit_count, mirror, scalar


def command(key: str, message_id: str | None = None) -> tuple[str, bytes, dict[str, str]]:
    message = EnrolMachine(machine_id=key)
    kind = message.message_type
    envelope = Envelope(
        id=message_id or new_message_id(),
        source="/slipway/test",
        type=kind.type,
        time=now_utc(),
        subject=key,
        dataschema=kind.dataschema,
        correlationid="c-test",
        data=json_data(message),
    )
    return kind.subject(), envelope.encode(), {"Nats-Msg-Id": envelope.id}


async def publish(bench: Bench, *messages: tuple[str, bytes, dict[str, str]]) -> None:
    async with bench.js() as js:
        for subject, payload, headers in messages:
            await js.publish(subject, payload, headers=headers)


async def mirrored(app: App) -> dict[str, int]:
    async with app.read() as conn:
        return await counts(conn, mirror)


async def stream_events(bench: Bench) -> list[Envelope]:
    async with bench.js() as js:
        info = await js.stream_info("EVT_inventory")
        found = []
        for seq in range(1, info.state.last_seq + 1):
            found.append(decode((await js.get_msg("EVT_inventory", seq)).data))
        return found


async def outbox_is_empty(app: App) -> bool:
    async with app.read() as conn:
        return bool(await scalar(conn, "SELECT count(*) FROM inventory.outbox WHERE published_at IS NULL") == 0)


async def test_a_command_becomes_state_event_and_projection(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, *(command(f"m{n % 5}") for n in range(50)))
        await eventually(lambda: _equals(mirrored(app), {f"m{n}": 10 for n in range(5)}), what="50 counted")
        await eventually(lambda: outbox_is_empty(app))
    events = await stream_events(bench)
    assert [e.stream_sequence for e in events] == list(range(1, 51))
    for key in range(5):
        versions = [e.entityversion for e in events if e.subject == f"m{key}"]
        assert versions == list(range(1, 11))


async def _equals(value: Any, wanted: Any) -> bool:
    return bool(await value == wanted)


async def test_what_was_committed_before_a_crash_is_published_after_it(bench: Bench) -> None:
    # Nobody relays: state and event are committed, then the process is gone.
    database = Database(bench.database_url, application_name="crashed")
    app = App(bench.service(), database)
    async with app.transaction() as ctx:
        emit_count(ctx, "lost", 1, 1)
    await database.close()
    async with bench.running() as again:
        await eventually(lambda: _equals(mirrored(again), {"lost": 1}))


async def test_a_message_delivered_again_after_the_duplicate_window_has_no_second_effect(bench: Bench) -> None:
    async with bench.running() as app:
        once = command("m1")
        await publish(bench, once)
        await eventually(lambda: _equals(mirrored(app), {"m1": 1}))
        # Without the header the broker does not recognise it, as after its duplicate window.
        await publish(bench, (once[0], once[1], {}), command("m2"))
        await eventually(lambda: _equals(mirrored(app), {"m1": 1, "m2": 1}))


async def test_a_broker_that_lost_acknowledged_events_gets_exactly_those_again(bench: Bench) -> None:
    store = bench.folder / "nats" / "hub" / "js"
    kept = bench.folder / "older"
    async with bench.running() as app:
        await publish(bench, *(command("m1") for _ in range(3)))
        await eventually(lambda: outbox_is_empty(app))
    before = await stream_events(bench)
    process = _process(bench)
    process.stop()
    shutil.copytree(store, kept)
    process.start()
    async with bench.running("two") as app:
        await publish(bench, *(command("m1") for _ in range(4)))
        await eventually(lambda: _equals(mirrored(app), {"m1": 7}), within_seconds=30)
        await eventually(lambda: outbox_is_empty(app))
    after = await stream_events(bench)
    process.kill()
    shutil.rmtree(store)
    shutil.copytree(kept, store)
    process.start()
    assert len(await stream_events(bench)) == len(before)
    async with bench.running("three") as app:
        await eventually(lambda: _same_events(bench, after), within_seconds=30, what="the lost tail is back")
        await publish(bench, command("m1"))
        await eventually(lambda: _equals(mirrored(app), {"m1": 8}), within_seconds=30)


async def _same_events(bench: Bench, wanted: list[Envelope]) -> bool:
    found = await stream_events(bench)
    return [(e.id, e.sequence) for e in found] == [(e.id, e.sequence) for e in wanted]


def _process(bench: Bench) -> Any:
    return bench.nats.process()


async def test_two_relays_neither_lose_nor_reorder_nor_double_events(bench: Bench) -> None:
    async with bench.running("one") as first, bench.running("two"):
        await publish(bench, *(command(f"m{n % 7}") for n in range(210)))
        await eventually(lambda: _equals(mirrored(first), {f"m{n}": 30 for n in range(7)}), within_seconds=20)
    events = await stream_events(bench)
    assert [e.stream_sequence for e in events] == list(range(1, len(events) + 1))
    assert len({e.id for e in events}) == len(events)
    for n in range(7):
        assert [e.entityversion for e in events if e.subject == f"m{n}"] == list(range(1, 31))


async def test_a_failing_handler_is_tried_again_and_only_its_own_entity_waits(bench: Bench) -> None:
    Switches.fail = {"bad": 2}
    async with bench.running() as app:
        await publish(bench, command("bad"), command("good"), command("bad"), command("good"))
        await eventually(lambda: _equals(mirrored(app), {"good": 2, "bad": 2}), within_seconds=15)


async def test_a_poison_message_ends_as_a_dead_letter_and_can_be_driven_again(bench: Bench) -> None:
    Switches.fail = {"poison": 10_000}
    inbox = bus_tables("inventory").inbox
    async with bench.running() as app:
        await publish(bench, command("poison"), command("poison"), command("fine"))

        async def dead() -> bool:
            async with app.database.transaction() as conn:
                # Back-off would take minutes: every retry's time has come.
                await conn.execute(inbox.update().where(inbox.c.state == 0).values(due_at=now_utc()))
                rows = (await conn.execute(select(inbox.c.state, inbox.c.error, inbox.c.key))).all()
            return [(row.state, row.key) for row in rows if row.state == DEAD] == [(DEAD, "poison")]

        await eventually(dead, within_seconds=60, what="the first poison message is a dead letter")
        assert await mirrored(app) == {"fine": 1}
        letters = (await app.run_query(_call("dead_letters"))).body["items"]
        assert "told to fail" in letters[0]["error"] and letters[0]["attempts"] == 8
        Switches.fail = {}
        answer = await app.run_call(_call("redrive", id=str(letters[0]["id"])))
        assert answer.status == 202
        await eventually(lambda: _equals(mirrored(app), {"fine": 1, "poison": 2}))
        async with bench.js() as js:
            assert (await js.stream_info("DLQ")).state.messages == 1


def _call(call_name: str, **params: Any) -> Any:
    from libs.contracts.calls import Call

    return Call(name=call_name, actor="user:test", correlation_id="c", params=params)


async def test_an_unreadable_message_is_a_dead_letter_and_the_rest_goes_on(bench: Bench) -> None:
    async with bench.running() as app:
        subject = command("x")[0]
        await publish(bench, (subject, b"{not json", {}), (subject, b'{"id": 7}', {}), command("ok"))
        await eventually(lambda: _equals(mirrored(app), {"ok": 1}))
        letters = (await app.run_query(_call("dead_letters"))).body["items"]
        assert [letter["message_id"] for letter in letters] == ["CMD_inventory:1", "CMD_inventory:2"]


async def test_a_projection_that_is_rebuilt_has_the_digest_of_the_live_one(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, *(command(f"m{n % 9}") for n in range(90)))
        await eventually(lambda: _equals(mirrored(app), {f"m{n}": 10 for n in range(9)}))
        answer = await app.run_call(_call("rebuild_projection", name="mirror"))
        assert answer.body["equal"] and answer.body["events"] == 90
        async with app.database.transaction() as conn:
            await conn.execute(mirror.update().where(mirror.c.id == "m1").values(n=99))
        tampered = await app.run_call(_call("rebuild_projection", name="mirror"))
        assert not tampered.body["equal"]


async def test_a_saga_ends_although_its_service_is_killed_and_started_again(bench: Bench) -> None:
    machines = [{"id": f"s{n}"} for n in range(20)]
    async with bench.running("one") as app:
        async with app.transaction(actor="user:test") as ctx:
            operation = await ctx.start_saga("toy", {"machines": machines}, target_kind="toy", target_id="t1")
        await asyncio.sleep(0)
    async with bench.running("two") as again:
        await eventually(lambda: _finished(again, operation), within_seconds=20)
        got = (await again.run_query(_call("get_operation", operation_id=operation))).body
        assert got["status"] == "SUCCEEDED" and got["result"] == {"counts": [2] * 20}
        async with again.read() as conn:
            assert await counts(conn) == {f"s{n}": 2 for n in range(20)}
            assert await scalar(conn, "SELECT count(*) FROM inventory.saga_timer") == 0


async def _finished(app: App, operation: str) -> bool:
    answer = await app.run_query(_call("get_operation", operation_id=operation))
    return answer.body["status"] in ("SUCCEEDED", "FAILED")


async def test_a_saga_whose_step_fails_says_why(bench: Bench) -> None:
    async with bench.running() as app:
        async with app.transaction() as ctx:
            operation = await ctx.start_saga("toy", {"machines": [{"id": "never"}]}, target_kind="toy", target_id="t")
        await eventually(lambda: _finished(app, operation))
        got = (await app.run_query(_call("get_operation", operation_id=operation))).body
    assert got["status"] == "FAILED" and got["problem"]["code"] == "toy.never"


async def test_an_oversize_event_is_refused_before_it_can_break_the_connection(bench: Bench) -> None:
    import pytest

    from libs.bus.errors import Oversize
    from libs.contracts.inventory import RackFacts, RackUpdated

    database = Database(bench.database_url, application_name="big")
    app = App(bench.service(), database)
    with pytest.raises(Oversize, match="object store"):
        async with app.transaction() as ctx:
            facts = RackFacts(id="r", name="x" * 300_000, site="fra1", version=1)
            ctx.emit(RackUpdated(rack=facts), entity_id="r", entity_version=1)
    await database.close()
