"""The relay with more waiting than one batch holds."""

from __future__ import annotations

from libs.bus.outbox import BATCH, PUBLISHED, Outbox
from libs.contracts.inventory import EnrolMachine
from libs.runtime.database import Database
from libs.runtime.service import App
from tests.contract.bus.conftest import Bench
from tests.contract.bus.toy import emit_count, scalar

COUNT = 2 * BATCH + 100


async def test_a_backlog_of_commands_and_events_is_published_once_and_in_order(bench: Bench) -> None:
    app = App(bench.service(), Database(bench.database_url, application_name="relay"))
    async with app.transaction() as ctx:
        for number in range(COUNT):
            ctx.send(EnrolMachine(machine_id=f"m{number}"))
            emit_count(ctx, f"m{number}", 1, 1)
    sent = PUBLISHED.labels("inventory", "command")
    before = sent._value.get()
    async with bench.js() as js:
        await Outbox("inventory", app.database, js, "one").relay_all()
        assert (await js.stream_info("EVT_inventory")).state.last_seq == COUNT
        assert (await js.stream_info("CMD_inventory")).state.messages == COUNT
        last = await js.get_msg("EVT_inventory", COUNT)
    assert sent._value.get() - before == COUNT
    assert f'"m{COUNT - 1}"'.encode() in last.data
    async with app.read() as conn:
        assert await scalar(conn, "SELECT count(*) FROM inventory.outbox WHERE published_at IS NULL") == 0
    await app.database.close()
