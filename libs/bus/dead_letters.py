"""Dead letters: messages set aside for a human, with their cause; read, driven again, edited, dropped.

A dead letter is a row of the inbox, so it keeps its place: later messages of its key wait behind it until it was
handled or dropped, and others flow. What people decide about it is appended to a history that nobody changes,
together with the message as it was before an edit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import outbox_row
from libs.bus.tables import DEAD, DROPPED, PENDING, bus_tables
from libs.contracts.causes import Cause
from libs.contracts.envelope import (
    MAX_MESSAGE_BYTES,
    NONE_TOKEN,
    SYSTEM_ACTOR,
    BadMessage,
    Envelope,
    decode,
    new_message_id,
    now_utc,
)
from libs.contracts.replies import REPLY_TYPE, Reply
from libs.contracts.versions import known_class, parse_version

MAX_WAITING_SHOWN = 20
MAX_SHOWN_BYTES = 100 * 1024  # Far below what a message may have, for JSON may grow by escaping.
MAX_TOKEN_LENGTH = 100
_NO_TOKEN = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Wanted:
    """Which dead letters. Every given part must match; nothing given matches all."""

    cause: Sequence[str] = ()
    type: Sequence[str] = ()
    key: Sequence[str] = ()
    subject: str = ""  # Text that its subject contains.
    error: str = ""  # Text that its error contains.
    before: datetime | None = None  # Dead before this instant.
    since: datetime | None = None

    @property
    def narrow(self) -> bool:
        """Whether anything at all was asked for."""
        return any((self.cause, self.type, self.key, self.subject, self.error, self.before, self.since))


class CannotRedrive(ValueError):
    """The letter can't be handled as it is; the text says what is wrong with it. `field` names where."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


def _conditions(table: Any, wanted: Wanted) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [table.c.state == DEAD]
    if wanted.cause:
        conditions.append(table.c.cause.in_(wanted.cause))
    if wanted.key:
        conditions.append(table.c.key.in_(wanted.key))
    if wanted.subject:
        conditions.append(table.c.subject.contains(wanted.subject, autoescape=True))
    if wanted.error:
        conditions.append(table.c.error.contains(wanted.error, autoescape=True))
    if wanted.before is not None:
        conditions.append(table.c.dead_at < wanted.before)
    if wanted.since is not None:
        conditions.append(table.c.dead_at >= wanted.since)
    return conditions


def _waiting_behind(table: Any) -> Any:
    """How many messages of the same key wait until this one was dealt with."""
    behind = table.alias("behind")
    counted = select(func.count()).where(
        behind.c.key == table.c.key, table.c.key != "", behind.c.state == PENDING, behind.c.id > table.c.id
    )
    return counted.correlate(table).scalar_subquery()


def _selected(table: Any, wanted: Wanted, after: int) -> Select[Any]:
    return (
        select(table, _waiting_behind(table).label("waiting_behind"))
        .where(*_conditions(table, wanted), table.c.id > after)
        .order_by(table.c.id)
    )


async def find(
    conn: AsyncConnection, service: str, wanted: Wanted, *, after: int = 0, limit: int = 50
) -> list[Mapping[str, Any]]:
    """Dead letters in the order in which they came, after an id; `wanted.type` is looked for in what was read."""
    table = bus_tables(service).inbox
    found: list[Mapping[str, Any]] = []
    while len(found) < limit:
        rows = list((await conn.execute(_selected(table, wanted, after).limit(limit))).mappings())
        found += [dict(row) for row in rows if not wanted.type or type_of(row["payload"]) in wanted.type]
        if len(rows) < limit:
            break
        after = rows[-1]["id"]
    return found[:limit]


async def get(conn: AsyncConnection, service: str, letter: int, *, lock: bool = False) -> Mapping[str, Any] | None:
    """One dead letter, None when there is none of that id (any more)."""
    table = bus_tables(service).inbox
    statement = select(table, _waiting_behind(table).label("waiting_behind")).where(
        table.c.id == letter, table.c.state == DEAD
    )
    if lock:
        statement = statement.with_for_update(of=table)
    row = (await conn.execute(statement)).mappings().first()
    return dict(row) if row is not None else None


async def history(conn: AsyncConnection, service: str, letter: int) -> list[Mapping[str, Any]]:
    """What people did about it so far, oldest first."""
    table = bus_tables(service).dead_letter_action
    rows = await conn.execute(select(table).where(table.c.inbox_id == letter).order_by(table.c.id))
    return [dict(row) for row in rows.mappings()]


async def waiting(conn: AsyncConnection, service: str, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The first messages that wait behind it."""
    if not row["key"]:
        return []
    table = bus_tables(service).inbox
    statement = select(table.c.id, table.c.message_id, table.c.subject, table.c.received_at).where(
        table.c.key == row["key"], table.c.state == PENDING, table.c.id > row["id"]
    )
    rows = await conn.execute(statement.order_by(table.c.id).limit(MAX_WAITING_SHOWN))
    return [dict(each) for each in rows.mappings()]


def original(payload: bytes) -> Envelope | None:
    """The message, None when it can't be read."""
    try:
        return decode(payload)
    except BadMessage:
        return None


def id_of(payload: bytes) -> str | None:
    """The message's id, None when it can't be read."""
    envelope = original(payload)
    return envelope.id if envelope is not None else None


def type_of(payload: bytes) -> str | None:
    envelope = original(payload)
    return envelope.type if envelope is not None else None


def checked(envelope: Envelope) -> Envelope:
    """`envelope` when this version of the service could handle it. Raises CannotRedrive naming what is wrong."""
    if envelope.type == REPLY_TYPE:
        model: type[Any] | None = Reply
    else:
        model = known_class(envelope)
    if model is None:
        raise CannotRedrive(
            "type", f"{envelope.type} in version {parse_version(envelope)} is not known to this version of the service"
        )
    try:
        model.model_validate(envelope.data)
    except ValueError as error:
        first = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
        where = ".".join(("data", *map(str, first["loc"])))
        raise CannotRedrive(where, f"{envelope.type}: {first['msg']}") from error
    if len(envelope.encode()) > MAX_MESSAGE_BYTES:
        raise CannotRedrive("data", f"the message would have more than {MAX_MESSAGE_BYTES} bytes")
    return envelope


def edited(row: Mapping[str, Any], *, data: dict[str, Any] | None, message: dict[str, Any] | None) -> Envelope:
    """The letter with new `data`, or wholly replaced by `message`, checked. Raises CannotRedrive.

    A readable letter keeps its id: a repeat of the original stays a repeat.
    """
    before = original(row["payload"])
    if message is not None:
        try:
            envelope = Envelope.model_validate(message)
        except ValueError as error:
            first = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
            raise CannotRedrive(".".join(("message", *map(str, first["loc"]))), str(first["msg"])) from error
        if before is not None and (envelope.id, envelope.subject) != (before.id, before.subject):
            raise CannotRedrive("message.id", f"must stay {before.id} about {before.subject!r}, as in the original")
        return checked(envelope)
    if before is None:
        raise CannotRedrive("message", "the original can't be read; give the whole message instead of its data")
    return checked(before.model_copy(update={"data": data or {}}))


def letter_row(service: str, subject: str, payload: bytes, attempts: int, cause: Cause, error: str) -> dict[str, Any]:
    """The outbox row that tells of a dead letter on dlq.<service>.<type>; a large original stays in the inbox alone."""
    message = original(payload)
    handler = message.type.removeprefix("slipway.") if message else "unreadable"
    shown = json_original(payload) if len(payload) <= MAX_SHOWN_BYTES else None
    tenant = message.tenant if message else NONE_TOKEN
    letter_id = new_message_id()
    envelope: dict[str, Any] = {
        "id": letter_id,
        "source": f"/slipway/{service}",
        "type": "slipway.dead_letter",
        "specversion": "1.0",
        "time": now_utc(),
        "subject": message.subject if message else "",
        "datacontenttype": "application/json",
        "correlationid": message.correlationid if message else new_message_id(),
        "actor": message.actor if message else SYSTEM_ACTOR,
        "site": message.site if message else NONE_TOKEN,
        "tenant": tenant,
        "data": {
            "service": service,
            "subject": subject,
            "attempts": attempts,
            "cause": cause.value,
            "error": error.replace("\x00", ""),
            "original": shown,
            "original_bytes": len(payload),
        },
    }
    if message is not None:
        envelope["causationid"] = message.id
    # A type may be anything; in a subject it must be one token of letters that NATS takes.
    token = _NO_TOKEN.sub("_", handler)[:MAX_TOKEN_LENGTH] or "unreadable"
    return outbox_row(letter_id, f"dlq.{service}.{token}", tenant, envelope, is_event=False)


async def redrive(
    conn: AsyncConnection,
    service: str,
    row: Mapping[str, Any],
    *,
    actor: str,
    reason: str,
    now: datetime,
    replaced: Envelope | None = None,
) -> None:
    """Have a locked letter handled again, with `replaced` as its content if given. The original is kept."""
    table = bus_tables(service).inbox
    values: dict[str, Any] = {"state": PENDING, "attempts": 0, "due_at": now, "cause": None, "dead_at": None}
    message = replaced or original(row["payload"])
    if message is None:
        raise CannotRedrive("message", "it can't be read, and would not be the next time; edit it or drop it")
    # One that was refused at the door came here under the name of its place and without a key.
    values |= {"message_id": message.id, "key": "" if message.type == REPLY_TYPE else message.subject}
    if replaced is not None:
        values["payload"] = replaced.encode()
    known = await conn.scalar(select(table.c.id).where(table.c.message_id == message.id, table.c.id != row["id"]))
    if known is not None:
        raise CannotRedrive("message.id", f"{message.id} was received before, as number {known}; drop this one")
    await conn.execute(update(table).where(table.c.id == row["id"], table.c.state == DEAD).values(**values))
    action = "redriven" if replaced is None else "edited"
    await _record(conn, service, row, action, actor, reason, now)


async def drop(
    conn: AsyncConnection, service: str, row: Mapping[str, Any], *, actor: str, reason: str, now: datetime
) -> None:
    """Give a locked letter up: later messages of its key go on. It stays known, so a repeat has no effect."""
    table = bus_tables(service).inbox
    statement = update(table).where(table.c.id == row["id"], table.c.state == DEAD)
    await conn.execute(statement.values(state=DROPPED, done_at=now))
    await _record(conn, service, row, "dropped", actor, reason, now)


async def _record(
    conn: AsyncConnection, service: str, row: Mapping[str, Any], action: str, actor: str, reason: str, now: datetime
) -> None:
    kept = {
        "inbox_id": row["id"],
        "message_id": row["message_id"],
        "action": action,
        "reason": reason,
        "actor": actor,
        "at": now,
        "cause_before": row["cause"],
        "error_before": row["error"],
        "attempts_before": row["attempts"],
        "payload_before": row["payload"] if action == "edited" else None,
    }
    await conn.execute(insert(bus_tables(service).dead_letter_action), [kept])


def body(row: Mapping[str, Any]) -> dict[str, Any]:
    """The letter as the API shows it."""
    message = original(row["payload"])
    return {
        "id": str(row["id"]),
        "message_id": row["message_id"],
        "type": message.type if message else None,
        "subject": row["subject"],
        "key": row["key"],
        "cause": row["cause"],
        "error": row["error"],
        "attempts": row["attempts"],
        "waiting_behind": row["waiting_behind"],
        "received_at": row["received_at"].isoformat(),
        "dead_at": row["dead_at"].isoformat() if row["dead_at"] else None,
        "original": json_original(row["payload"]),
    }


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """The letter in one line."""
    shown = body(row)
    return {name: shown[name] for name in ("id", "type", "key", "cause", "error", "waiting_behind")}


def json_original(payload: bytes) -> Any:
    """The message as JSON; its text, cut, when it is none."""
    message = original(payload)
    if message is None:
        return payload.decode("utf-8", "replace").replace("\x00", "")[:4000]
    return message.model_dump(mode="json", exclude_none=True)
