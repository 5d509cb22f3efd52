"""Commands that a broker acknowledged and forgot before anybody had read them, on a stream that grew again since."""

from __future__ import annotations

import shutil

import pytest

from libs.bus import refill
from libs.bus.refill import LostCommands
from libs.bus.topology import command_stream, inbox_consumer
from libs.contracts.inventory import EnrolMachine
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_promises import command, outbox_is_empty, publish
from tests.contract.bus.test_restore import _counted

STREAM, CONSUMER = command_stream("inventory"), inbox_consumer("inventory")


async def test_commands_lost_unread_are_sent_again_although_their_stream_grew_since(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refill, "LOOK_SECONDS", 3600.0)  # The service's own look would be first now and then.
    store = bench.folder / "nats" / "hub" / "js"
    older = bench.folder / "older"
    server = bench.nats.process()
    server.stop()
    shutil.copytree(store, older)
    server.start()
    async with bench.running() as app:
        async with bench.js() as js:
            watch = LostCommands("inventory", app.database, js, app.holder)
            assert await watch.look() == 0
            await js.delete_consumer(STREAM, CONSUMER)  # Nobody reads.
        async with app.transaction() as ctx:
            for number in range(3):
                ctx.send(EnrolMachine(machine_id=f"s{number}"))
        await eventually(lambda: outbox_is_empty(app), within_seconds=30, what="all three are acknowledged")
        server.kill()
        shutil.rmtree(store)
        shutil.copytree(older, store)
        server.start()
        await publish(bench, *(command(f"m{number}") for number in range(5)))
        async with bench.js() as js:
            assert (await js.stream_info(STREAM)).state.last_seq == 5, "longer than what was lost"
            watch = LostCommands("inventory", app.database, js, app.holder)
            assert await watch.look() == 3
            assert await watch.look() == 0, "once is enough"
        wanted = {f"s{number}": 1 for number in range(3)} | {f"m{number}": 1 for number in range(5)}
        await eventually(lambda: _counted(app, wanted), within_seconds=60)
