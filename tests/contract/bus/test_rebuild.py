"""Rebuilding a projection: compared first, swapped in one step, gone on with after a kill, refused for history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from libs.projection import rebuild
from libs.runtime.service import App, Service
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_dead_letters import asked, told
from tests.contract.bus.test_promises import command, mirrored, publish
from tests.contract.bus.test_restore import _counted
from tests.contract.bus.toy import apply_mirror, mirror


async def _ended(app: App) -> bool:
    answer = await asked(app, "rebuild_progress", name="mirror")
    return bool(answer.status == 200 and answer.body["state"] != "running")


async def _knows_its_projections(app: App) -> bool:
    return bool(app.rebuilds)


async def test_a_swap_repairs_exactly_the_rows_that_differ_while_events_go_on(bench: Bench) -> None:
    async with bench.running() as app:
        await publish(bench, *(command(f"m{n % 9}") for n in range(90)))
        wanted = {f"m{n}": 10 for n in range(9)}
        await eventually(lambda: _counted(app, wanted), within_seconds=30)
        async with app.database.transaction() as conn:
            await conn.execute(mirror.update().where(mirror.c.id == "m1").values(n=99))
            await conn.execute(mirror.delete().where(mirror.c.id == "m2"))
            await conn.execute(mirror.insert().values(id="ghost", n=1, version=1, seen=1))
        compared = (await told(app, "rebuild_projection", name="mirror")).body
        assert compared["equal"] is False and compared["changes"] is None
        assert (await mirrored(app))["m1"] == 99, "comparing changes nothing"
        _, answer = await asyncio.gather(
            publish(bench, *(command("m3") for _ in range(20))),
            told(app, "rebuild_projection", name="mirror", swap=True),
        )
        await eventually(lambda: _ended(app), within_seconds=60)
        swapped = (await asked(app, "rebuild_progress", name="mirror")).body
        assert answer.status in (200, 202) and swapped["state"] == "done" and swapped["equal"] is False
        changes = swapped["changes"]["mirror"]
        # m1 replaced, m2 added, ghost removed; m3 was moving meanwhile and is never among them.
        assert changes == {"removed": 2, "added": 2}
        await eventually(lambda: _counted(app, {**wanted, "m3": 30}), within_seconds=30, what="the live one goes on")
        again = (await told(app, "rebuild_projection", name="mirror", swap=True)).body
        assert again["equal"] is True and again["changes"] is None


def _on_shadow(conn: AsyncConnection) -> bool:
    assert conn.sync_connection is not None
    return bool(conn.sync_connection.get_execution_options().get("schema_translate_map"))


class _Held:
    """Applies to the shadow stop after the first batch until they are let go."""

    def __init__(self) -> None:
        self.batches = 0
        self.go = asyncio.Event()

    async def __call__(self, conn: AsyncConnection, events: Sequence[Envelope]) -> None:
        if _on_shadow(conn):
            self.batches += 1
            if self.batches > 1:
                await self.go.wait()
        await apply_mirror(conn, events)


def _with(service: Service, apply: Any) -> Service:
    return replace(service, projections=tuple(replace(p, apply=apply) for p in service.projections))


async def test_a_rebuild_whose_process_is_killed_goes_on_where_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(rebuild, "ENOUGH", 1)
    held = _Held()
    async with bench.running("one", service=_with(bench.service(), held)) as app:
        await publish(bench, *(command(f"m{n % 3}") for n in range(700)))
        wanted = {"m0": 234, "m1": 233, "m2": 233}
        await eventually(lambda: _counted(app, wanted), within_seconds=60)
        begun = asyncio.create_task(told(app, "rebuild_projection", name="mirror"))
        await eventually(lambda: _is(held.batches > 1), within_seconds=30, what="it is in its second batch")
        progress = (await asked(app, "rebuild_progress", name="mirror")).body
        assert 0 < progress["progress"] < 1 and progress["state"] == "running"
        done_before = progress["events"]
        begun.cancel()
    counted: list[int] = []

    async def counting(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
        if _on_shadow(conn):
            counted.append(len(events))
        await apply_mirror(conn, events)

    async with bench.running("two", service=_with(bench.service(), counting)) as app:
        await eventually(lambda: _ended(app), within_seconds=60)
        found = (await asked(app, "rebuild_progress", name="mirror")).body
    assert found["equal"] is True and found["events"] == 700
    assert sum(counted) == 700 - done_before, "nothing that was applied is applied again"


async def _is(value: bool) -> bool:
    return value


async def test_a_rebuild_that_can_not_succeed_ends_with_its_reason(bench: Bench) -> None:
    async def refusing(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
        if _on_shadow(conn):
            raise ValueError("told to fail")
        await apply_mirror(conn, events)

    async with bench.running(service=_with(bench.service(), refusing)) as app:
        await publish(bench, command("a"))
        await eventually(lambda: _counted(app, {"a": 1}), within_seconds=30)
        await told(app, "rebuild_projection", name="mirror")
        await eventually(lambda: _ended(app), within_seconds=60)
        found = (await asked(app, "rebuild_progress", name="mirror")).body
        assert found["state"] == "failed" and "told to fail" in found["error"] and found["equal"] is None
        assert (await told(app, "rebuild_projection", name="nothing")).status == 404


async def test_history_is_compared_and_never_replaced(bench: Bench) -> None:
    admin = await asyncpg.connect(bench.database_url)
    await admin.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    for schema in ("inventory", "inventory_rebuild"):
        await admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
        await admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO reader")
    await admin.execute("REVOKE DELETE ON inventory.mirror FROM reader")
    await admin.close()
    host = bench.database_url.rpartition("@")[2]
    service = bench.service()
    reader = Bench(bench.postgres, bench.nats, f"postgresql://reader:reader@{host}", bench.folder)
    async with reader.running(service=service) as app:
        await eventually(lambda: _knows_its_projections(app), within_seconds=30)
        answer = await told(app, "rebuild_projection", name="mirror", swap=True)
        assert answer.status == 409 and "history" in answer.body["message"]
        assert (await told(app, "rebuild_projection", name="mirror")).status in (200, 202)
