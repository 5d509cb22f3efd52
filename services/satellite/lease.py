"""One active satellite per site: a lease in a key-value bucket of the site's own JetStream domain.

The bucket lives at the site, so that a cut from the hub never ends a lease. Taking and renewing are
compare-and-set on the key's revision, which is the fencing token: who lost the lease finds out at the next
renewal and ends its process. Between renewals a holder trusts itself only until `ttl_seconds` after the last
one, by its monotonic clock, started before the request; the server forgets the key no earlier than that.

A holder's name is kept in its state folder, so a satellite that was killed takes its own lease back at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import nats.errors
import nats.js.errors
import structlog
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue

from services.satellite.errors import LeaseLost

log = structlog.get_logger(__name__)
BUCKET = "satellite"
KEY = "active"
_RETRY_SECONDS = 1.0
# A request that gets no answer in time is tried again; three tries must fit in a lease.
_REQUEST_SECONDS = 2.0


class Lease:
    """The lease of one site; `holder` names this satellite for good."""

    def __init__(
        self,
        jetstream: JetStreamContext,
        holder: str,
        *,
        ttl_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jetstream = jetstream
        self.holder = holder
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._bucket: KeyValue | None = None
        self._valid_until = 0.0
        self.revision = 0

    @property
    def valid(self) -> bool:
        """Whether this process may act now."""
        return self._clock() < self._valid_until

    async def hold(self, on_change: Callable[[], None]) -> None:
        """Take the lease when it is free and keep it; runs until cancelled.

        Raises LeaseLost when another holder has taken it while we held it.
        """
        said_who = ""
        while True:
            try:
                other = await self._take() if self.revision == 0 else await self._renew()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                log.warning("lease_unanswered", error=str(error) or type(error).__name__)
                other, pause = "", _RETRY_SECONDS
            else:
                pause = _RETRY_SECONDS if other else self._ttl_seconds / 3
                if other and other != said_who:
                    log.warning("lease_held_by_other", holder=other)
                said_who = other
            on_change()
            await asyncio.sleep(pause)

    async def _take(self) -> str:
        """Try once; "" when it is ours now, else the holder's name."""
        bucket = await self._open()
        started = self._clock()
        try:
            self._held(await bucket.create(KEY, self._value()), started)
            return ""
        except nats.js.errors.KeyWrongLastSequenceError:
            pass
        try:
            entry = await bucket.get(KEY)
        except nats.js.errors.KeyNotFoundError:
            return "nobody any more"
        holder = str(json.loads(entry.value or b"{}").get("holder", ""))
        if holder != self.holder or entry.revision is None:
            return holder or "unknown"
        self._held(await bucket.update(KEY, self._value(), last=entry.revision), started)
        return ""

    async def _renew(self) -> str:
        bucket = await self._open()
        started = self._clock()
        try:
            self._held(await bucket.update(KEY, self._value(), last=self.revision), started)
        except nats.js.errors.KeyWrongLastSequenceError:
            return await self._look_who_has_it(bucket)
        return ""

    async def _look_who_has_it(self, bucket: KeyValue) -> str:
        """Our revision is gone: it ran out, an earlier renewal of ours came through late, or another took it."""
        self.revision = 0
        other = await self._take()
        if other:
            raise LeaseLost(f"the lease of this site is held by {other} now; this satellite ends")
        return ""

    def _held(self, revision: int, started: float) -> None:
        if self.revision == 0:
            log.info("lease_taken", holder=self.holder, revision=revision)
        self.revision = revision
        self._valid_until = started + self._ttl_seconds

    def _value(self) -> bytes:
        return json.dumps({"holder": self.holder}).encode()

    async def _open(self) -> KeyValue:
        if self._bucket is None:
            # The server keeps the key a little longer than the holder trusts it.
            config = KeyValueConfig(bucket=BUCKET, ttl=self._ttl_seconds + _REQUEST_SECONDS)
            try:
                self._bucket = await self._jetstream.create_key_value(config)
            except nats.js.errors.BadRequestError:
                # It is there with another time limit: that of whoever made it counts until it is made anew.
                self._bucket = await self._jetstream.key_value(BUCKET)
        return self._bucket
