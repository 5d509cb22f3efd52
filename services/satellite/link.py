"""The link to the bus: pulls the site's commands from the hub, publishes what the site says on its own stream.

A command is acknowledged after it is in the journal, an outgoing message is marked published after the site's
own stream has confirmed it. Pulling goes through the hub's JetStream domain and fails while the site is cut
off; publishing stays local and goes on. A backlog is landed whole before any of it is worked on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime

import nats
import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from prometheus_client import Counter

from libs.bus.admission import site_command_objection
from libs.bus.pull import ConsumerGone, Puller
from libs.bus.topology import restore_sourcing_consumer
from libs.contracts.envelope import BadMessage, decode, now_utc
from libs.contracts.replies import Reply
from services.satellite import hub_clock
from services.satellite.commands import command_of
from services.satellite.journal import Journal, Landing
from services.satellite.model import order_of

log = structlog.get_logger(__name__)
UNREADABLE = Counter("slipway_satellite_unreadable_total", "Messages on the site's command stream that are no commands")
DURABLE = "satellite"
_BATCH = 100
# The pull is renewed this often; shorter than a proxy's idle limit, longer than a burst of requests.
_PULL_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_WAIT_SECONDS = 0.1
_PUBLISH_SECONDS = 5.0
_CLOCK_SECONDS = 30.0


async def connect(url: str, user: str | None, password: str | None, name: str) -> Client:
    """A client that reconnects for ever; waits until the leaf server answers for the first time."""

    async def disconnected() -> None:
        log.warning("nats_disconnected")

    async def reconnected() -> None:
        log.info("nats_reconnected")

    return await nats.connect(
        url,
        name=name,
        user=user,
        password=password,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.5,
        ping_interval=10,
        disconnected_cb=disconnected,
        reconnected_cb=reconnected,
        error_cb=_note_error,
        allow_reconnect=True,
    )


async def _note_error(error: Exception) -> None:
    log.warning("nats_error", error=str(error) or type(error).__name__)


class Link:
    """One satellite's link; `site_stream` and `local_stream` are declared by the bus's topology, not here."""

    def __init__(
        self,
        client: Client,
        *,
        site: str,
        hub_domain: str,
        journal: Journal,
        may_pull: Callable[[], bool],
        on_landed: Callable[[], None],
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._client = client
        self._hub_domain = hub_domain
        self._hub: JetStreamContext = client.jetstream(domain=hub_domain)
        self._local: JetStreamContext = client.jetstream(timeout=_PUBLISH_SECONDS)
        self._site = site
        self.site_stream = f"SITE_{site}"
        self.local_stream = f"SAT_{site}"
        self._journal = journal
        self._may_pull = may_pull
        self._on_landed = on_landed
        self._clock = clock
        self._outgoing = asyncio.Event()
        self._hub_heard_at = time.monotonic()
        self.offset: hub_clock.Offset | None = None
        self.unreadable = 0
        # Whether everything that the hub held for us at the last look is in the journal.
        self.drained = False

    @property
    def jetstream(self) -> JetStreamContext:
        """The site's own JetStream."""
        return self._local

    def problems(self) -> list[str]:
        """What is wrong with the link now, for people; empty when nothing is."""
        found = []
        silent = time.monotonic() - self._hub_heard_at
        if silent > 3 * _PULL_SECONDS:
            found.append(f"hub not reached for {silent:.0f} s; working on what is in the journal")
        if self.offset is None:
            found.append("clock not compared with the hub yet; no new command is begun")
        elif not self.offset.allowed:
            found.append(
                f"clock is {self.offset.seconds:+.1f} s from the hub's, more than "
                f"{hub_clock.ALLOWED_SECONDS:.0f} s; no command is begun. Correct this machine's time"
            )
        if self.unreadable:
            found.append(f"{self.unreadable} message(s) that are no commands were dropped; the log has them")
        return found

    def clock_allowed(self) -> bool:
        """Whether commands may be begun by this machine's clock."""
        return self.offset is not None and self.offset.allowed

    # -- pulling ---------------------------------------------------------------------------------

    async def pull(self) -> None:
        """Land commands until cancelled; a satellite without the lease takes none."""
        while True:
            if not self._may_pull():
                await asyncio.sleep(_WAIT_SECONDS)
                continue
            try:
                await self._look_at_backlog()
                await self._pull_while_allowed()
            except (nats.errors.Error, nats.js.errors.APIError, ConsumerGone, OSError, TimeoutError) as error:
                log.warning("pull_failed", error=str(error) or type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)

    def _puller(self) -> Puller:
        return Puller(
            self._client,
            self.site_stream,
            DURABLE,
            batch=_BATCH,
            domain=self._hub_domain,
            request_seconds=_PULL_SECONDS,
        )

    async def _pull_while_allowed(self) -> None:
        async with self._puller() as puller:
            while self._may_pull():
                # Silence is what an idle hub and a lost one have in common; the request's end tells them apart.
                messages = await puller.next_batch(_PULL_SECONDS)
                self._hub_heard_at = max(self._hub_heard_at, puller.heard_at or 0.0)
                # Commands that came while the lease was lost belong to the other satellite: not acknowledged, they
                # are delivered again, to it.
                if messages and self._may_pull():
                    await self._land(messages)

    async def _land(self, messages: Sequence[Msg]) -> None:
        landings = [landing for message in messages if (landing := self._landing(message)) is not None]
        new = self._journal.land(landings, self._clock())
        for message in messages:
            await message.ack()
        log.debug("commands_landed", pulled=len(messages), new=new)
        self.drained = messages[-1].metadata.num_pending == 0
        self._on_landed()
        # A command that was answered before has its answer published once more.
        self._outgoing.set()

    async def _look_at_backlog(self) -> None:
        """Land what waits at the hub, until it says that nothing does."""
        async with self._puller() as puller:
            while True:
                messages = await puller.waiting(_PULL_SECONDS)
                self._hub_heard_at = time.monotonic()
                if not self._may_pull():
                    return
                if not messages:
                    break
                await self._land(messages)
        self.drained = True
        self._on_landed()

    def _landing(self, message: Msg) -> Landing | None:
        try:
            envelope = decode(message.data)
            objection = site_command_objection(message.subject, envelope)
            if objection is not None:
                raise BadMessage(objection)
        except BadMessage as error:
            self.unreadable += 1
            UNREADABLE.inc()
            log.error("command_unreadable", subject=message.subject, error=str(error), size=len(message.data))
            return None
        command = command_of(envelope)
        stored_at = message.metadata.timestamp
        # A refusal is given when the command comes up; until then it is in order with its machine, if it names one.
        unreadable = isinstance(command, Reply)
        key = str(envelope.data.get("machine_id") or envelope.subject) if unreadable else command.key()
        return Landing(envelope, key, order_of(command, stored_at=stored_at, deadline=envelope.deadline))

    # -- publishing ------------------------------------------------------------------------------

    def has_outgoing(self) -> None:
        """Say that the journal holds something to publish."""
        self._outgoing.set()

    async def publish(self) -> None:
        """Publish what the journal holds, oldest first, until cancelled."""
        while True:
            self._outgoing.clear()
            try:
                while batch := self._journal.unpublished(_BATCH):
                    for message in batch:
                        await self.say(message.subject, message.message_id, message.payload)
                        self._journal.published([message.position], self._clock())
            except (nats.errors.Error, nats.js.errors.APIError, OSError, TimeoutError) as error:
                log.warning("publish_failed", error=str(error) or type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
                self._outgoing.set()
            await self._outgoing.wait()

    async def say(self, subject: str, message_id: str, payload: bytes) -> None:
        """Put one message on the site's stream; returns when the server has stored it."""
        await self._local.publish(
            subject, payload, stream=self.local_stream, headers={"Nats-Msg-Id": message_id}, timeout=_PUBLISH_SECONDS
        )

    # -- the hub's clock -------------------------------------------------------------------------

    async def compare_clocks(self, on_change: Callable[[], None]) -> None:
        """Keep `offset` fresh until cancelled; also notices whether the hub answers at all."""
        while True:
            try:
                self.offset = await hub_clock.measure(
                    self._client, self._hub_domain, self.site_stream, clock=self._clock
                )
                self._hub_heard_at = time.monotonic()
            except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
                log.debug("clock_not_compared", error=str(error) or type(error).__name__)
            on_change()
            await self._keep_handing_over()
            await asyncio.sleep(_CLOCK_SECONDS if self.offset else _RETRY_SECONDS)

    async def _keep_handing_over(self) -> None:
        """Make the durable by which the hub takes what we say again if somebody deleted it; nobody else here would."""
        try:
            await restore_sourcing_consumer(self._local, self._site)
        except (nats.errors.Error, nats.js.errors.APIError, OSError, TimeoutError) as error:
            log.warning("hand_over_unknown", error=str(error) or type(error).__name__)
