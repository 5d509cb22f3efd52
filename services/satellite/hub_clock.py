"""How far the satellite's clock is from the hub's: deadlines are only as good as the clocks they are read by.

The hub's JetStream stamps every answer of its API with its time (`ts`); half the round trip is the error.
A clock that was never compared is not known to be right, so the satellite does not act on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from nats.aio.client import Client

from libs.contracts.envelope import now_utc

ALLOWED_SECONDS = 30.0
_REQUEST_SECONDS = 5.0


@dataclass(frozen=True)
class Offset:
    """The satellite's clock minus the hub's, known to ± `error_seconds`; `measured_at` is monotonic."""

    seconds: float
    error_seconds: float
    measured_at: float

    @property
    def allowed(self) -> bool:
        """Whether the clock is right enough, in the worst case within the error."""
        return abs(self.seconds) + self.error_seconds <= ALLOWED_SECONDS


async def measure(client: Client, domain: str, stream: str, clock: Callable[[], datetime] = now_utc) -> Offset:
    """Ask the hub once. Raises nats.errors.Error or TimeoutError without an answer, ValueError for a senseless one."""
    started = time.monotonic()
    before = clock()
    answer = await client.request(f"$JS.{domain}.API.STREAM.INFO.{stream}", b"", timeout=_REQUEST_SECONDS)
    round_trip = time.monotonic() - started
    try:
        stamp = datetime.fromisoformat(json.loads(answer.data)["ts"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the hub's answer about {stream} has no time in it") from error
    seconds = (before - stamp).total_seconds() + round_trip / 2
    return Offset(seconds, round_trip / 2, time.monotonic())
