"""A durable that somebody with the broker's rights deleted is made again by whom it serves: nothing lost or doubled."""

from __future__ import annotations

from typing import Any

import nats.js.errors
import pytest

from libs.bus.inbox import CONSUMERS_RESTORED
from libs.bus.refill import LostCommands
from libs.bus.topology import apply_hub, load_topology
from libs.runtime.database import Database
from libs.runtime.service import App
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_promises import _equals, command, mirrored, publish


async def _delete(bench: Bench, stream: str, consumer: str) -> None:
    async with bench.js() as js:
        assert await js.delete_consumer(stream, consumer)


async def _is_there(bench: Bench, stream: str, consumer: str) -> bool:
    async with bench.js() as js:
        try:
            await js.consumer_info(stream, consumer)
        except nats.js.errors.NotFoundError:
            return False
        return True


def _restored(stream: str) -> float:
    return float(CONSUMERS_RESTORED.labels("inventory", stream)._value.get())


@pytest.mark.parametrize("stream", ["CMD_inventory", "OBS"])
async def test_a_service_makes_its_own_durable_again_and_handles_everything_once(bench: Bench, stream: str) -> None:
    before = _restored(stream)
    async with bench.running() as app:
        await publish(bench, *(command(f"m{n}") for n in range(5)))
        await eventually(lambda: _equals(mirrored(app), {f"m{n}": 1 for n in range(5)}), within_seconds=30)
        await _delete(bench, stream, "inventory_inbox")
        await publish(bench, command("m0"), command("new"))
        await eventually(lambda: _is_there(bench, stream, "inventory_inbox"), within_seconds=30)
        wanted = {**{f"m{n}": 1 for n in range(5)}, "m0": 2, "new": 1}
        await eventually(lambda: _equals(mirrored(app), wanted), within_seconds=30, what="the new ones were handled")
        # Everything was delivered once more; what was handled before was known.
        await eventually(lambda: _delivered(bench, stream), within_seconds=30)
        assert await mirrored(app) == wanted and await _handled(app) == 7
        assert _restored(stream) == before + 1


async def _delivered(bench: Bench, stream: str) -> bool:
    async with bench.js() as js:
        info = await js.consumer_info(stream, "inventory_inbox")
        return bool(info.num_pending == 0 and info.num_ack_pending == 0)


async def _handled(app: App) -> int:
    async with app.read() as conn:
        return int((await conn.exec_driver_sql("SELECT sum(n) FROM inventory.counter")).scalar_one())


async def test_what_was_deleted_while_the_service_was_down_is_made_again_at_its_start(bench: Bench) -> None:
    await _delete(bench, "CMD_inventory", "inventory_inbox")
    await publish(bench, command("waited"))
    async with bench.running() as app:
        await eventually(lambda: _equals(mirrored(app), {"waited": 1}), within_seconds=30)


async def test_of_two_replicas_both_go_on_and_no_message_is_handled_twice(bench: Bench) -> None:
    async with bench.running("one") as one, bench.running("two"):
        await publish(bench, *(command(f"m{n % 3}") for n in range(30)))
        await _delete(bench, "CMD_inventory", "inventory_inbox")
        await publish(bench, *(command(f"m{n % 3}") for n in range(30)))
        await eventually(lambda: _equals(mirrored(one), {f"m{n}": 20 for n in range(3)}), within_seconds=60)


async def test_a_sites_durable_is_made_again_as_it_was_declared(bench: Bench) -> None:
    database = Database(bench.database_url, application_name="keeper")
    declared = await _config(bench)
    await _delete(bench, "SITE_fra1", "satellite")
    async with bench.js() as js:
        await LostCommands("inventory", database, js, "keeper").look()
    await database.close()
    assert await _config(bench) == declared


async def _config(bench: Bench) -> Any:
    async with bench.js() as js:
        return (await js.consumer_info("SITE_fra1", "satellite")).config


async def test_a_stream_that_is_gone_is_left_to_the_deployment_and_what_comes_after_is_handled(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, command("a"))
        await eventually(lambda: _equals(mirrored(app), {"a": 1}), within_seconds=30)
        async with bench.js() as js:
            await js.delete_stream("CMD_inventory")
            with pytest.raises(nats.js.errors.NotFoundError):
                await js.stream_info("CMD_inventory")
            await apply_hub(js, load_topology(), ("fra1",))
        await publish(bench, command("a"))
        await eventually(lambda: _equals(mirrored(app), {"a": 2}), within_seconds=60)
