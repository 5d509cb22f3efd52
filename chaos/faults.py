"""Carries planned faults out, one method a kind. Each mends what it broke before it returns."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from chaos import brokers, wire
from chaos.driver import Person
from chaos.history import Restore
from chaos.journal import Journal
from chaos.plan import SITE_LOCAL_STREAM, Fault
from chaos.world import World
from deploy.local.layout import SERVICES, SITE
from libs.bus.topology import event_stream

REPEATED_MESSAGES = 40
GROWTH_SECONDS = 60.0  # How long a stream is given to get messages that it can lose.
BROKER_TRIES = 40
MOST_AT_ONCE = 4  # Faults that last at the same time; with more, little of the system is ever up.
CONSUMER_SECONDS = 180.0  # A service notices at once, inventory and the satellite look every 30 s; all may be down.
# What the simulated site's faults file says for each target of break_machine.
MACHINE_FAULTS: dict[str, dict[str, Any]] = {
    "deploy": {"fail": {"deploy": "write to /dev/nvme0n1 failed: Input/output error"}},
    "clean": {"fail": {"clean": "nvme format failed"}},
    "ssh": {"ssh": "down"},
    "power": {"power": "stuck"},
}

Connect = Callable[[World], AbstractAsyncContextManager[Client]]


class Faults:
    """The faults of one run on one world."""

    def __init__(self, world: World, journal: Journal, seed: str, operator: Person) -> None:
        self.world, self.journal, self.seed, self.operator = world, journal, seed, operator
        self.restores: list[Restore] = []
        self.written: dict[str, tuple[int, ...]] = {}  # Where the harness wrote into a service's event stream.
        self.inflicted = 0
        self.lost = 0  # Messages that the broker had acknowledged and was made to forget.
        self.failed: list[str] = []

    async def run(self, faults: list[Fault], done: Callable[[Fault], None]) -> None:
        """All of them, each at its time. The next one waits for the end of those before it that hold it up: not for
        lasting ones, nor when the two are together."""
        running: set[asyncio.Task[None]] = set()
        holding: set[asyncio.Task[None]] = set()
        for fault in faults:
            if fault.alone:
                await _ended(running)
            elif not fault.together:
                await _ended(holding)
            while len(running := {task for task in running if not task.done()}) >= MOST_AT_ONCE:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(fault.pause)
            task = asyncio.create_task(self._one(fault, done))
            running.add(task)
            if not fault.lasting:
                holding.add(task)
            if fault.alone:
                await _ended(running)
        await _ended(running)

    async def _one(self, fault: Fault, done: Callable[[Fault], None]) -> None:
        self.journal.note("fault begins", number=fault.number, fault=str(fault))
        try:
            inflict: Callable[[Fault], Awaitable[str | None]] = getattr(self, fault.kind)
            said = await inflict(fault)
        except Exception as error:
            # A fault that can't be inflicted proves nothing; the run says so instead of counting it.
            self.failed.append(f"{fault.number} {fault}: {error!r}")
            self.journal.note("fault could not be inflicted", number=fault.number, error=repr(error))
        else:
            self.inflicted += 1
            self.journal.note("fault ends", number=fault.number, result=said or "")
        done(fault)

    # -- processes ------------------------------------------------------------------------------

    async def kill(self, fault: Fault) -> None:
        async with self.world.hold(fault.target):
            await self.world.kill(fault.target)
            await asyncio.sleep(fault.seconds)

    async def pause(self, fault: Fault) -> None:
        async with self.world.hold(fault.target):
            await self.world.pause(fault.target)
            await asyncio.sleep(fault.seconds)

    async def kill_all(self, fault: Fault) -> None:
        async with self.world.hold(*self.world.names):
            await asyncio.gather(*(self.world.kill(name) for name in self.world.names))
            await asyncio.sleep(fault.seconds)

    async def skew(self, fault: Fault) -> None:
        async with self.world.hold(fault.target):
            await self.world.kill(fault.target)
            with self.world.skewed(fault.target, fault.more["seconds"]):
                await self.world.start(fault.target)
                await asyncio.sleep(fault.seconds)
                await self.world.kill(fault.target)

    async def restore_database(self, fault: Fault) -> str:
        """Put PostgreSQL back to a copy of some seconds ago, as the runbook says: with every service stopped.

        Then an operator looks at the difference and accepts it, service by service.
        """
        world = self.world
        data = world.stack.postgres.data
        copy = data.with_name(f"postgres.older.{fault.number}")
        async with world.hold("postgres"):
            await world.kill("postgres")
            taken_at = datetime.now(UTC)
            await asyncio.to_thread(_copy_exactly, data, copy)
        await asyncio.sleep(fault.seconds)
        async with world.hold("postgres", *SERVICES):
            await asyncio.gather(*(world.kill(name) for name in ("postgres", *SERVICES)))
            shutil.rmtree(data)
            copy.rename(data)
        goes_on_after = {}
        for service in SERVICES:
            last = await self._accept(service)
            if last is not None:
                goes_on_after[service] = last
        restore = Restore(taken_at=taken_at, accepted_at=datetime.now(UTC), goes_on_after=goes_on_after)
        self.restores.append(restore)
        return f"accepted by an operator after {goes_on_after}"

    async def _accept(self, service: str) -> int | None:
        """Accept what the service's database lacks; None when it lacks nothing."""
        path = f"/services/{service}/restore"
        while True:  # It is ready, or says that it waits; until then it does not know yet.
            ready = await asyncio.to_thread(self.world.process(service).ready)
            shown = await self.operator.read(path)
            if shown and shown["waiting"]:
                break
            if ready:
                return None
            await asyncio.sleep(0.5)
        body = {"epoch": shown["epoch"], "reason": "a backup was restored by the fault harness"}
        accepted = await self.operator.ask("POST", f"{path}/accept", body)
        return int(accepted["goes_on_after"]) if accepted else None

    # -- links ----------------------------------------------------------------------------------

    async def cut_leaf(self, fault: Fault) -> None:
        await self._on_leaf_links(fault, lambda link: link.cut())

    async def stall_leaf(self, fault: Fault) -> None:
        await self._on_leaf_links(fault, lambda link: link.stall())

    async def slow_leaf(self, fault: Fault) -> None:
        await self._on_leaf_links(fault, lambda link: link.slow(fault.more["delay"]))

    async def _on_leaf_links(self, fault: Fault, what: Callable[[Any], None]) -> None:
        links = self.world.leaf_links
        for link in links:
            what(link)
        await asyncio.sleep(fault.seconds)
        for link in links:
            link.mend()

    async def cut_database(self, fault: Fault) -> None:
        link = self.world.links[f"pg:{fault.target}"]
        link.cut()
        await asyncio.sleep(fault.seconds)
        link.mend()

    async def break_commit(self, fault: Fault) -> str:
        link = self.world.links[f"pg:{fault.target}"]
        before = link.commits_broken
        link.break_commits(fault.more["how"], fault.more["times"])
        await asyncio.sleep(fault.seconds)
        link.mend()
        return f"{link.commits_broken - before} commits broken"

    # -- the site -------------------------------------------------------------------------------

    async def break_machine(self, fault: Fault) -> None:
        self.world.break_machine(fault.more["machine"], MACHINE_FAULTS[fault.target])
        await asyncio.sleep(fault.seconds)
        self.world.break_machine(fault.more["machine"], None)

    # -- streams --------------------------------------------------------------------------------

    async def lose_tail(self, fault: Fault) -> str:
        """Kill the broker, put an older copy of the stream's store in the place of its own, start it again."""
        return await self._lose(fault)

    async def lose_commands(self, fault: Fault) -> str:
        """The same, while whoever obeys the commands is stopped: so they are lost before anybody has read them."""
        kind, _, whose = fault.target.partition("_")
        return await self._lose(fault, "satellite" if kind == "SITE" else whose)

    async def _lose(self, fault: Fault, *stopped: str) -> str:
        """The copy is of a stopped server: what a crash at that moment would have left behind.

        Of three servers one loses what it stored since, all streams together: a store does not fit the log of another
        time. The others bring it up to date.
        """
        world = self.world
        name = world.hubs[fault.number % len(world.hubs)]
        streams = brokers.store(world.stack.var, name)
        store = streams / fault.target if len(world.hubs) == 1 else streams.parent.parent.parent
        copy = world.stack.var / "older" / f"{fault.number}"
        async with world.hold(name, *stopped):
            for reader in stopped:
                await world.pause(reader)
            await world.pause(name)
            shutil.copytree(store, copy)
            await world.resume(name)
            first = await self._last_sequence(fault.target)
            await asyncio.sleep(fault.seconds)
            last = await self._grown(fault.target, first + fault.more["least"])
            await world.kill(name)
            shutil.rmtree(store)
            copy.rename(store)
        self.lost += last - first
        return f"{last - first} acknowledged messages dropped, {first + 1} to {last}"

    async def _grown(self, stream: str, wanted: int) -> int:
        """The stream's last sequence once it is `wanted` or more, or after a while all the same."""
        deadline = asyncio.get_running_loop().time() + GROWTH_SECONDS
        while (last := await self._last_sequence(stream)) < wanted:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.2)
        return last

    async def _last_sequence(self, stream: str) -> int:
        async def ask(js: JetStreamContext) -> int:
            return int((await js.stream_info(stream)).state.last_seq)

        return int(await self._with_hub(ask))

    async def delete_consumer(self, fault: Fault) -> str:
        """Delete it and wait until whom it serves has noticed: nobody declares the deployment's topology again."""
        stream, consumer = fault.target.split("/")

        async def delete(js: JetStreamContext) -> None:
            try:
                await js.delete_consumer(stream, consumer)
            except nats.js.errors.NotFoundError:
                pass  # A try whose answer was lost had deleted it.

        async def is_there(js: JetStreamContext) -> bool:
            try:
                return bool(await js.consumer_info(stream, consumer))
            except nats.js.errors.NotFoundError:
                return False

        loop = asyncio.get_running_loop()
        at = wire.leaf if stream == SITE_LOCAL_STREAM else wire.hub
        await self._with_broker(at, delete)
        deleted_at = loop.time()
        while not await self._with_broker(at, is_there):
            if loop.time() - deleted_at > CONSUMER_SECONDS:
                raise TimeoutError(f"nobody made {fault.target} again within {CONSUMER_SECONDS:.0f} s")
            await asyncio.sleep(0.5)
        return f"made again after {loop.time() - deleted_at:.1f} s"

    async def fill_stream(self, fault: Fault) -> None:
        """Set the stream's limit to what it holds: the next message finds it full."""

        async def fill(js: JetStreamContext) -> None:
            info = await js.stream_info(fault.target)
            await js.update_stream(info.config.evolve(max_bytes=max(info.state.bytes, 1)))

        await self._with_hub(fill)
        await asyncio.sleep(fault.seconds)
        await self.world.declare()

    async def write_foreign(self, fault: Fault) -> str:
        """Garbage, and copies of the stream's last event, in between what its owner publishes.

        Not into a stream that has just lost its tail: there a place may be one that readers know, and its owner then
        rightly waits for a human.
        """
        service = fault.target.removeprefix(event_stream(""))

        async def write(js: JetStreamContext) -> list[int]:
            last = await js.get_msg(fault.target, (await js.stream_info(fault.target)).state.last_seq)
            said = (b"\xff no event", last.data or b"", b"{}")[: fault.more["messages"]]
            subject = f"evt.-.-.{service}.chaos.wrote.v1"
            acks = [await js.publish(subject, payload, headers={wire.FOREIGN: "1"}) for payload in said]
            return [ack.seq for ack in acks]

        async with self.world.hold(*self.world.hubs):
            await self._whole(service)
            written = await self._with_hub(write)
        self.written[service] = (*self.written.get(service, ()), *written)
        return f"at {written}"

    async def _whole(self, service: str) -> None:
        """Wait until the broker has all that the service knows it to have had."""
        while True:
            async with wire.database(self.world) as db:
                known = await db.fetchval(f"SELECT max(seq) FROM {service}.outbox WHERE published_at IS NOT NULL") or 0
            if await self._last_sequence(event_stream(service)) >= known:
                return
            await asyncio.sleep(0.2)

    async def repeat(self, fault: Fault) -> str:
        """Publish old messages of the stream again as if for the first time, shuffled, without their de-duplication id.

        So they come after the duplicate window and out of order. A site's words can only be repeated at the site.
        """
        dice = random.Random(f"{self.seed} {fault.number}")

        async def collect(js: JetStreamContext) -> list[tuple[str, bytes]]:
            state = (await js.stream_info(fault.target)).state
            numbers = range(max(state.first_seq, 1), state.last_seq + 1)
            chosen = dice.sample(numbers, min(REPEATED_MESSAGES, len(numbers)))
            found = [await js.get_msg(fault.target, number, direct=True) for number in chosen]
            return [(str(message.subject), message.data or b"") for message in found]

        messages = await self._with_hub(collect)
        at_site = fault.target == "OBS"
        async with wire.leaf(self.world) if at_site else wire.hub(self.world) as client:
            for subject, data in messages:
                place = subject.replace(f"obs.{SITE}.", f"local.{SITE}.", 1) if at_site else subject
                await client.publish(place, data)
            await client.flush()
        return f"{len(messages)} messages"

    async def _with_hub(self, what: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        return await self._with_broker(wire.hub, what)

    async def _with_broker(self, at: Connect, what: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        """Ask a broker as often as needed: it may be down by another fault."""
        tries = 0
        while True:
            tries += 1
            try:
                async with at(self.world) as client:
                    return await what(client.jetstream(timeout=5))
            except (nats.errors.Error, nats.js.errors.APIError, OSError, TimeoutError):
                if tries == BROKER_TRIES:
                    raise
                await asyncio.sleep(0.5)


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
    tasks.clear()


def _copy_exactly(source: Path, target: Path) -> None:
    """With owners, which PostgreSQL insists on and shutil does not keep."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
