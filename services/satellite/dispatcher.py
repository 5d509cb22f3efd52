"""Works the journal: in order for each machine, at most so many at once, each command once.

Commands that were begun before this process started are resumed first. Whether a command may be begun at all
is decided in `model`; whether the satellite may act at all (lease, clock) and may begin what it has not begun
(the hub's backlog is landed) is asked before every start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog
from prometheus_client import Counter, Gauge, Histogram

from libs.contracts.envelope import Envelope, now_utc
from libs.contracts.ids import is_slug
from libs.contracts.replies import Reply
from libs.runtime.tasks import end_all
from services.satellite.journal import Entry, Journal
from services.satellite.messages import reply_envelope, reply_subject
from services.satellite.model import objection

log = structlog.get_logger(__name__)
ANSWERED = Counter("slipway_satellite_commands_total", "Commands answered", ["command", "outcome"])
SECONDS = Histogram(
    "slipway_satellite_command_seconds",
    "Time from begin to answer",
    ["command"],
    buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200),
)
RUNNING = Gauge("slipway_satellite_commands_running", "Commands being worked on")
# How long a command that may not be begun yet (clock, lease) waits before the question is asked again.
RECHECK_SECONDS = 1.0

Execute = Callable[[Envelope, bool], Awaitable[Reply]]


class Dispatcher:
    """Owns the running tasks. `wake` says that the journal has something new; `on_answer` that it has an answer."""

    def __init__(
        self,
        site: str,
        journal: Journal,
        execute: Execute,
        *,
        may_act: Callable[[], bool],
        may_begin: Callable[[], bool],
        on_answer: Callable[[], None],
        limit: int,
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._site = site
        self._journal = journal
        self._execute = execute
        self._may_act = may_act
        self._may_begin = may_begin
        self._on_answer = on_answer
        self._limit = limit
        self._clock = clock
        self._awake = asyncio.Event()
        RUNNING.set_function(lambda: len(self._running))
        self._running: dict[str, asyncio.Task[None]] = {}
        self._broken: BaseException | None = None

    @property
    def running(self) -> int:
        return len(self._running)

    def wake(self) -> None:
        self._awake.set()

    async def run(self) -> None:
        """Work until cancelled; then the running tasks are cancelled too and stay "begun" in the journal."""
        try:
            while True:
                self._awake.clear()
                if self._broken is not None:
                    raise self._broken
                waiting = self._start_what_may_start()
                try:
                    await asyncio.wait_for(self._awake.wait(), RECHECK_SECONDS if waiting else None)
                except TimeoutError:
                    pass
        finally:
            await end_all(list(self._running.values()))

    def _start_what_may_start(self) -> bool:
        """Start every open command whose machine is idle; True when one has to wait for permission to act."""
        # The journal is read as a whole: open commands are few (a site's machines), and this keeps no second truth.
        for entry in sorted(self._journal.open_entries(), key=lambda entry: not entry.begun):
            if entry.key in self._running:
                continue
            if not self._may_act() or not (entry.begun or self._may_begin()):
                return True
            if not entry.begun and self._refuse(entry):
                continue
            if len(self._running) >= self._limit:
                continue
            resumed = entry.begun
            if not resumed and not self._journal.begin(entry.envelope.id, self._clock()):
                continue
            self._running[entry.key] = asyncio.create_task(self._work(entry, resumed))
        return False

    def _refuse(self, entry: Entry) -> bool:
        reply = objection(
            entry.order,
            machine=str(entry.envelope.data.get("machine_name") or entry.key),
            fence=self._journal.fence(entry.key),
            newest_changing_version=self._journal.newest_changing_version(entry),
            now=self._clock(),
            epoch=entry.envelope.epoch,
            newest_epoch=self._journal.newest_epoch(entry.envelope.source),
        )
        if reply is not None:
            self._answer(entry, reply, 0.0)
        return reply is not None

    async def _work(self, entry: Entry, resumed: bool) -> None:
        started = time.monotonic()
        command = entry.envelope
        log.info("command_resumed" if resumed else "command_begun", **_about(command))
        try:
            reply = await self._execute(command, resumed)
            self._answer(entry, reply, time.monotonic() - started)
        except Exception as error:
            # The journal itself failed (disk full, file gone): going on would work without a memory.
            self._broken = error
        finally:
            self._running.pop(entry.key, None)
            self.wake()

    def _answer(self, entry: Entry, reply: Reply, seconds: float) -> None:
        command, now = entry.envelope, self._clock()
        asked = is_slug(command.replyto or "")
        answer = reply_envelope(self._site, command, reply, now) if asked else None
        subject = reply_subject(self._site, command.replyto or "") if asked else ""
        self._journal.finish(command.id, reply.outcome.value, answer, subject, now)
        ANSWERED.labels(command.type, reply.outcome.value).inc()
        SECONDS.labels(command.type).observe(seconds)
        problem = {"code": reply.problem.code, "problem": reply.problem.message} if reply.problem else {}
        log.info(
            "command_answered", outcome=reply.outcome.value, seconds=round(seconds, 3), **problem, **_about(command)
        )
        self._on_answer()


def _about(command: Envelope) -> dict[str, str]:
    return {
        "command": command.type,
        "command_id": command.id,
        "machine": str(command.data.get("machine_name") or ""),
        "correlation_id": command.correlationid,
    }
