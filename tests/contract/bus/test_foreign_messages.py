"""Somebody else writes into a service's event stream: nothing of ours is lost, no number means two things."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from libs.bus import foreign
from libs.bus.outbox import Outbox
from libs.bus.tables import bus_tables
from libs.bus.topology import apply_hub, load_topology
from libs.contracts.envelope import Envelope, decode, new_message_id, sequence_text
from libs.projection.projector import PASSED_OVER
from libs.runtime.database import Database
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_dead_letters import letters
from tests.contract.bus.test_promises import _equals, command, mirrored, outbox_is_empty, publish
from tests.contract.bus.toy import emit_count, scalar

# Only the installation's own user could (deploy/local/nats_users.py).
SUBJECT = "evt.fra1.-.inventory.rack.updated.v1"
GARBAGE: tuple[str, bytes, dict[str, str]] = (SUBJECT, b"\xff garbage", {})


async def stream(bench: Bench) -> list[Envelope | None]:
    """What lies at 1, 2, 3, … of the stream; None for what is no event of ours."""
    async with bench.js() as js:
        last = (await js.stream_info("EVT_inventory")).state.last_seq
        found: list[Envelope | None] = []
        for sequence in range(1, last + 1):
            there = await foreign.look_at(js, "inventory", sequence)
            kept = await js.get_msg("EVT_inventory", sequence)
            found.append(decode(kept.data or b"") if isinstance(there, foreign.Own) else None)
        return found


def keys(events: list[Envelope | None]) -> list[str | None]:
    return [event.subject if event is not None else None for event in events]


def forged(event: Envelope, **changes: Any) -> tuple[str, bytes, dict[str, str]]:
    return SUBJECT, event.model_copy(update={"id": new_message_id(), "entityversion": 9, **changes}).encode(), {}


async def _written(bench: Bench, *said: tuple[str, int]) -> None:
    """Committed and not published: nobody relays."""
    database = Database(bench.database_url, application_name="crashed")
    app = App(bench.service(), database)
    for key, version in said:
        async with app.transaction() as ctx:
            emit_count(ctx, key, version, version)
    await database.close()


async def _numbered(bench: Bench) -> None:
    """As if the process had ended between numbering and publishing."""
    database = Database(bench.database_url, application_name="numbering")
    async with bench.js() as js:
        outbox = Outbox("inventory", database, js, "gone")
        await outbox._next_batch()
        async with database.transaction() as conn:
            await outbox.lease.give_back(conn)
    await database.close()


async def _all_is_well(bench: Bench, app: App, wanted: list[str | None]) -> None:
    await eventually(lambda: _lies(bench, wanted), within_seconds=30, what=f"the stream has {wanted}")
    await eventually(lambda: outbox_is_empty(app), within_seconds=30, what="everything was published")
    events = await stream(bench)
    assert keys(events) == wanted
    own = [(number, event) for number, event in enumerate(events, start=1) if event is not None]
    assert all(event.stream_sequence == number for number, event in own)
    assert [int(event.tenantsequence or 0) for _, event in own] == list(range(1, len(own) + 1)), "a tenant sees no gap"
    assert len({event.id for _, event in own}) == len(own)
    # And in the stream's order, nothing was passed over.
    shown = {event.subject: event.entityversion for _, event in own}
    await eventually(lambda: _equals(mirrored(app), shown), within_seconds=30)
    assert not any("restored" in problem for problem in app.problems())


async def _lies(bench: Bench, wanted: list[str | None]) -> bool:
    return keys(await stream(bench)) == wanted


async def test_while_nothing_is_under_way_the_next_event_goes_after_it_and_a_dead_letter_shows_it(bench: Bench) -> None:
    before = PASSED_OVER.labels("EVT_inventory", "unreadable")._value.get()
    async with bench.running() as app:
        await publish(bench, command("a"))
        await eventually(lambda: _equals(mirrored(app), {"a": 1}), within_seconds=30)
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
        (event,) = await stream(bench)
        assert event is not None
        await publish(bench, GARBAGE, forged(event), forged(event, sequence=sequence_text(4), source="/slipway/cost"))
        await publish(bench, command("b"))
        await _all_is_well(bench, app, ["a", None, None, None, "b"])
        shown = await letters(app)
        assert [letter["cause"] for letter in shown] == ["unreadable", "wrong_sender", "wrong_sender"]
        assert [letter["message_id"] for letter in shown] == [f"EVT_inventory:{number}" for number in (2, 3, 4)]
        assert PASSED_OVER.labels("EVT_inventory", "unreadable")._value.get() == before + 1
    # Once more from the start, nothing new is found.
    async with bench.running("again") as app:
        await publish(bench, command("c"))
        await _all_is_well(bench, app, ["a", None, None, None, "b", "c"])
        assert len(await letters(app)) == 3


async def test_between_numbering_and_publishing_the_refused_events_get_the_numbers_after_it(bench: Bench) -> None:
    await _written(bench, ("a", 1), ("b", 1), ("a", 2))
    await _numbered(bench)
    await publish(bench, GARBAGE)
    async with bench.running() as app:
        await _all_is_well(bench, app, [None, "a", "b", "a"])
        assert len(await letters(app)) == 1


async def test_in_the_middle_of_a_chain_no_event_is_lost_behind_the_acknowledgement_of_the_last(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _written(bench, *((f"k{n}", 1) for n in range(8)))
    database = Database(bench.database_url, application_name="chain")
    async with bench.js() as js:
        outbox = Outbox("inventory", database, js, "one")
        client = js._nc
        said, publish_plain = 0, client.publish

        async def interrupted(subject: str, *more: Any, **named: Any) -> None:
            nonlocal said
            if subject.startswith("evt."):
                said += 1
                if said == 4:
                    await publish_plain(*GARBAGE[:2])
            await publish_plain(subject, *more, **named)

        monkeypatch.setattr(client, "publish", interrupted)
        with pytest.raises(Exception, match="wrong last"):
            await outbox._publish(await outbox._next_batch())
        monkeypatch.undo()
        async with database.transaction() as conn:
            await outbox.lease.give_back(conn)
    await database.close()
    assert keys(await stream(bench)) == ["k0", "k1", "k2", None]
    async with bench.running() as app:
        await _all_is_well(bench, app, ["k0", "k1", "k2", None, *(f"k{n}" for n in range(3, 8))])


async def test_a_stream_that_is_lost_afterwards_is_filled_at_the_same_numbers(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, command("a"))
        await eventually(lambda: _equals(mirrored(app), {"a": 1}), within_seconds=30)
        await publish(bench, GARBAGE, GARBAGE)
        await publish(bench, command("b"), command("c"))
        await _all_is_well(bench, app, ["a", None, None, "b", "c"])
        before = await stream(bench)
        async with bench.js() as js:
            await js.delete_stream("EVT_inventory")
            await apply_hub(js, load_topology(), ("fra1",))
        await eventually(lambda: _same(bench, before), within_seconds=40, what="the same numbers mean the same")
        await publish(bench, command("d"))
        await eventually(lambda: _equals(mirrored(app), {"a": 1, "b": 1, "c": 1, "d": 1}), within_seconds=40)


async def _same(bench: Bench, wanted: list[Envelope | None]) -> bool:
    found = await stream(bench)
    return [event and event.id for event in found] == [event and event.id for event in wanted]


async def test_where_an_event_was_that_readers_may_know_everything_waits_for_a_human(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, command("a"), command("b"))
        await eventually(lambda: _equals(mirrored(app), {"a": 1, "b": 1}), within_seconds=30)
        await eventually(lambda: outbox_is_empty(app), within_seconds=30)
    async with bench.js() as js:
        # The broker lost both, and somebody wrote before they were put back.
        await js.delete_stream("EVT_inventory")
        await apply_hub(js, load_topology(), ("fra1",))
        await js.publish(*GARBAGE[:2])
        database = Database(bench.database_url, application_name="asks")
        with pytest.raises(foreign.PlaceTaken, match="event 1 of inventory may have been read"):
            await foreign.unmatched(database, js, "inventory", 1)
        await database.close()
    async with bench.running("again") as app:
        await publish(bench, command("c"))
        await eventually(lambda: _counted(app, "c"), within_seconds=30)
        await asyncio.sleep(1)
        assert keys(await stream(bench)) == [None], "nothing was published over it"
        async with bench.js() as js:
            await js.delete_stream("EVT_inventory")
            await apply_hub(js, load_topology(), ("fra1",))
        await _all_is_well(bench, app, ["a", "b", "c"])


async def _counted(app: App, key: str) -> bool:
    async with app.read() as conn:
        return bool(await scalar(conn, f"SELECT count(*) FROM inventory.counter WHERE id = '{key}'") == 1)


async def test_what_was_forged_as_ours_at_its_right_place_is_another_history_and_stops_the_service(
    bench: Bench,
) -> None:
    await _written(bench, ("a", 1))
    await _numbered(bench)
    database = Database(bench.database_url, application_name="reads")
    async with database.transaction() as conn:
        row = (await conn.execute(bus_tables("inventory").outbox.select())).mappings().one()
    await database.close()
    ours = decode(row["payload"])
    await publish(bench, forged(ours, sequence=sequence_text(1), tenantsequence=sequence_text(1)))
    async with bench.running() as app:
        await eventually(lambda: _foreign(app), within_seconds=30)


async def _foreign(app: App) -> bool:
    return any("do not belong together" in problem for problem in app.problems())
