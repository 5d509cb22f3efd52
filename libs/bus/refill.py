"""Fill a broker that lost its store: events from the archive at the same sequences, commands from the outbox.

What the outbox still has is published again by the relay itself (outbox.py). Here is the rest: events so old that
only the archive has them, and commands, whose streams give no numbers of ours: when such a stream went backwards or
was made anew, or its server was started again (a stream that grew meanwhile does not show what it lost), every command
that may be lost is sent again. Receivers know what they had. The same look finds a site's durable that was deleted.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import nats.js.errors
import structlog
from nats.js import JetStreamContext
from prometheus_client import Counter
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.archive import Archive, subject_of
from libs.bus.lease import Lease
from libs.bus.pull import client_of
from libs.bus.topology import restore_satellite_consumer
from libs.contracts.envelope import Envelope
from libs.runtime.database import Database

LOOK_SECONDS = 30.0
# A satellite has no right to make its own durable: a site could have the hub's messages delivered wherever it likes.
KEEPS_SITE_CONSUMERS = "inventory"
LEASE_SECONDS = 90.0
PUBLISH_SECONDS = 30.0
# A command is marked published after the broker stored it; this much later at most, or it is sent twice for nothing.
MARK_LATE = timedelta(minutes=1)

# A server that crashes forgets what it had not flushed to disk: two minutes (JetStream's sync_interval), and some more.
FORGETS = timedelta(minutes=5)
# The rows of stream_seen that say which servers were met; no stream's name has a space.
SERVER = "server "

log = structlog.get_logger("refill")
REFILLED = Counter("slipway_outbox_refilled_total", "Messages put back into a broker that lost them", ["service", "of"])


class LostForGood(RuntimeError):
    """Neither the outbox nor the archive has events that the broker lost."""


async def last_numbered(conn: AsyncConnection, service: str) -> int:
    """The highest sequence that was ever given to an event of the service."""
    found = await conn.scalar(text(f"SELECT last FROM {service}.tenant_sequence WHERE tenant = '*'"))
    return int(found or 0)


async def refill_events(js: JetStreamContext, stream: str, archive: Archive, first: int, last: int) -> int:
    """Publish the archived events `first` to `last` (as many as one answer has). Returns how many, at least one.

    Raises LostForGood when the archive lacks the first of them, ArchiveUnavailable when it does not answer.
    """
    found = await archive.events(first, last)
    # Up to the first gap: there lies a void number (foreign.py), which the relay fills, or one that is lost for good.
    events = [event for number, event in enumerate(found, first) if event.stream_sequence == number]
    if not events:
        raise LostForGood(
            f"{stream} ends at {first - 1}, the outbox goes on at {last + 1}, and the archive does not have {first}: "
            "restore the archive from its export first (docs/guides/restore.md)"
        )
    futures = [await js.publish_async(subject_of(event), event.encode(), headers=_headers(event)) for event in events]
    async with asyncio.timeout(PUBLISH_SECONDS):
        await asyncio.gather(*futures)
    REFILLED.labels(archive.service, "archive").inc(len(events))
    log.warning("stream_refilled", stream=stream, first=first, count=len(events))
    return len(events)


def _headers(event: Envelope) -> dict[str, str]:
    return {"Nats-Msg-Id": event.id, "Nats-Expected-Last-Sequence": str(event.stream_sequence - 1)}


class LostCommands:
    """Notices that a command stream lost messages, and has the outbox send them again."""

    def __init__(self, service: str, database: Database, js: JetStreamContext, holder: str) -> None:
        self.service, self.database, self.js = service, database, js
        self.lease = Lease(service, "lost_commands", holder, LEASE_SECONDS)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.look()
            except Exception as error:
                log.warning("command_streams_unknown", service=self.service, error=repr(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> int:
        """Compare every command stream with what it was. Returns how many commands will be sent again."""
        async with self.database.transaction() as conn:
            if await self.lease.take(conn) is None:
                return 0
        again, seen = await self._after_a_restart(), 0
        while page := await self.js.streams_info(offset=seen):
            seen += len(page)
            for info in page:
                name = str(info.config.name)
                if name.startswith("SITE_") and self.service == KEEPS_SITE_CONSUMERS:
                    await restore_satellite_consumer(self.js, name)
                if name.startswith(("CMD_", "SITE_")):
                    async with self.database.transaction() as conn:
                        again += await self._compare(conn, name, info)
        return again

    async def _after_a_restart(self) -> int:
        """What was published lately is sent again when the broker's server is not one that we have met before."""
        met = f"{SERVER}{client_of(self.js)._server_info['server_id']}"
        async with self.database.transaction() as conn:
            where = f"FROM {self.service}.stream_seen WHERE stream"
            looked_at = await conn.scalar(text(f"SELECT max(made_at) {where} LIKE :all"), {"all": f"{SERVER}%"})
            known = await conn.scalar(text(f"SELECT 1 {where} = :met"), {"met": met})
            again = 0
            if looked_at is not None and known is None:
                again = await self._send_again(conn, "%_%", looked_at - FORGETS)
            await conn.execute(
                text(
                    f"""INSERT INTO {self.service}.stream_seen (stream, made_at, last_seq)
                    VALUES (:met, clock_timestamp(), 0) ON CONFLICT (stream) DO UPDATE SET made_at = excluded.made_at"""
                ),
                {"met": met},
            )
            await conn.execute(
                text(f"DELETE {where} LIKE :all AND made_at < now() - interval '7 days'"), {"all": f"{SERVER}%"}
            )
        return again

    async def _compare(self, conn: AsyncConnection, name: str, info: Any) -> int:
        seen = (
            await conn.execute(
                text(f"SELECT made_at, last_seq FROM {self.service}.stream_seen WHERE stream = :s FOR UPDATE"),
                {"s": name},
            )
        ).first()
        made, last = info.created, int(info.state.last_seq)
        again = 0
        if seen is not None and seen.made_at != made:
            again = await self._send_again(conn, name, None)
        elif seen is not None and last < seen.last_seq:
            again = await self._send_again(conn, name, await self._newest(name, last))
        await conn.execute(
            text(
                f"""INSERT INTO {self.service}.stream_seen (stream, made_at, last_seq) VALUES (:s, :made, :last)
                ON CONFLICT (stream) DO UPDATE SET made_at = excluded.made_at, last_seq = excluded.last_seq"""
            ),
            {"s": name, "made": made, "last": last},
        )
        return again

    async def _newest(self, name: str, last: int) -> datetime | None:
        """When the newest message that the stream still has was stored; None when it has none."""
        try:
            found = (await self.js.get_msg(name, seq=last)).time
        except nats.js.errors.NotFoundError:
            return None
        return found if isinstance(found, datetime) else None

    async def _send_again(self, conn: AsyncConnection, name: str, since: datetime | None) -> int:
        """Unmark commands of the stream (`%_%`: of every stream) that were published since then."""
        kind, _, whose = name.partition("_")
        result: Any = await conn.execute(
            text(
                f"""UPDATE {self.service}.outbox SET published_at = NULL
                WHERE NOT is_event AND published_at IS NOT NULL AND subject LIKE :subjects
                AND (CAST(:since AS timestamptz) IS NULL OR published_at >= :since)"""
            ),
            {"subjects": f"{kind.lower()}.{whose}.%", "since": since - MARK_LATE if since else None},
        )
        if result.rowcount:
            REFILLED.labels(self.service, "commands").inc(result.rowcount)
            log.warning("commands_sent_again", service=self.service, stream=name, count=result.rowcount)
        return int(result.rowcount)
