"""Messages that can't be handled: set aside with their cause, seen, edited, driven again, dropped; others flow."""

from __future__ import annotations

from typing import Any

import nats
import nats.errors
from sqlalchemy import case, select

from libs.bus.dead_letter_gauges import Waiting, waiting
from libs.bus.inbox import MAX_ATTEMPTS, MAX_UNKNOWN_ATTEMPTS
from libs.bus.tables import DONE, DROPPED, bus_tables
from libs.contracts.calls import Answer, Call
from libs.contracts.envelope import decode, new_message_id, now_utc
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_promises import _equals, command, mirrored, publish
from tests.contract.bus.toy import Switches

INBOX = bus_tables("inventory").inbox


async def asked(app: App, call: str, /, **params: Any) -> Answer:
    return await app.run_query(Call(name=call, actor="user:op", correlation_id="c", params=params))


async def told(app: App, call: str, /, **params: Any) -> Answer:
    return await app.run_call(Call(name=call, actor="user:op", correlation_id="c", params=params))


async def letters(app: App, **filters: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await asked(app, "dead_letters", **filters)).body["items"]
    return items


async def all_retries_are_due(app: App) -> None:
    """Back-off would take minutes: what has failed once has one attempt left, and it is due."""
    async with app.database.transaction() as conn:
        failed_once = INBOX.update().where(INBOX.c.state == 0, INBOX.c.attempts > 0)
        last = case((INBOX.c.error.like("UnknownMessage%"), MAX_UNKNOWN_ATTEMPTS), else_=MAX_ATTEMPTS) - 1
        await conn.execute(failed_once.values(due_at=now_utc(), attempts=last))


async def dead_are(app: App, count: int) -> bool:
    await all_retries_are_due(app)
    return len(await letters(app)) == count


async def test_a_dead_letter_is_seen_edited_driven_again_or_dropped_and_every_step_is_kept(bench: Bench) -> None:
    Switches.fail = {"bad": 10_000, "gone": 10_000}
    try:
        async with bench.running() as app:
            waits = [command("bad"), command("bad"), command("gone"), command("gone")]
            await publish(bench, command("bad"), command("gone"), *waits, command("fine"))
            await eventually(lambda: dead_are(app, 2), within_seconds=60, what="both first messages are dead")
            await eventually(lambda: _equals(mirrored(app), {"fine": 1}))
            shown = await _measured(app)
            assert (shown.dead, shown.parked) == (2, 4) and 0 < shown.oldest_seconds < 120
            await _edited_with_its_original_kept(app)
            await _dropped_and_what_waited_goes_on(app)
    finally:
        Switches.fail = {}


async def _measured(app: App) -> Waiting:
    async with app.read() as conn:
        return await waiting(conn, "inventory")


async def _edited_with_its_original_kept(app: App) -> None:
    (letter,) = await letters(app, key="bad")
    assert letter["cause"] == "handler_failed" and letter["attempts"] == 8
    assert "told to fail" in letter["error"] and letter["waiting_behind"] == 2
    shown = (await asked(app, "dead_letter", id=letter["id"])).body
    assert len(shown["waiting"]) == 2 and shown["history"] == [] and shown["as_it_is"] is None

    refused = await told(app, "redrive", id=letter["id"], data={"machine_id": 7}, reason="a try")
    assert refused.status == 422 and refused.body["errors"][0]["field"] == "data.machine_id"
    foreign = {**letter["original"], "id": new_message_id()}
    assert (await told(app, "redrive", id=letter["id"], message=foreign, reason="a try")).status == 422
    assert (await asked(app, "dead_letter", id=letter["id"])).body["history"] == []

    Switches.fail = {"gone": 10_000}
    answer = await told(app, "redrive", id=letter["id"], data={"machine_id": "good"}, reason="wrong machine")
    assert answer.status == 202 and answer.body == {"id": letter["id"], "edited": True, "released": 2}
    await eventually(lambda: _equals(mirrored(app), {"fine": 1, "good": 1, "bad": 2}))
    assert (await told(app, "redrive", id=letter["id"])).status == 404
    async with app.read() as conn:
        kept = (await conn.execute(select(bus_tables("inventory").dead_letter_action))).mappings().one()
    assert (kept["action"], kept["reason"], kept["actor"]) == ("edited", "wrong machine", "user:op")
    assert decode(kept["payload_before"]).data == {"machine_id": "bad"}


async def _dropped_and_what_waited_goes_on(app: App) -> None:
    (letter,) = await letters(app, key="gone")
    assert (await told(app, "drop_dead_letter", id=letter["id"])).status == 422
    Switches.fail = {}
    answer = await told(app, "drop_dead_letter", id=letter["id"], reason="machine was sold")
    assert answer.body == {"id": letter["id"], "released": 2}
    await eventually(lambda: _equals(mirrored(app), {"fine": 1, "good": 1, "bad": 2, "gone": 2}))
    assert await letters(app) == [] and await _measured(app) == Waiting(0, 0.0, 0)
    async with app.read() as conn:
        states = [row.state for row in await conn.execute(select(INBOX.c.state).order_by(INBOX.c.id))]
    assert sorted(states) == [DONE] * 6 + [DROPPED]


async def test_many_are_driven_again_by_filter_after_a_dry_run_and_pages_show_them_all(bench: Bench) -> None:
    Switches.fail = {f"m{n}": 10_000 for n in range(4)}
    try:
        async with bench.running() as app:
            await publish(bench, *(command(f"m{n}") for n in range(4)), (command("x")[0], b"{no json", {}))
            await eventually(lambda: dead_are(app, 5), within_seconds=60)
            seen, cursor = [], "0"
            while cursor:
                page = (await asked(app, "dead_letters", limit=2, cursor=cursor)).body
                seen += [item["id"] for item in page["items"]]
                cursor = page["next_cursor"]
            assert len(seen) == len(set(seen)) == 5

            assert (await told(app, "redrive_many", reason="network is back")).status == 422
            dry = (await told(app, "redrive_many", error="told to fail", dry_run=True)).body
            assert dry["redriven"] == 4 and len(await letters(app)) == 5
            Switches.fail = {}
            done = (await told(app, "redrive_many", all=True, reason="network is back")).body
            assert done["redriven"] == 4
            assert [item["field"] for item in done["not_redriven"]] == ["message"]
            await eventually(lambda: _equals(mirrored(app), {f"m{n}": 1 for n in range(4)}))
            assert [letter["cause"] for letter in await letters(app)] == ["unreadable"]
    finally:
        Switches.fail = {}


def _variant(**changes: Any) -> tuple[str, bytes, dict[str, str]]:
    subject, payload, _ = command("bad")
    return subject, decode(payload).model_copy(update=changes).encode(), {}


async def test_bad_messages_of_every_kind_are_counted_set_aside_and_stop_nobody(bench: Bench) -> None:
    subject = command("x")[0]
    big = decode(command("x")[1]).model_copy(update={"data": {"machine_id": "x", "more": "y" * 300_000}}).encode()
    newer = "/schemas/commands/slipway.command.inventory.enrol_machine.v9.json"
    bad = {
        "unreadable": (subject, b"\xff\x00{", {}),
        "oversized": (subject, big, {}),
        "wrong_subject": ("cmd.inventory.other.v1", command("x")[1], {}),
        "wrong_sender": _variant(source="/slipway/satellite"),
        "future_dated": _variant(time=now_utc().replace(year=2099)),
        "unknown_type": _variant(type="slipway.command.what ever >.*\r\n", dataschema=newer, subject="odd"),
    }
    async with bench.running() as app:
        await publish(bench, *bad.values(), command("bad"), command("fine"))
        await eventually(lambda: dead_are(app, 6), within_seconds=60)
        await eventually(lambda: _equals(mirrored(app), {"bad": 1, "fine": 1}), what="good ones of the same thing flow")
        assert {letter["cause"] for letter in await letters(app)} == set(bad)
        await eventually(lambda: _dlq_has(bench, 6), what="each is told on the dead-letter subject")
        # What was refused at the door may still be let in by a human; it is checked first.
        (future,) = await letters(app, cause="future_dated")
        assert (await told(app, "redrive", id=future["id"], reason="clock was wrong")).status == 202
        await eventually(lambda: _equals(mirrored(app), {"bad": 2, "fine": 1}))
        (garbage,) = await letters(app, cause="unreadable")
        assert (await told(app, "redrive", id=garbage["id"], reason="again")).status == 422
        whole = decode(command("mended")[1]).model_dump(mode="json", exclude_none=True)
        assert (await told(app, "redrive", id=garbage["id"], reason="was cut", message=whole)).status == 202
        await eventually(lambda: _equals(mirrored(app), {"bad": 2, "fine": 1, "mended": 1}))


async def _dlq_has(bench: Bench, count: int) -> bool:
    async with bench.js() as js:
        return bool((await js.stream_info("DLQ")).state.messages == count)


async def test_dropping_a_command_answers_whoever_waits_for_it(bench: Bench) -> None:
    Switches.fail = {"s1": 10_000}
    try:
        async with bench.running() as app:
            async with app.transaction() as ctx:
                operation = await ctx.start_saga("toy", {"machines": [{"id": "s1"}]}, target_kind="toy", target_id="t")
            await eventually(lambda: dead_are(app, 1), within_seconds=60)
            (letter,) = await letters(app)
            await told(app, "drop_dead_letter", id=letter["id"], reason="not wanted any more")

            async def failed() -> bool:
                got = (await asked(app, "get_operation", operation_id=operation)).body
                return bool(got["status"] == "FAILED") and "not wanted any more" in got["problem"]["message"]

            await eventually(failed, within_seconds=20, what="the saga ends with the reason")
    finally:
        Switches.fail = {}


async def _is_answering(client: Any) -> bool:
    try:
        await client.request("qry.inventory.dead_letters", b"{}", timeout=20)
    except nats.errors.NoRespondersError:
        return False
    return True


async def test_calls_that_are_no_calls_are_refused_and_answering_goes_on(bench: Bench) -> None:
    async with bench.running() as app:
        client = await nats.connect(bench.nats_url)
        try:
            await eventually(lambda: _is_answering(client), within_seconds=30)
            for name in ("qry.inventory.dead_letters", "call.inventory.redrive"):
                for payload in (b"", b"\xff", b"{}", b"[" * 5000, b'{"name": "\\u0000"}', b"x" * 500_000):
                    answer = Answer.model_validate_json((await client.request(name, payload, timeout=20)).data)
                    assert answer.status in (400, 404, 422), (name, payload[:20], answer)
            good = Call(name="dead_letters", actor="user:op", correlation_id="c").model_dump_json().encode()
            answer = Answer.model_validate_json((await client.request("qry.inventory.dead_letters", good)).data)
            assert answer.status == 200
        finally:
            await client.close()
        assert app.nats is not None and app.nats.is_connected
