"""The dispatcher: one command at a time for each machine, bounded in all, and nothing without permission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import libs.contracts.all  # noqa: F401
from libs.contracts.envelope import Envelope, decode
from libs.contracts.message import json_data
from libs.contracts.replies import Outcome, Reply, ok
from libs.contracts.site import InspectNode
from services.satellite.dispatcher import Dispatcher
from services.satellite.journal import Journal, Landing
from services.satellite.model import order_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


class Bench:
    """A dispatcher on a real journal whose commands end when the test says so."""

    def __init__(self, path: Path, limit: int = 16) -> None:
        self.journal = Journal(path)
        self.begun: list[str] = []
        self.resumed: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.may_act = self.may_begin = True
        self.now = NOW
        self.dispatcher = Dispatcher(
            "fra1",
            self.journal,
            self._execute,
            may_act=lambda: self.may_act,
            may_begin=lambda: self.may_begin,
            on_answer=lambda: None,
            limit=limit,
            clock=lambda: self.now,
        )

    async def _execute(self, command: Envelope, resumed: bool) -> Reply:
        (self.resumed if resumed else self.begun).append(command.id)
        await self.gates.setdefault(command.id, asyncio.Event()).wait()
        return ok(did=command.id)

    def land(self, command_id: str, machine: str, *, deadline: datetime | None = None, epoch: int = 1) -> None:
        command = InspectNode(machine_id=machine, machine_name=machine)
        stored_at = NOW + timedelta(seconds=len(self.gates) + len(self.journal.open_entries()))
        envelope = Envelope(
            id=command_id,
            source="/slipway/inventory",
            type=command.message_type.type,
            time=NOW,
            subject=machine,
            correlationid="c",
            replyto="inventory",
            deadline=deadline,
            epoch=epoch,
            data=json_data(command),
        )
        order = order_of(command, stored_at=stored_at, deadline=deadline)
        self.journal.land([Landing(envelope, machine, order)], NOW)
        self.dispatcher.wake()

    def end(self, command_id: str) -> None:
        self.gates.setdefault(command_id, asyncio.Event()).set()

    def answers(self) -> dict[str, Outcome]:
        told = (decode(message.payload) for message in self.journal.unpublished(100))
        return {str(envelope.causationid): Outcome(envelope.data["outcome"]) for envelope in told}


@asynccontextmanager
async def working(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.dispatcher.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_commands_of_one_machine_wait_for_each_other_and_machines_do_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "j")
    bench.land("a1", "a")
    bench.land("a2", "a")
    bench.land("b1", "b")

    async with working(bench):
        await until(lambda: len(bench.begun) == 2)
        assert sorted(bench.begun) == ["a1", "b1"]
        bench.end("a1")
        await until(lambda: "a2" in bench.begun)
        assert bench.answers() == {"a1": Outcome.OK}


async def test_no_more_than_the_limit_run_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "j", limit=2)
    for number in range(4):
        bench.land(f"c{number}", f"m{number}")

    async with working(bench):
        await until(lambda: len(bench.begun) == 2)
        assert bench.dispatcher.running == 2
        bench.end("c0")
        await until(lambda: len(bench.begun) == 3)


async def test_a_command_begun_by_a_dead_process_is_resumed_before_anything_new(tmp_path: Path) -> None:
    first = Bench(tmp_path / "j")
    first.land("a1", "a")
    async with working(first):
        await until(lambda: first.begun == ["a1"])
    first.journal.close()

    second = Bench(tmp_path / "j")
    second.land("a2", "a")
    async with working(second):
        await until(lambda: second.resumed == ["a1"])
        second.end("a1")
        await until(lambda: second.begun == ["a2"])
        assert second.answers() == {"a1": Outcome.OK}


async def test_nothing_is_begun_or_resumed_without_permission_to_act(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "j")
    bench.may_act = False
    bench.land("a1", "a")

    async with working(bench):
        await asyncio.sleep(0.05)  # Nothing is to happen; there is no condition to wait for.
        assert bench.begun == []
        bench.may_act = True
        bench.dispatcher.wake()
        await until(lambda: bench.begun == ["a1"])


async def test_nothing_new_is_begun_while_the_hub_still_holds_a_backlog(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "j")
    bench.may_begin = False
    bench.land("a1", "a")

    async with working(bench):
        await asyncio.sleep(0.05)  # Nothing is to happen; there is no condition to wait for.
        assert bench.begun == []
        bench.may_begin = True
        bench.dispatcher.wake()
        await until(lambda: bench.begun == ["a1"])


async def test_a_deadline_that_passes_while_a_command_waits_for_its_machine_counts(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "j")
    bench.land("a1", "a")
    bench.land("a2", "a", deadline=NOW + timedelta(minutes=1))

    async with working(bench):
        await until(lambda: bench.begun == ["a1"])
        bench.now = NOW + timedelta(minutes=2)
        bench.end("a1")
        await until(lambda: "a2" in bench.answers())

    assert bench.answers() == {"a1": Outcome.OK, "a2": Outcome.EXPIRED}
    assert bench.begun == ["a1"]


async def test_what_was_sent_before_its_senders_restore_is_stale_and_what_came_after_is_worked_on(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "j")
    bench.land("before", "a")
    bench.land("after", "a", epoch=2)
    bench.land("late", "b", epoch=1)
    async with working(bench):
        await until(lambda: "after" in bench.begun)
        await until(lambda: len(bench.answers()) == 2)
        assert bench.answers() == {"before": Outcome.STALE, "late": Outcome.STALE}
        assert bench.begun == ["after"]
    bench.journal.close()
    assert Journal(tmp_path / "j").newest_epoch("/slipway/inventory") == 2, "it is known after a restart, too"


async def test_a_journal_that_fails_ends_the_dispatcher(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "j")
    bench.land("a1", "a")
    task = asyncio.create_task(bench.dispatcher.run())
    await until(lambda: bench.begun == ["a1"])

    bench.journal.close()
    bench.end("a1")

    with pytest.raises(Exception, match="closed database"):
        await asyncio.wait_for(task, 10)
