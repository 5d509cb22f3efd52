"""A database restored from an older backup behind a newer stream: noticed, held, shown to a human, gone on from.

A service numbers events in its database before it publishes them, so the stream can never be ahead of the database
that made it. When it is, the database is a copy from the past. Then, before anything acts: the epoch rises (one
guarded statement), every waiting message is set aside, and peers are told the epoch, by which they refuse what the
past still sends. Nothing is written or published and no timer fires until a human accepts. Then numbers and entity
versions go on after the stream's last, so that no reader takes what comes for something it knows, and every open saga
is parked: only people know how far the world went on after the backup.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import nats.js.errors
import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from prometheus_client import Gauge
from sqlalchemy import MetaData, Table, Text, cast, func, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.admission import EPOCH_TYPE, event_objection
from libs.bus.foreign import Own, keep_void, look_at, only_foreign
from libs.bus.reading import open_reader
from libs.bus.refill import last_numbered
from libs.bus.tables import DEAD, PENDING
from libs.bus.topology import EVENT_SERVICES, event_stream
from libs.contracts.causes import Cause
from libs.contracts.envelope import BadMessage, Envelope, decode, new_message_id, now_utc
from libs.runtime.database import Database

SILENCE_SECONDS = 10.0

log = structlog.get_logger("restore")
HELD = Gauge("slipway_restore_waiting", "1 while the service waits for a human after a restore", ["service"])

ParkAll = Callable[[AsyncConnection, str], Awaitable[int]]  # Parks the service's open sagas for a reason.


class ForeignHistory(RuntimeError):
    """The stream's events are not those of this database: it is neither ours nor an older copy of ours."""


def why(service: str) -> str:
    """What is said of everything that waits."""
    return f"the database was restored from a backup; see `slipway restore show {service}`"


@dataclass(frozen=True)
class Held:
    """A restore that nobody has accepted yet. Events `own_last` + 1 to `stream_last` are in the stream alone."""

    epoch: int
    own_last: int
    stream_last: int
    detected_at: datetime
    open_sagas: int
    set_aside_messages: int


@dataclass(frozen=True)
class Accepted:
    """`not_found`: entities that only the stream knows, or whose versions have no row to be raised in."""

    epoch: int
    goes_on_after: int
    raised_versions: int
    parked_sagas: int
    not_found: list[str]


@dataclass
class Lost:
    """What the stream says of one entity after the backup."""

    entity: str
    id: str
    tenant: str
    first_version: int
    last_version: int
    last_type: str
    last_time: datetime
    events: int = 1


@dataclass(frozen=True)
class Difference:
    """`entities` by (kind, id); `tenants`: each tenant's last number; `void`: numbers that are no event's."""

    entities: dict[tuple[str, str], Lost]
    tenants: dict[str, int]
    void: list[int] = field(default_factory=list)


async def read_epoch(conn: AsyncConnection, service: str) -> int:
    return int(await conn.scalar(text(f"SELECT epoch FROM {service}.epoch")) or 1)


async def held(conn: AsyncConnection, service: str) -> Held | None:
    """The restore that waits for a human."""
    row = (
        (
            await conn.execute(
                text(
                    f"""SELECT epoch, own_last, stream_last, detected_at, open_sagas, set_aside_messages
                    FROM {service}.restore WHERE accepted_at IS NULL"""
                )
            )
        )
        .mappings()
        .first()
    )
    return Held(**row) if row is not None else None


async def look(database: Database, js: JetStreamContext, service: str, *, thoroughly: bool = True) -> Held | None:
    """Compare database and stream; hold the service when the database is older.

    `thoroughly`: also whether the stream's last event is ours. Raises ForeignHistory when it is not.

    Safe to repeat, and by several replicas: only one of them raises the epoch.
    """
    stream = event_stream(service)
    try:
        stream_last = int((await js.stream_info(stream)).state.last_seq)
    except nats.js.errors.NotFoundError:
        stream_last = 0  # A broker that lost everything is filled again by the relay.
    # Read after the stream: a number is given before it is published.
    async with database.transaction() as conn:
        waiting = await held(conn, service)
        own_last = await last_numbered(conn, service)
    if waiting is None and stream_last > own_last:
        if await only_foreign(js, service, own_last, stream_last):
            return None  # Nothing of ours is there that we do not know; the relay steps over it (foreign.py).
        await _same_history(database, js, service, own_last)
        waiting = await _hold(database, js, service, own_last, stream_last)
    elif waiting is None and stream_last and thoroughly:
        await _same_history(database, js, service, stream_last)
    HELD.labels(service).set(0 if waiting is None else 1)
    return waiting


async def _same_history(database: Database, js: JetStreamContext, service: str, sequence: int) -> None:
    """The event at `sequence` must be the same here and there, if both still have it."""
    async with database.transaction() as conn:
        ours = await conn.scalar(text(f"SELECT message_id FROM {service}.outbox WHERE seq = :seq"), {"seq": sequence})
    if ours is None:
        return
    try:
        theirs = await look_at(js, service, sequence)
    except nats.js.errors.NotFoundError:
        return
    # What is no event of this service at all is no other history, either; the relay deals with it (foreign.py).
    if isinstance(theirs, Own) and theirs.id != ours:
        raise ForeignHistory(
            f"event {sequence} of {service} is {ours} in the database and {theirs.id} in {event_stream(service)}: this "
            "database and this broker do not belong together; connect the right ones (docs/guides/restore.md)"
        )


async def _hold(database: Database, js: JetStreamContext, service: str, own_last: int, stream_last: int) -> Held | None:
    stream_epoch = 1
    async for page in lost_events(js, service, own_last, stream_last):
        stream_epoch = max(stream_epoch, *(event.epoch for event in page))
        await _already_published(database, service, page)
    async with database.transaction() as conn:
        before = await read_epoch(conn, service)
        # The guard: of several replicas that noticed, one raises it; the others see what that one has written.
        raised = await conn.scalar(
            text(
                f"""UPDATE {service}.epoch SET epoch = greatest(epoch, :stream) + 1 WHERE epoch = :before
                AND NOT EXISTS (SELECT 1 FROM {service}.restore WHERE accepted_at IS NULL) RETURNING epoch"""
            ),
            {"stream": stream_epoch, "before": before},
        )
        if raised is None:
            return await held(conn, service)
        open_sagas = await conn.scalar(text(f"SELECT count(*) FROM {service}.saga WHERE phase <> 'finished'"))
        aside = await _set_aside(conn, service)
        await conn.execute(
            text(
                f"""INSERT INTO {service}.restore
                (epoch_before, epoch, own_last, stream_last, open_sagas, set_aside_messages)
                VALUES (:before, :epoch, :own, :last, :sagas, :aside)"""
            ),
            {
                "before": before,
                "epoch": raised,
                "own": own_last,
                "last": stream_last,
                "sagas": open_sagas,
                "aside": aside,
            },
        )
        log.error("database_restored", service=service, epoch=raised, own_last=own_last, stream_last=stream_last)
        return await held(conn, service)


async def _already_published(database: Database, service: str, events: Sequence[Envelope]) -> None:
    """Events that the backup has as not numbered yet, and that the stream has: they keep the numbers they got."""
    async with database.transaction() as conn:
        await conn.execute(
            text(
                f"""UPDATE {service}.outbox o SET seq = n.seq, tenant_seq = n.tenant_seq, published_at = now()
                FROM unnest(CAST(:ids AS text[]), CAST(:seqs AS bigint[]), CAST(:tenants AS bigint[]))
                AS n (id, seq, tenant_seq) WHERE o.message_id = n.id AND o.seq IS NULL AND o.is_event"""
            ),
            {
                "ids": [event.id for event in events],
                "seqs": [event.stream_sequence for event in events],
                "tenants": [int(event.tenantsequence or 0) for event in events],
            },
        )


async def _set_aside(conn: AsyncConnection, service: str) -> int:
    """Messages that waited when the backup was made were handled long ago, in a future that this database forgot."""
    result: Any = await conn.execute(
        text(
            f"""UPDATE {service}.inbox SET state = {DEAD}, cause = :cause, dead_at = now(), key = '',
            error = 'waited in the backup; it was probably handled after it' WHERE state = {PENDING}"""
        ),
        {"cause": Cause.BEFORE_RESTORE.value},
    )
    return int(result.rowcount)


async def lost_events(
    js: JetStreamContext, service: str, own_last: int, stream_last: int
) -> AsyncIterator[list[Envelope]]:
    """The events that only the stream has, in order, page by page; unreadable ones are left out."""
    position = own_last
    if position >= stream_last:
        return
    async with await open_reader(js, event_stream(service), own_last + 1) as reader:
        while position < stream_last:
            messages = await reader.next_batch(SILENCE_SECONDS)
            if not messages:
                raise TimeoutError(f"{event_stream(service)} was silent after {position} of {stream_last}")
            position = messages[-1].metadata.sequence.stream
            events = []
            for message in messages:
                if message.metadata.sequence.stream <= stream_last:
                    event = _event(service, message)
                    if event is not None:
                        events.append(event)
            if events:
                yield events


def _event(service: str, message: Msg) -> Envelope | None:
    """The event, None for what is none of the service's."""
    try:
        event = decode(message.data)
        objection = event_objection(message.subject, message.metadata.sequence.stream, event)
    except BadMessage as error:
        event, objection = None, str(error)
    if objection is not None:
        log.error("no_event", service=service, subject=message.subject, error=objection)
        return None
    return event


async def difference(js: JetStreamContext, service: str, restore: Held) -> Difference:
    """What the stream knows and the restored database does not. Memory grows with entities, not with events."""
    found = Difference({}, {}, [])
    expected = restore.own_last + 1
    async for page in lost_events(js, service, restore.own_last, restore.stream_last):
        for event in page:
            found.void.extend(range(expected, event.stream_sequence))
            expected = event.stream_sequence + 1
            _add(found.entities, event)
            last = int(event.tenantsequence or 0)
            found.tenants[event.tenant] = max(found.tenants.get(event.tenant, 0), last)
    found.void.extend(range(expected, restore.stream_last + 1))
    return found


def _add(found: dict[tuple[str, str], Lost], event: Envelope) -> None:
    entity, _, name = event.type.removeprefix("slipway.").split(".", 1)[-1].partition(".")
    known = found.get((entity, event.subject))
    if known is None:
        version = event.entityversion
        found[entity, event.subject] = Lost(entity, event.subject, event.tenant, version, version, name, event.time)
        return
    known.events += 1
    known.first_version = min(known.first_version, event.entityversion)
    if event.entityversion >= known.last_version:
        known.last_version, known.last_type, known.last_time = event.entityversion, name, event.time


async def announce(js: JetStreamContext, service: str, epoch: int) -> None:
    """Tell every peer the epoch on its command stream: what comes after it from an older one is refused there."""
    for peer in EVENT_SERVICES:
        if peer == service:
            continue
        envelope = Envelope(
            id=f"epoch-{service}-{epoch}-{peer}",
            source=f"/slipway/{service}",
            type=EPOCH_TYPE,
            time=now_utc(),
            subject=service,
            correlationid=new_message_id(),
            epoch=epoch,
            data={"service": service, "epoch": epoch},
        )
        try:
            await js.publish(f"cmd.{peer}.epoch.v1", envelope.encode(), headers={"Nats-Msg-Id": envelope.id})
        except nats.js.errors.NoStreamResponseError:
            log.warning("peer_has_no_stream", peer=peer)


async def accept(
    conn: AsyncConnection,
    service: str,
    restore: Held,
    lost: Difference,
    entities: Mapping[str, Table],
    park: ParkAll,
    *,
    actor: str,
    reason: str,
) -> Accepted:
    """Go on: numbers and versions after the stream's last, sagas parked.

    `entities` says in which table (see `entities_of`) the entities of a kind are kept. Raises RuntimeError when
    somebody else has accepted it meanwhile.
    """
    for tenant, last in {**lost.tenants, "*": restore.stream_last}.items():
        await conn.execute(
            text(
                f"""INSERT INTO {service}.tenant_sequence AS t (tenant, last) VALUES (:tenant, :last)
                ON CONFLICT (tenant) DO UPDATE SET last = greatest(t.last, excluded.last)"""
            ),
            {"tenant": tenant, "last": last},
        )
    await keep_void(conn, service, lost.void)
    raised, unknown = 0, []
    for each in lost.entities.values():
        done_here = await _raise_version(conn, entities.get(each.entity), each)
        raised += done_here
        if not done_here:
            unknown.append(f"{each.entity} {each.id}")
    parked = await park(conn, why(service))
    done: Any = await conn.execute(
        text(
            f"""UPDATE {service}.restore SET accepted_at = now(), accepted_by = :actor, reason = :reason
            WHERE epoch = :epoch AND accepted_at IS NULL"""
        ),
        {"actor": actor, "reason": reason, "epoch": restore.epoch},
    )
    if done.rowcount != 1:
        raise RuntimeError(f"the restore of epoch {restore.epoch} was accepted by somebody else meanwhile")
    return Accepted(restore.epoch, restore.stream_last, raised, parked, unknown)


async def _raise_version(conn: AsyncConnection, table: Table | None, lost: Lost) -> int:
    """The entity's next event must be newer for everybody than the last one that they saw. Returns 0 without a row."""
    if table is None:
        return 0
    key = next(iter(table.primary_key.columns))
    version = func.greatest(table.c.version, lost.last_version)
    values: dict[str, Any] = {"version": version}
    if "facts" in table.c:
        # The entity as one document has its version inside, too.
        path = cast(["version"], ARRAY(Text))
        values["facts"] = func.jsonb_set(table.c.facts, path, func.to_jsonb(version))
    result: Any = await conn.execute(table.update().where(key == lost.id).values(values))
    return int(result.rowcount)


def entities_of(metadata: MetaData, saga: Table, more: Mapping[str, Table]) -> dict[str, Table]:
    """The tables of a service's entities by kind: those of the kind's name that have one key and a `version`."""
    found = {
        table.name: table
        for table in metadata.tables.values()
        if "version" in table.c and len(table.primary_key.columns) == 1
    }
    return {**found, "operation": saga, **more}
