"""What a service tells itself: it takes the short way, in the transaction that says it."""

from __future__ import annotations

import pytest

from libs.bus import context
from libs.contracts.inventory import EnrolMachine
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.toy import Switches, counts, scalar


@pytest.fixture(autouse=True)
def short_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes back what `bench` does for the other tests here."""
    monkeypatch.setattr(context, "OWN", "cmd.{s}.")


async def _ended(app: App, status: str) -> bool:
    async with app.read() as conn:
        return bool(await scalar(conn, f"SELECT count(*) = 1 FROM inventory.saga WHERE status = '{status}'"))


async def _counted(app: App, machine_id: str) -> bool:
    async with app.read() as conn:
        return machine_id in await counts(conn)


async def test_a_process_of_own_steps_goes_on_while_the_broker_is_away(bench: Bench) -> None:
    Switches.fail["m2"] = 1
    async with bench.running() as app:
        async with app.transaction() as ctx:
            ctx.send(EnrolMachine(machine_id="first"))
        await eventually(lambda: _counted(app, "first"), what="it works")
        server = bench.nats.process()
        server.kill()
        async with app.transaction() as ctx:
            machines = [{"id": "m1"}, {"id": "m2"}]
            await ctx.start_saga("toy", {"machines": machines}, target_kind="toy", target_id="t1")
        await eventually(lambda: _ended(app, "SUCCEEDED"), within_seconds=30, what="the process has ended")
        async with app.read() as conn:
            assert await counts(conn) == {"first": 1, "m1": 2, "m2": 2}
            assert await scalar(conn, "SELECT count(*) FROM inventory.outbox WHERE NOT is_event") == 0
            waiting = await scalar(conn, "SELECT count(*) FROM inventory.outbox WHERE published_at IS NULL")
            assert waiting > 0, "its events wait for the broker"
        server.start()
        nothing_waits = "SELECT count(*) = 0 FROM inventory.outbox WHERE published_at IS NULL"

        async def published() -> bool:
            async with app.read() as conn:
                return bool(await scalar(conn, nothing_waits))

        await eventually(published, within_seconds=60, what="its events are out")


async def test_what_is_rolled_back_was_never_said_and_what_is_said_twice_is_done_once(bench: Bench) -> None:
    async with bench.running() as app:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction() as ctx:
                ctx.send(EnrolMachine(machine_id="never_said"))
                raise ZeroDivisionError
        for _ in range(2):
            async with app.transaction() as ctx:
                ctx.send(EnrolMachine(machine_id="said"), command_id="the-same")
        await eventually(lambda: _counted(app, "said"), within_seconds=10, what="it is done")
        async with app.transaction() as ctx:
            ctx.send(EnrolMachine(machine_id="last"))
        await eventually(lambda: _counted(app, "last"), within_seconds=10, what="the last is done")
        async with app.read() as conn:
            assert await counts(conn) == {"said": 1, "last": 1}
