"""Two releases of one service side by side on one bus: nothing is lost, doubled, passed over or set aside.

Each release is a process of its own (rolling.py), because what a program knows of versions is fixed when it starts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from libs.contracts.calls import Call
from libs.contracts.envelope import Envelope, new_message_id, now_utc
from libs.contracts.inventory import EnrolMachine
from libs.contracts.versions import parse_version
from tests.conftest import eventually
from tests.contract.bus.conftest import Bench
from tests.contract.bus.test_promises import command, publish, stream_events

RACK = "slipway.inventory.rack.updated"
KEYS = [f"m{n}" for n in range(6)]
PATIENCE_SECONDS = 90.0  # Two processes start and stand back from one another on a loaded computer.


@asynccontextmanager
async def release(bench: Bench, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replica of a release, killed at the end if it was not before."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contract.bus.rolling",
        name,
        bench.nats_url,
        bench.database_url,
        stdout=(bench.folder / f"{name}.log").open("wb"),
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": "."},
    )
    try:
        yield process
    finally:
        await kill(process)


async def kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
        await process.wait()


def newer(key: str) -> tuple[str, bytes, dict[str, str]]:
    """The command in version 2."""
    kind = EnrolMachine.message_type
    envelope = Envelope(
        id=new_message_id(),
        source="/slipway/test",
        type=kind.type,
        time=now_utc(),
        subject=key,
        dataschema=f"/schemas/commands/{kind.type}.v2.json",
        correlationid="c-test",
        data={"id": key},
    )
    return f"cmd.inventory.{kind.name}.v2", envelope.encode(), {"Nats-Msg-Id": envelope.id}


class Watched:
    """The database, looked at from outside."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn

    async def rows(self, table: str) -> dict[str, int]:
        return {row["id"]: row["n"] for row in await self.conn.fetch(f"SELECT id, n FROM inventory.{table}")}

    async def shows(self, wanted: dict[str, int]) -> bool:
        """Whether the counters and the projection both say so."""
        return await self.rows("counter") == wanted and await self.rows("mirror") == wanted

    async def value(self, sql: str) -> Any:
        return await self.conn.fetchval(sql)

    async def holder(self) -> str:
        return str(await self.value("SELECT holder FROM inventory.lease WHERE name = 'projection:mirror'"))


@asynccontextmanager
async def watched(bench: Bench) -> AsyncIterator[Watched]:
    conn = await asyncpg.connect(bench.database_url)
    try:
        yield Watched(conn)
    finally:
        await conn.close()


async def test_a_rolling_upgrade_loses_nothing_and_sets_nothing_aside(bench: Bench) -> None:
    wanted = dict.fromkeys(KEYS, 3)
    async with watched(bench) as seen, release(bench, "old") as old:
        await publish(bench, *(command(key) for key in KEYS * 3))
        await eventually(lambda: seen.shows(wanted), within_seconds=PATIENCE_SECONDS, what="the old release counts")
        await _a_command_of_tomorrow_waits(bench, seen)
        async with release(bench, "new"):
            wanted |= {"tomorrow": 1}
            await _both_work_side_by_side(bench, seen, wanted)
            await _what_only_the_new_one_reads_makes_the_old_one_give_way(bench, seen, wanted)
            await _a_process_that_only_the_new_one_knows_ends(bench, seen, wanted)
            await kill(old)
            await publish(bench, *(command(key) for key in KEYS), *(newer(key) for key in KEYS))
            wanted |= {key: wanted[key] + 2 for key in KEYS}
            await eventually(lambda: seen.shows(wanted), within_seconds=PATIENCE_SECONDS, what="the new one alone")
            await _a_rebuild_reads_every_version(bench)
        await _nothing_was_set_aside(bench, seen)
    await _each_fact_was_told_once_in_each_version(bench, wanted)


async def _a_command_of_tomorrow_waits(bench: Bench, seen: Watched) -> None:
    await publish(bench, newer("tomorrow"))
    tried = "SELECT count(*) FROM inventory.inbox WHERE state = 0 AND attempts > 0 AND error LIKE 'UnknownMessage%'"

    async def waits() -> bool:
        return bool(await seen.value(tried) == 1)

    await eventually(waits, within_seconds=PATIENCE_SECONDS, what="the old release has met version 2 and left it")


async def _both_work_side_by_side(bench: Bench, seen: Watched, wanted: dict[str, int]) -> None:
    assert await seen.holder() == "old"
    for _ in range(3):
        await publish(bench, *(command(key) for key in KEYS), *(newer(key) for key in KEYS))
    wanted |= {key: wanted[key] + 6 for key in KEYS}
    await eventually(lambda: seen.shows(wanted), within_seconds=PATIENCE_SECONDS, what="both releases count")


async def _what_only_the_new_one_reads_makes_the_old_one_give_way(
    bench: Bench, seen: Watched, wanted: dict[str, int]
) -> None:
    await publish(bench, newer("modern-1"), command("m0"))
    wanted |= {"modern-1": 1, "m0": wanted["m0"] + 1}
    await eventually(lambda: seen.shows(wanted), within_seconds=PATIENCE_SECONDS, what="version 2 alone is read")
    assert await seen.holder() == "new"


async def _a_process_that_only_the_new_one_knows_ends(bench: Bench, seen: Watched, wanted: dict[str, int]) -> None:
    await publish(bench, *(newer(f"process-p{n}") for n in range(4)))
    wanted |= {f"p{n}": 3 for n in range(4)}
    ended = "SELECT count(*) FROM inventory.saga WHERE kind = 'newer' AND status = 'SUCCEEDED'"

    async def all_ended() -> bool:
        return bool(await seen.value(ended) == 4)

    await eventually(all_ended, within_seconds=PATIENCE_SECONDS, what="whichever replica gets its replies")
    await eventually(lambda: seen.shows(wanted), within_seconds=PATIENCE_SECONDS)


async def _a_rebuild_reads_every_version(bench: Bench) -> None:
    call = Call(name="rebuild_projection", actor="user:test", correlation_id="c", params={"name": "mirror"})
    async with bench.js() as js:
        answer = await js._nc.request("call.inventory.rebuild_projection", call.model_dump_json().encode(), timeout=60)
    assert b'"equal":true' in answer.data, answer.data


async def _nothing_was_set_aside(bench: Bench, seen: Watched) -> None:
    assert await seen.value("SELECT count(*) FROM inventory.inbox WHERE state <> 1") == 0
    async with bench.js() as js:
        assert (await js.stream_info("DLQ")).state.messages == 0


async def _each_fact_was_told_once_in_each_version(bench: Bench, wanted: dict[str, int]) -> None:
    """Whoever reads version 1 misses nothing but what is told in version 2 alone; nobody is told anything twice."""
    told: dict[str, dict[int, list[int]]] = {}
    for event in await stream_events(bench):
        if event.type == RACK:
            told.setdefault(event.subject, {}).setdefault(parse_version(event), []).append(event.entityversion)
    assert set(told) == set(wanted)
    for key, count in wanted.items():
        everything = list(range(1, count + 1))
        if key.startswith("modern-"):
            assert told[key] == {2: everything}
            continue
        assert told[key][1] == everything
        second = told[key].get(2, [])
        assert second == sorted(set(second)) and set(second) <= set(everything)
        assert second or not key.startswith("m"), "the new release told nothing"
