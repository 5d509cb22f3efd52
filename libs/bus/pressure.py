"""Back-pressure: what happens when messages are written faster than the broker takes them, or it is away.

The outbox may grow only so far. At the soft limit the service says that it is not ready and raises its alarm; at the
hard limit it takes no more work that would write messages: API writes are refused with 503, commands stay in the
inbox, timers wait. What was committed is kept and leaves when the broker is back. Nothing is lost and no disk fills.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from prometheus_client import Gauge as Metric
from sqlalchemy import text

from libs.bus.gate import Gate
from libs.runtime.database import Database

LOOK_SECONDS = 2.0  # Beside the looks that work itself asks for (`worked`).
NAME = "outbox"

log = structlog.get_logger("pressure")
WAITING = Metric("slipway_outbox_backlog", "Messages not taken by the broker yet, up to the hard limit", ["service"])
LEVEL = Metric("slipway_outbox_pressure", "0: fine, 1: above the soft limit, 2: above the hard limit", ["service"])


@dataclass(frozen=True)
class Limits:
    """Messages waiting in the outbox (defaults: libs/runtime/settings.py)."""

    soft: int
    hard: int

    def level(self, waiting: int) -> int:
        """0: fine; 1: say so; 2: take nothing more."""
        return 2 if waiting >= self.hard else 1 if waiting >= self.soft else 0


class Pressure:
    """Watches one service's outbox and shuts `writes` while it is too full."""

    def __init__(self, service: str, database: Database, writes: Gate, limits: Limits) -> None:
        self.service, self.database, self.writes, self.limits = service, database, writes, limits
        self.waiting = 0
        self._worked = 0

    def problems(self) -> list[str]:
        """For readiness: why this service should get no more work just now."""
        level = self.limits.level(self.waiting)
        if not level:
            return []
        more = "; nothing more is accepted until it has drained" if level == 2 else ""
        return [f"{self.waiting} messages wait in the outbox (limit {self.limits.soft}): is the broker away?{more}"]

    async def worked(self, count: int) -> None:
        """So many messages were handled: look at once when what they may have written could lead past the limit."""
        self._worked += count
        if self._worked * 10 >= self.limits.hard - self.limits.soft:
            await self.look()

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.look()
            except Exception as error:
                log.warning("pressure_unknown", service=self.service, error=repr(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Count once and open or shut the gate. It opens again below the soft limit, so that it does not flutter."""
        async with self.database.transaction() as conn:
            counted = await conn.scalar(
                text(
                    f"SELECT count(*) FROM (SELECT 1 FROM {self.service}.outbox "
                    "WHERE published_at IS NULL LIMIT :most) AS waiting"
                ),
                {"most": self.limits.hard},
            )
        self.waiting, self._worked = int(counted or 0), 0
        level = self.limits.level(self.waiting)
        WAITING.labels(self.service).set(self.waiting)
        LEVEL.labels(self.service).set(level)
        if level == 2:
            if not self.writes.reasons:
                log.error("outbox_full", service=self.service, waiting=self.waiting)
            self.writes.close(NAME, f"{self.waiting} messages wait for the broker; no more are accepted meanwhile")
        elif level == 0:
            self.writes.open(NAME)
