"""The system under test: all processes of a local deployment on a simulated site, with links of ours between them.

A supervisor starts again whatever ended, as systemd or Kubernetes would. A fault holds the processes that it hurts;
while they are held the supervisor leaves them alone, and no second fault touches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import nats.errors
import nats.js.errors
import psutil

from chaos import brokers
from chaos.journal import Journal
from chaos.links import Link
from deploy.local import people
from deploy.local.layout import SERVICES
from deploy.local.preparation import prepare_broker, prepare_database
from deploy.local.site_parts import SimulatedSite, write_private
from deploy.local.stack import Stack
from libs.runtime.processes import Process, StartError
from services.audit.signing import make_key

PROCESSES = (*SERVICES, "gateway", "satellite")
LOOK_SECONDS = 0.3
DECLARE_TRIES = 60
# A step of the simulated hardware lasts so long that faults often strike in the middle of one.
STEP_SECONDS = 0.8
# Days: about a minute, so that machines are validated again while faults strike.
REVALIDATE_DAYS = "0.0008"


class World:
    """`hubs` names the hub's NATS servers (see brokers). Use as an async context manager: it runs inside."""

    def __init__(self, stack: Stack, journal: Journal, hubs: Sequence[str] = brokers.ONE) -> None:
        self.stack, self.journal, self.hubs = stack, journal, tuple(hubs)
        self.links = {f"pg:{service}": Link(f"pg:{service}", stack.ports.postgres) for service in SERVICES}
        for number, name in enumerate(self.hubs):
            self.links[f"leaf:{name}"] = Link(f"leaf:{name}", brokers.leaf_listen_port(stack.ports, number))
        self.servers = (*self.hubs, "nats-leaf", "postgres")
        self.names = (*self.servers, *PROCESSES)
        self.restarts: dict[str, int] = defaultdict(int)
        self.calm = False  # True: nothing new is begun by the clock alone.
        self.site_faults: dict[str, dict[str, Any]] = {}
        self._locks = {name: asyncio.Lock() for name in self.names}
        self._skewed: dict[str, float] = {}
        self._known: dict[tuple[str, float | None, bool], Process] = {}
        self._opened = AsyncExitStack()

    @property
    def leaf_links(self) -> list[Link]:
        return [link for name, link in self.links.items() if name.startswith("leaf:")]

    # -- processes ------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """The process of that name, as it would be started now."""
        now = (name, self._skewed.get(name), self.calm)
        if now not in self._known:  # Making one writes its configuration, which a start may be reading.
            self._known[now] = self._process(name)
        return self._known[now]

    def _process(self, name: str) -> Process:
        stack = self.stack
        if name == "postgres":
            return stack.postgres.process()
        if name == "nats-leaf":
            return brokers.leaf(stack.var, stack.ports, [link.port for link in self.leaf_links]).process()
        if name in self.hubs:
            found = brokers.hubs(stack.var, stack.ports, self.hubs)[self.hubs.index(name)].process()
            return replace(found, ports=())  # A killed server's port lingers; it tries to listen until it may.
        return self._program(name)

    def _program(self, name: str) -> Process:
        special = {"gateway": self.stack.gateway, "satellite": self.stack.satellite}
        process = special[name]() if name in special else self.stack.service(name)
        env = dict(process.env)
        if name in SERVICES:
            direct, link = f"127.0.0.1:{self.stack.ports.postgres}/", f"127.0.0.1:{self.links[f'pg:{name}'].port}/"
            for variable in ("SLIPWAY_DATABASE_URL", "SLIPWAY_OWNER_DATABASE_URL"):
                env[variable] = env[variable].replace(direct, link)
        if name == "inventory" and not self.calm:
            env["SLIPWAY_REVALIDATE_AFTER_DAYS"] = REVALIDATE_DAYS
        if name == "satellite":
            env["SLIPWAY_SIMULATED_STEP_SECONDS"] = str(STEP_SECONDS)
        if "SLIPWAY_NATS_URL" in env and len(self.hubs) > 1:
            number = PROCESSES.index(name) % len(self.hubs)
            env["SLIPWAY_NATS_URL"] = f"nats://127.0.0.1:{brokers.hub_port(self.stack.ports, number)}"
        argv = list(process.argv)
        if name in self._skewed:
            argv = [sys.executable, "-m", "chaos.skewed", str(self._skewed[name]), f"services.{name}.app"]
        return replace(process, env=env, argv=argv)

    # -- start and end --------------------------------------------------------------------------

    async def __aenter__(self) -> World:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _start(self) -> None:
        for link in self.links.values():
            await self._opened.enter_async_context(link)
        await asyncio.to_thread(self.stack.install, lambda line: self.journal.note("install", line))
        await asyncio.to_thread(self.stack.postgres.initialise)
        for name in self.servers:
            await asyncio.to_thread(self.process(name).start)
        await asyncio.to_thread(self.stack.oidc.start)
        await prepare_database(self.stack.var, self.stack.postgres)
        await self.declare()
        people.bootstrap_file(self.stack.var, self.stack.oidc.issuer)
        people.price_file(self.stack.var)
        make_key(self.stack.signing_key)
        people.sign_in_command_line(self.stack.var, self.stack.ports, self.stack.oidc)
        for name in PROCESSES:
            await asyncio.to_thread(self.process(name).launch)
        await self.ready(PROCESSES)
        supervisor = asyncio.create_task(self._supervise())
        self._opened.callback(supervisor.cancel)

    async def declare(self) -> None:
        """Bring streams and consumers in line with what is declared, as a start of the deployment does.

        Tried until the brokers answer: servers of a cluster first elect who decides.
        """
        tries = 0
        while True:
            tries += 1
            try:
                return await prepare_broker(self.stack.var, self.stack.ports, replicas=len(self.hubs))
            except (nats.errors.Error, nats.js.errors.APIError, OSError, TimeoutError):
                if tries == DECLARE_TRIES:
                    raise
                await asyncio.sleep(1)

    async def ready(self, names: Sequence[str]) -> None:
        """Wait until the processes say that they are ready. Raises StartError naming the first that is not."""
        for name in names:
            await asyncio.to_thread(self.process(name).wait_ready)

    async def _stop(self) -> None:
        await self._opened.aclose()
        for name in reversed(self.names):
            with contextlib.suppress(StartError, OSError, ValueError):
                await self.kill(name)
        with contextlib.suppress(StartError, OSError, ValueError):
            await asyncio.to_thread(self.stack.oidc.stop)

    # -- what faults do -------------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Keep processes for one fault. Afterwards they run again, with a right clock."""
        async with AsyncExitStack() as held:
            for name in sorted(names):  # One order for all, so that no two faults wait for one another.
                await held.enter_async_context(self._locks[name])
            try:
                yield
            finally:
                for name in names:
                    await self.resume(name)
                await asyncio.gather(*(self.start(name) for name in names))

    async def start(self, name: str) -> None:
        """Start it if it does not run; what can't be started yet is left to the supervisor."""
        with contextlib.suppress(StartError, OSError):
            await asyncio.to_thread(self.process(name).launch)

    def family(self, name: str) -> list[psutil.Process]:
        """The process and its descendants; PostgreSQL has one for every connection."""
        pid = self.process(name).pid()
        try:
            leader = psutil.Process(pid) if pid is not None else None
            return [leader, *leader.children(recursive=True)] if leader else []
        except psutil.NoSuchProcess:
            return []

    async def kill(self, name: str) -> None:
        """kill -9, and wait until nothing of it is left. Stopped first: it has no other child meanwhile."""
        self._signal(name, signal.SIGSTOP)
        members = self.family(name)
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        await asyncio.to_thread(psutil.wait_procs, members, 10.0)

    async def pause(self, name: str) -> None:
        """SIGSTOP: it holds everything it holds and does nothing."""
        self._signal(name, signal.SIGSTOP)

    async def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        for member in self.family(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    @contextlib.contextmanager
    def skewed(self, name: str, seconds: float) -> Any:
        """While inside, the process is started with a clock that is `seconds` ahead."""
        self._skewed[name] = seconds
        try:
            yield
        finally:
            self._skewed.pop(name, None)

    def break_machine(self, machine: str, fault: dict[str, Any] | None) -> None:
        """Give a machine's hardware a fault (see the simulated site's faults file); None mends it."""
        self.site_faults.pop(machine, None)
        if fault is not None:
            self.site_faults[machine] = fault
        parts = self.stack.parts
        assert isinstance(parts, SimulatedSite)
        write_private(parts.faults_file, self.site_faults)

    async def mend(self) -> None:
        """Everything is as it should be from now on."""
        for link in self.links.values():
            link.mend()
        for machine in list(self.site_faults):
            self.break_machine(machine, None)
        for name in self.names:
            await self.resume(name)

    # -- supervision ----------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            for name in self.names:
                if self._locks[name].locked() or self.process(name).pid() is not None:
                    continue
                async with self._locks[name]:
                    self.restarts[name] += 1
                    self.journal.note("started again", name=name, log=self.process(name).log_tail(3))
                    await self.start(name)
            await asyncio.sleep(LOOK_SECONDS)
