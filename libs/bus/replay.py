"""Replay: a service's events once more, from a time, a sequence or about one thing, onto subjects of their own.

A replayed event goes to `replay.<name>.<its own subject>` in the stream REPLAY, as it was published; never onto the
subjects that services act upon. A replay is a row: how far it is is committed after the broker has acknowledged, so
it goes on after a kill, and what is then published twice has the same message id. A full REPLAY makes it wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from prometheus_client import Counter
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.lease import Lease
from libs.bus.reading import open_reader, place
from libs.bus.topology import event_stream
from libs.contracts.envelope import BadMessage, Envelope, decode
from libs.contracts.ids import new_uuid
from libs.runtime.database import Database

SILENCE_SECONDS = 10.0
LEASE_SECONDS = 30.0
IDLE_SECONDS = 5.0  # What begins here wakes it; this is for those whose process is gone.
ACK_SECONDS = 20.0
MOST_AT_ONCE = 3  # Replays of one service that may run at a time.
KEPT = 200  # Finished replays that are still listed.

log = structlog.get_logger("replay")
REPLAYED = Counter("slipway_replay_published_total", "Events published once more", ["service"])


class Wanted(BaseModel):
    """What to replay: everything given must match. `first` and `last` are sequences, `since` and `until` times."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    name: str = Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$", description="Becomes replay.<name>.>")
    first: int = Field(default=1, ge=1)
    last: int | None = Field(default=None, ge=1)
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    entity: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()

    def matches(self, event: Envelope) -> bool:
        return (
            (not self.entity or event.subject in self.entity)
            and (not self.type or event.type in self.type)
            and (not self.tenant or event.tenant in self.tenant)
            and (self.since is None or event.time >= self.since)
            and (self.until is None or event.time < self.until)
        )


class TooMany(ValueError):
    """So many replays run already that another one has to wait."""


class Replays:
    """The replays of one service's events, as one process sees them."""

    def __init__(self, service: str, database: Database, js: JetStreamContext, holder: str) -> None:
        self.service, self.database, self.js, self.holder = service, database, js, holder
        self._woken = asyncio.Event()

    async def start(self, wanted: Wanted, actor: str) -> Mapping[str, Any]:
        """Begin one. Raises TooMany."""
        info = await self.js.stream_info(event_stream(self.service))
        last = min(wanted.last or int(info.state.last_seq), int(info.state.last_seq))
        first = wanted.first
        if wanted.since is not None:
            first = max(first, await self._first_since(wanted.since, last))
        async with self.database.transaction() as conn:
            await conn.execute(text("SELECT pg_advisory_xact_lock(hashtext('replay'))"))
            running = await conn.scalar(text(f"SELECT count(*) FROM {self.service}.replay WHERE state = 'running'"))
            if (running or 0) >= MOST_AT_ONCE:
                raise TooMany(f"{running} replays of {self.service} run already; wait for one, or cancel it")
            replay_id = f"rpl-{new_uuid()}"
            await conn.execute(
                text(
                    f"""INSERT INTO {self.service}.replay
                    (id, state, subject, wanted, requested_by, started_at, updated_at, position, last, published)
                    VALUES (:id, 'running', :subject, CAST(:wanted AS jsonb), :actor, now(), now(),
                    :position, :last, 0)"""
                ),
                {
                    "id": replay_id,
                    "subject": f"replay.{wanted.name}.>",
                    "wanted": wanted.model_dump_json(),
                    "actor": actor,
                    "position": min(first - 1, last),
                    "last": last,
                },
            )
            await self._forget_old(conn)
            row = await self._row(conn, replay_id)
        assert row is not None
        self._woken.set()
        return row

    async def _first_since(self, since: datetime, last: int) -> int:
        """The first sequence that was stored at or after `since`; events are stored after they happened."""
        async with await open_reader(self.js, event_stream(self.service), 1, since=since) as reader:
            found = await reader.next_batch(1.0)
        return place(found[0]) if found else last + 1

    async def _forget_old(self, conn: AsyncConnection) -> None:
        await conn.execute(
            text(
                f"""DELETE FROM {self.service}.replay WHERE state <> 'running' AND id NOT IN (
                SELECT id FROM {self.service}.replay ORDER BY started_at DESC LIMIT {KEPT})"""
            )
        )

    async def get(self, replay_id: str) -> Mapping[str, Any] | None:
        async with self.database.transaction() as conn:
            return await self._row(conn, replay_id)

    async def newest(self) -> Sequence[Mapping[str, Any]]:
        async with self.database.transaction() as conn:
            rows = await conn.execute(
                text(f"SELECT * FROM {self.service}.replay ORDER BY started_at DESC LIMIT {KEPT}")
            )
            return [dict(row) for row in rows.mappings()]

    async def cancel(self, replay_id: str) -> bool:
        """Stop it. False when it has ended or there is none."""
        async with self.database.transaction() as conn:
            done = await conn.execute(
                text(
                    f"UPDATE {self.service}.replay SET state = 'cancelled', updated_at = now() "
                    "WHERE id = :id AND state = 'running'"
                ),
                {"id": replay_id},
            )
            return bool(done.rowcount)

    # -- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work replays for ever, also those whose process is gone."""
        while True:
            self._woken.clear()
            try:
                async with self.database.transaction() as conn:
                    query = f"SELECT * FROM {self.service}.replay WHERE state = 'running' ORDER BY started_at"
                    rows = [dict(row) for row in (await conn.execute(text(query))).mappings()]
                for row in rows:
                    await self._work(row)
            except Exception as error:
                log.warning("replay_failed", service=self.service, error=repr(error))
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _work(self, row: Mapping[str, Any]) -> None:
        lease = Lease(self.service, f"replay:{row['id']}", self.holder, LEASE_SECONDS)
        async with self.database.transaction() as conn:
            if await lease.take(conn) is None:
                return
        wanted = Wanted.model_validate(row["wanted"])
        position, last = int(row["position"]), int(row["last"])
        if position < last:
            async with await open_reader(self.js, event_stream(self.service), position + 1) as reader:
                while position < last:
                    messages = await reader.next_batch(SILENCE_SECONDS)
                    if not messages:
                        raise TimeoutError(f"{event_stream(self.service)} was silent after {position} of {last}")
                    published = await self._publish(row["id"], wanted, [m for m in messages if place(m) <= last])
                    position = min(place(messages[-1]), last)
                    async with self.database.transaction() as conn:
                        if await lease.take(conn) is None or not await self._moved(
                            conn, row["id"], position, published
                        ):
                            return
        async with self.database.transaction() as conn:
            await conn.execute(
                text(
                    f"UPDATE {self.service}.replay SET state = 'done', updated_at = now() "
                    "WHERE id = :id AND state = 'running'"
                ),
                {"id": row["id"]},
            )

    async def _publish(self, replay_id: str, wanted: Wanted, messages: Sequence[Msg]) -> int:
        futures = []
        for message in messages:
            try:
                event = decode(message.data)
            except BadMessage:
                continue
            if wanted.matches(event):
                headers = {"Nats-Msg-Id": f"{replay_id}:{event.id}"}
                subject = f"replay.{wanted.name}.{message.subject}"
                futures.append(await self.js.publish_async(subject, message.data, headers=headers))
        async with asyncio.timeout(ACK_SECONDS):
            await asyncio.gather(*futures)
        REPLAYED.labels(self.service).inc(len(futures))
        return len(futures)

    async def _moved(self, conn: AsyncConnection, replay_id: str, position: int, published: int) -> bool:
        done = await conn.execute(
            text(
                f"""UPDATE {self.service}.replay SET position = :position, published = published + :published,
                updated_at = now() WHERE id = :id AND state = 'running'"""
            ),
            {"position": position, "published": published, "id": replay_id},
        )
        return bool(done.rowcount)

    async def _row(self, conn: AsyncConnection, replay_id: str) -> Mapping[str, Any] | None:
        query = f"SELECT * FROM {self.service}.replay WHERE id = :id"
        row = (await conn.execute(text(query), {"id": replay_id})).mappings().first()
        return dict(row) if row is not None else None


def body(row: Mapping[str, Any]) -> dict[str, Any]:
    """The replay as the API shows it."""
    wanted = row["wanted"] if isinstance(row["wanted"], dict) else orjson.loads(row["wanted"])
    first = int(wanted.get("first") or 1)
    length = max(int(row["last"]) - first + 1, 0)
    done = row["state"] == "done" or not length
    return {
        "id": row["id"],
        "state": row["state"],
        "subject": row["subject"],
        "wanted": {name: value for name, value in wanted.items() if value},
        "requested_by": row["requested_by"],
        "started_at": row["started_at"].isoformat(),
        "updated_at": row["updated_at"].isoformat(),
        "position": row["position"],
        "last": row["last"],
        "published": row["published"],
        "progress": 1.0 if done else round(max(0.0, (row["position"] - first + 1) / length), 4),
        "error": row["error"],
    }
