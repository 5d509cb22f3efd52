"""Somebody else's message in a service's event stream: its number is void, and our events go on after it.

Only an administrator of the broker can write there (decision 0017), or a mistake in a permission. Event number N lies
at stream sequence N (decision 0009), so a place that is taken can't be an event's any more. Events that the broker
refused because of it, which no reader of the stream has seen, get the numbers after it; a tenant's own numbers stay.
What a reader may have seen is never numbered anew: when such an event's place is taken, everything waits for a human.

The message itself becomes a dead letter of the service, for people to look at; its number is kept as void, so that a
stream which is filled again gets a filler in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nats.js.errors
import structlog
from nats.js import JetStreamContext
from prometheus_client import Counter
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.admission import event_objection
from libs.bus.dead_letters import letter_row
from libs.bus.refill import last_numbered
from libs.bus.tables import DEAD, bus_tables
from libs.bus.topology import event_stream
from libs.contracts.causes import Cause
from libs.contracts.envelope import BadMessage, decode
from libs.runtime.database import Database

MOST_AT_ONCE = 1000  # More than this is no slip of an administrator's hand.
# The rows of stream_seen that name void numbers; no stream's name has a space.
VOID = "void "
FILLER_SUBJECT = "evt.-.-.{service}.void.void.v1"
FILLER = b'{"void":true}'

log = structlog.get_logger("foreign")
FOREIGN = Counter("slipway_outbox_foreign_total", "Messages of somebody else in the event stream", ["service"])


class PlaceTaken(RuntimeError):
    """A foreign message lies where an event lay that readers may have seen; only people can put that right."""


@dataclass(frozen=True)
class Foreign:
    """What lies at `sequence` of the stream and is no event of the stream's owner. `payload` None: nothing, deleted."""

    sequence: int
    subject: str
    payload: bytes | None
    cause: Cause
    why: str


@dataclass(frozen=True)
class Own:
    """An event of the stream's owner, with its id."""

    sequence: int
    id: str


async def look_at(js: JetStreamContext, service: str, sequence: int) -> Own | Foreign:
    """What lies at `sequence` of the service's event stream."""
    try:
        message = await js.get_msg(event_stream(service), seq=sequence)
    except nats.js.errors.NotFoundError:
        return Foreign(sequence, "", None, Cause.UNREADABLE, "it was deleted from the stream")
    subject, payload = str(message.subject), message.data or b""
    try:
        event = decode(payload)
    except BadMessage as error:
        return Foreign(sequence, subject, payload, Cause.UNREADABLE, str(error))
    objection = event_objection(subject, sequence, event)
    if objection is not None:
        return Foreign(sequence, subject, payload, Cause.WRONG_SENDER, objection)
    return Own(sequence, event.id)


async def at_the_end(js: JetStreamContext, service: str, after: int, last: int) -> Sequence[Foreign]:
    """The foreign messages that end the stream, behind `after`, lowest first. Nearly always there are none."""
    found: list[Foreign] = []
    sequence = last
    while sequence > after and len(found) < MOST_AT_ONCE:
        there = await look_at(js, service, sequence)
        if isinstance(there, Own):
            break
        found.append(there)
        sequence -= 1
    return found[::-1]


async def only_foreign(js: JetStreamContext, service: str, own_last: int, stream_last: int) -> bool:
    """Whether nothing but foreign messages comes after our last event: then the database is not an older copy."""
    return len(await at_the_end(js, service, own_last, stream_last)) == stream_last - own_last


async def unmatched(database: Database, js: JetStreamContext, service: str, last: int) -> Sequence[Foreign]:
    """The foreign messages at the stream's end that we have not stepped over yet. Raises PlaceTaken.

    None when events of ours that this database does not know lie before them: that is a restored database.
    """
    found = await at_the_end(js, service, 0, last)
    first = found[0].sequence if found else last + 1
    before = await look_at(js, service, first - 1) if first > 1 else None
    async with database.transaction() as conn:
        rows = await conn.execute(
            text(
                f"""SELECT seq, message_id, published_at IS NOT NULL AS known FROM {service}.outbox
                WHERE seq BETWEEN :before AND :last ORDER BY seq"""
            ),
            {"before": first - 1, "last": last},
        )
        ours = {int(row.seq): row for row in rows}
        void = await voids(conn, service, first, last)
        newest = await last_numbered(conn, service)
    if isinstance(before, Own) and before.sequence in ours and ours[before.sequence].message_id != before.id:
        raise _taken(service, before.sequence, f"event {before.id} of another history")
    if newest < first - 1:
        return []
    new = [each for each in found if each.sequence not in void]
    for each in new:
        row = ours.get(each.sequence)
        seen = row.known or each.payload is None if row is not None else each.sequence <= newest
        if seen:
            raise _taken(service, each.sequence, each.why)
    return new


def _taken(service: str, sequence: int, why: str) -> PlaceTaken:
    return PlaceTaken(
        f"event {sequence} of {service} may have been read, and {event_stream(service)} has something else there "
        f"({why}): delete the stream and declare it again; it is filled from the outbox and the audit store "
        "(docs/guides/restore.md)"
    )


async def voids(conn: AsyncConnection, service: str, first: int, last: int) -> set[int]:
    """The void numbers between `first` and `last`."""
    rows = await conn.execute(
        text(
            f"SELECT last_seq FROM {service}.stream_seen WHERE stream LIKE :void AND last_seq BETWEEN :first AND :last"
        ),
        {"void": f"{VOID}%", "first": first, "last": last},
    )
    return {int(row[0]) for row in rows}


async def step_over(conn: AsyncConnection, service: str, found: Sequence[Foreign]) -> int:
    """Make the numbers void and give their events, and those after them, the next ones. Returns how many moved.

    The caller holds the sequencer's lease in the same transaction.
    """
    first, last = found[0].sequence, found[-1].sequence
    # In two steps: while a number is moved upwards its new one may still be another row's.
    moved: Any = await conn.execute(
        text(
            f"""UPDATE {service}.outbox o SET seq = -n.seq FROM (
                SELECT id, :last + row_number() OVER (ORDER BY seq) AS seq FROM {service}.outbox
                WHERE seq >= :first AND published_at IS NULL) n WHERE o.id = n.id"""
        ),
        {"first": first, "last": last},
    )
    await conn.execute(text(f"UPDATE {service}.outbox SET seq = -seq WHERE seq < 0"))
    await conn.execute(
        text(
            f"""INSERT INTO {service}.tenant_sequence AS t (tenant, last) VALUES ('*', :last)
            ON CONFLICT (tenant) DO UPDATE SET last = excluded.last"""
        ),
        {"last": last + moved.rowcount},
    )
    await keep_void(conn, service, [each.sequence for each in found])
    for each in found:
        await _set_aside(conn, service, each)
        log.error(
            "foreign_message",
            service=service,
            sequence=each.sequence,
            subject=each.subject,
            error=each.why,
            moved=moved.rowcount,
        )
    FOREIGN.labels(service).inc(len(found))
    return int(moved.rowcount)


async def keep_void(conn: AsyncConnection, service: str, sequences: Sequence[int]) -> None:
    """Remember that these numbers are nobody's."""
    for sequence in sequences:
        await conn.execute(
            text(
                f"""INSERT INTO {service}.stream_seen (stream, made_at, last_seq)
                VALUES (:name, clock_timestamp(), :seq) ON CONFLICT (stream) DO NOTHING"""
            ),
            {"name": f"{VOID}{sequence}", "seq": sequence},
        )


async def _set_aside(conn: AsyncConnection, service: str, found: Foreign) -> None:
    """A dead letter under the name of its place and without a key: it holds nobody up."""
    tables = bus_tables(service)
    place = f"{event_stream(service)}:{found.sequence}"
    kept = await conn.execute(
        text(
            f"""INSERT INTO {service}.inbox (message_id, key, subject, payload, state, error, cause, dead_at)
            VALUES (:place, '', :subject, :payload, {DEAD}, :error, :cause, now())
            ON CONFLICT (message_id) DO NOTHING RETURNING id"""
        ),
        {
            "place": place,
            "subject": found.subject,
            "payload": found.payload or b"",
            "error": found.why.replace("\x00", ""),
            "cause": found.cause.value,
        },
    )
    if kept.first() is not None:
        letter = letter_row(service, found.subject, found.payload or b"", 0, found.cause, found.why)
        await conn.execute(tables.outbox.insert(), [letter])


async def fill(js: JetStreamContext, service: str, sequence: int) -> None:
    """Put a filler at a void number of a stream that was lost, so that what follows gets its own places again."""
    headers = {"Nats-Expected-Last-Sequence": str(sequence - 1)}
    await js.publish(FILLER_SUBJECT.format(service=service), FILLER, headers=headers)
