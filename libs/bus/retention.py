"""How long rows of the outbox and the inbox are kept. One holder of a lease tidies; nothing goes that is still needed.

Events go when they were acknowledged by the broker, are older than the policy and are in the archive, proven by
digest. Commands go when they were acknowledged and are older than any stream keeps them. Handled messages go when
they are older than the inbox's memory, whose mark rises with them (memory.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from prometheus_client import Counter, Gauge
from sqlalchemy import text

from libs.bus.archive import MOST_AT_ONCE, Archive, ArchiveUnavailable
from libs.bus.lease import Lease
from libs.bus.memory import MEMORY, prune
from libs.runtime.database import Database

EVERY_SECONDS = 60.0
LEASE_SECONDS = 120.0

log = structlog.get_logger("retention")
REMOVED = Counter("slipway_retention_removed_total", "Rows that were not needed any more", ["service", "kind"])
UNARCHIVED = Gauge(
    "slipway_outbox_unarchived", "1 while old events stay in the outbox because the archive lacks them", ["service"]
)


@dataclass(frozen=True)
class Policy:
    """`events`: at least so long in the outbox after the acknowledgement, for a broker that loses its store.
    `commands`: as long as the command streams keep them (deploy/nats/topology.yaml), so that a lost stream can be
    filled again. `memory`: how long handled messages are known by id."""

    events: timedelta = timedelta(days=7)
    commands: timedelta = timedelta(days=7)
    memory: timedelta = MEMORY


class Retention:
    """Tidies one service's outbox and inbox."""

    def __init__(self, service: str, database: Database, archive: Archive, holder: str, policy: Policy) -> None:
        self.service, self.database, self.archive, self.policy = service, database, archive, policy
        self.lease = Lease(service, "retention", holder, LEASE_SECONDS)

    async def run(self) -> None:
        """Tidy for ever, a batch of each kind at a time."""
        while True:
            removed = 0
            try:
                removed = await self.once()
            except Exception as error:
                log.warning("retention_failed", service=self.service, error=repr(error))
            await asyncio.sleep(0.2 if removed else EVERY_SECONDS)

    async def once(self) -> int:
        """One batch of each kind. Returns how many rows went; 0 also when somebody else has the lease."""
        async with self.database.transaction() as conn:
            if await self.lease.take(conn) is None:
                return 0
        removed = {"events": await self._events(), "commands": await self._commands()}
        async with self.database.transaction() as conn:
            removed["messages"] = await prune(conn, self.service, self.policy.memory)
        for kind, count in removed.items():
            if count:
                REMOVED.labels(self.service, kind).inc(count)
        return sum(removed.values())

    async def _events(self) -> int:
        """Remove the oldest events that may go. The newest stays: it shows whose history the stream is."""
        async with self.database.transaction() as conn:
            rows = await conn.execute(
                text(
                    f"""SELECT seq, message_id, published_at < now() - make_interval(secs => :keep) AS old
                    FROM {self.service}.outbox
                    WHERE seq < (SELECT max(seq) FROM {self.service}.outbox) ORDER BY seq LIMIT :batch"""
                ),
                {"keep": self.policy.events.total_seconds(), "batch": MOST_AT_ONCE},
            )
            old: list[tuple[int, str]] = []
            for row in rows:
                if not row.old:
                    break
                old.append((row.seq, row.message_id))
        if not old:
            UNARCHIVED.labels(self.service).set(0)
            return 0
        try:
            held = await self.archive.holds(old)
        except ArchiveUnavailable as error:
            log.warning("archive_unavailable", service=self.service, error=str(error))
            held = False
        UNARCHIVED.labels(self.service).set(0 if held else 1)
        if not held:
            log.warning("events_not_archived", service=self.service, first=old[0][0], last=old[-1][0])
            return 0
        async with self.database.transaction() as conn:
            gone: Any = await conn.execute(
                text(
                    f"DELETE FROM {self.service}.outbox WHERE seq BETWEEN :first AND :last AND published_at IS NOT NULL"
                ),
                {"first": old[0][0], "last": old[-1][0]},
            )
        return int(gone.rowcount)

    async def _commands(self) -> int:
        async with self.database.transaction() as conn:
            gone: Any = await conn.execute(
                text(
                    f"""DELETE FROM {self.service}.outbox WHERE id IN (
                    SELECT id FROM {self.service}.outbox WHERE NOT is_event
                    AND published_at < now() - make_interval(secs => :keep) ORDER BY id LIMIT :batch)"""
                ),
                {"keep": self.policy.commands.total_seconds(), "batch": MOST_AT_ONCE},
            )
        return int(gone.rowcount)
