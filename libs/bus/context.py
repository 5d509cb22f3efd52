"""One transaction's view of the bus: what caused it, what it says, what it asks for.

`emit` and `send` only collect; `flush` writes them just before the commit, so that state and message commit together
or not at all: to the outbox in one statement, and what is for the service itself straight to its inbox. Such a message
needs no broker to arrive, and can't be lost on the way, doubled or overtaken by a restored database.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.errors import Oversize
from libs.bus.tables import PENDING
from libs.contracts.envelope import MAX_MESSAGE_BYTES, NONE_TOKEN, SYSTEM_ACTOR, Envelope, new_message_id, now_utc
from libs.contracts.message import Kind, Message, json_data
from libs.contracts.replies import REPLY_TYPE, Reply
from libs.contracts.text import clean

Row = dict[str, Any]

OWN = "cmd.{s}."  # Subjects of what a service tells itself.
_OUTBOX_COLUMNS = ("message_id", "is_event", "subject", "tenant", "payload", "created_at")
_TO_OUTBOX = """INSERT INTO {s}.outbox (message_id, is_event, subject, tenant, payload, created_at)
SELECT * FROM unnest($1::text[], $2::boolean[], $3::text[], $4::text[], $5::bytea[], $6::timestamptz[])"""
_INBOX_COLUMNS = ("message_id", "key", "subject", "payload", "state")
# Twice the same message is one.
_TO_INBOX = """INSERT INTO {s}.inbox (message_id, key, subject, payload, state)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[])
ON CONFLICT (message_id) DO NOTHING"""
_TO_BOTH = (
    """WITH others AS (
    INSERT INTO {s}.outbox (message_id, is_event, subject, tenant, payload, created_at)
    SELECT * FROM unnest($6::text[], $7::boolean[], $8::text[], $9::text[], $10::bytea[], $11::timestamptz[]))
"""
    + _TO_INBOX
)


class Sagas(Protocol):
    """What a context needs of the saga engine (libs/saga/engine.py)."""

    async def start(
        self,
        ctx: Context,
        kind: str,
        data: dict[str, Any],
        *,
        target_kind: str,
        target_id: str,
        tenant: str,
        site: str,
        answers: Envelope | None,
        operation_id: str | None,
    ) -> str: ...

    async def cancel(self, ctx: Context, operation_id: str, reason: str) -> bool: ...


@dataclass
class Context:
    """See the module's docstring. A handler never commits; the shell does."""

    conn: AsyncConnection
    service: str
    cause: Envelope | None = None
    actor: str = SYSTEM_ACTOR
    correlation_id: str = ""
    now: datetime = field(default_factory=now_utc)
    epoch: int = 1
    sagas: Sagas | None = None
    outgoing: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.cause is not None:
            self.actor = self.cause.actor
            self.correlation_id = self.cause.correlationid
        if not self.correlation_id:
            self.correlation_id = new_message_id()

    def emit(
        self,
        event: Message,
        *,
        entity_id: str,
        entity_version: int,
        site: str = NONE_TOKEN,
        tenant: str = NONE_TOKEN,
        older: Message | None = None,
    ) -> str:
        """Publish a fact when the transaction commits. Returns its id.

        `older`: the same fact in the version before, published beside it for as long as somebody reads that version.
        """
        if older is not None:
            pair = (event.message_type, older.message_type)
            if pair[0].type != pair[1].type or pair[1].version >= pair[0].version:
                raise TypeError(f"{type(older).__name__} is no older version of {type(event).__name__}")
        put = partial(self._put_event, entity_id=entity_id, entity_version=entity_version, site=site, tenant=tenant)
        made = put(event, beside=older.message_type.version if older is not None else None)
        if older is not None:
            put(older, beside=event.message_type.version)
        return made

    def _put_event(
        self, event: Message, *, entity_id: str, entity_version: int, site: str, tenant: str, beside: int | None
    ) -> str:
        kind = event.message_type
        if kind.kind is not Kind.EVENT or kind.group != self.service:
            raise TypeError(f"{self.service} can't emit {kind.type}: only its owner emits an entity's events")
        subject = kind.subject(site=site, tenant=tenant)
        return self._put(event, subject, entity_id, entity_version, site, tenant, is_event=True, beside=beside)

    def send(
        self,
        command: Message,
        *,
        site: str | None = None,
        tenant: str = NONE_TOKEN,
        deadline: datetime | None = None,
        command_id: str | None = None,
        reply_to: str | None = None,
    ) -> str:
        """Ask a service or a site for something when the transaction commits. Returns the command's id."""
        kind = command.message_type
        if kind.kind is Kind.SITE_COMMAND and site is None:
            raise TypeError(f"{kind.type} needs the site it is for")
        subject = kind.subject(site=site or NONE_TOKEN)
        key = command.key()
        return self._put(
            command,
            subject,
            key,
            0,
            site or NONE_TOKEN,
            tenant,
            command_id=command_id,
            reply_to=reply_to,
            deadline=deadline,
        )

    def answer(self, request: Envelope, reply: Reply) -> None:
        """Answer a command, if somebody waits for it."""
        if request.replyto is None:
            return
        self.outgoing.append(reply_row(self.service, request, reply, self.now, self.epoch))

    async def start_saga(
        self,
        kind: str,
        data: dict[str, Any],
        *,
        target_kind: str,
        target_id: str,
        tenant: str = NONE_TOKEN,
        site: str = NONE_TOKEN,
        answers: Envelope | None = None,
        operation_id: str | None = None,
    ) -> str:
        """Start a process in this transaction. Returns the operation id (the one given, when it runs already)."""
        assert self.sagas is not None, f"{self.service} declares no sagas"
        return await self.sagas.start(
            self,
            kind,
            data,
            target_kind=target_kind,
            target_id=target_id,
            tenant=tenant,
            site=site,
            answers=answers,
            operation_id=operation_id,
        )

    async def cancel_saga(self, operation_id: str, reason: str) -> bool:
        """Ask a process to compensate. False: there is none, or it is too late."""
        assert self.sagas is not None, f"{self.service} declares no sagas"
        return await self.sagas.cancel(self, operation_id, reason)

    def _put(
        self,
        message: Message,
        subject: str,
        entity_id: str,
        entity_version: int,
        site: str,
        tenant: str,
        *,
        is_event: bool = False,
        command_id: str | None = None,
        reply_to: str | None = None,
        deadline: datetime | None = None,
        beside: int | None = None,
    ) -> str:
        kind = message.message_type
        message_id = command_id or new_message_id()
        envelope: dict[str, Any] = {
            "id": message_id,
            "source": f"/slipway/{self.service}",
            "type": kind.type,
            "specversion": "1.0",
            "time": self.now,
            "subject": entity_id,
            "dataschema": kind.dataschema,
            "datacontenttype": "application/json",
            "entityversion": entity_version,
            "correlationid": self.correlation_id,
            "actor": self.actor,
            "site": site,
            "tenant": tenant,
            "epoch": self.epoch,
            "data": json_data(message),
        }
        if self.cause is not None:
            envelope["causationid"] = self.cause.id
        if reply_to is not None:
            envelope["replyto"] = reply_to
        if deadline is not None:
            envelope["deadline"] = deadline
        if beside is not None:
            envelope["besideversion"] = beside
        self.outgoing.append(outbox_row(message_id, subject, tenant, envelope, is_event=is_event))
        return message_id

    async def flush(self) -> bool:
        """Write what was collected. Returns whether there was anything.

        Contexts of one transaction may share `outgoing`; then this writes what all of them collected, in its order.
        """
        if not self.outgoing:
            return False
        prefix = OWN.format(s=self.service)
        own = [row for row in self.outgoing if row["subject"].startswith(prefix)]
        others = [row for row in self.outgoing if not row["subject"].startswith(prefix)]
        self.outgoing.clear()
        if not own:
            await keep_in_outbox(self.conn, self.service, others)
        elif not others:
            await keep_in_inbox(self.conn, self.service, own)
        else:
            values = (*_columns(own, _INBOX_COLUMNS), *_columns(others, _OUTBOX_COLUMNS))
            await self.conn.exec_driver_sql(_TO_BOTH.format(s=self.service), values)
        return True


async def keep_in_outbox(conn: AsyncConnection, service: str, rows: Sequence[Row]) -> None:
    """Keep messages, rows of `outbox_row`, to be published after the commit."""
    await conn.exec_driver_sql(_TO_OUTBOX.format(s=service), _columns(rows, _OUTBOX_COLUMNS))


async def keep_in_inbox(conn: AsyncConnection, service: str, rows: Sequence[Row]) -> None:
    """Keep messages {message_id, key, subject, payload, state}; one whose id is known is left alone."""
    await conn.exec_driver_sql(_TO_INBOX.format(s=service), _columns(rows, _INBOX_COLUMNS))


def _columns(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[Any], ...]:
    """The rows as one array a column, which the statement unnests: one round trip, bound once, for any number."""
    return tuple([row[name] for row in rows] for name in names)


def outbox_row(message_id: str, subject: str, tenant: str, envelope: dict[str, Any], *, is_event: bool) -> Row:
    """One message to go out: a row of the outbox, or of the own inbox, where messages of one key are worked in order.

    Replies need no order: a saga's row lock serialises them. Raises Oversize naming type and size: a too large message
    would break the connection.
    """
    payload = _encoded(envelope)
    if len(payload) > MAX_MESSAGE_BYTES:
        raise Oversize(
            f"{envelope['type']} about {envelope['subject']} has {len(payload)} bytes; at most {MAX_MESSAGE_BYTES} "
            "go on the bus; put the content into the object store and send its reference"
        )
    return {
        "message_id": message_id,
        "is_event": is_event,
        "subject": subject,
        "tenant": tenant,
        "payload": payload,
        "created_at": envelope["time"],
        "key": "" if envelope["type"] == REPLY_TYPE else envelope["subject"],
        "state": PENDING,
    }


def _encoded(envelope: dict[str, Any]) -> bytes:
    """The message as JSON with clean text. Encoding itself tells whether there is anything to clean: NUL is escaped,
    and lone surrogates are refused. Walking every message first would cost several times the encoding."""
    try:
        payload = orjson.dumps(envelope)
    except orjson.JSONEncodeError:
        return orjson.dumps(clean(envelope))
    return orjson.dumps(clean(envelope)) if b"\\u0000" in payload else payload


def reply_envelope(service: str, request: Envelope, reply: Reply, now: datetime, epoch: int) -> Envelope:
    """The reply to `request` as a message. It correlates by `causationid`."""
    return Envelope(
        id=new_message_id(),
        source=f"/slipway/{service}",
        type=REPLY_TYPE,
        time=now,
        subject=request.subject,
        correlationid=request.correlationid,
        causationid=request.id,
        actor=request.actor,
        site=request.site,
        tenant=request.tenant,
        epoch=epoch,
        data=json_data(reply),
    )


def reply_row(service: str, request: Envelope, reply: Reply, now: datetime, epoch: int) -> Row:
    assert request.replyto is not None
    envelope = reply_envelope(service, request, reply, now, epoch)
    body = envelope.model_dump(exclude_none=True)
    return outbox_row(envelope.id, f"cmd.{request.replyto}.reply.v1", request.tenant, body, is_event=False)


CommandHandler = Callable[[Context, Any], Awaitable[Reply | None]]
ObservationHandler = Callable[[Context, Any], Awaitable[None]]
CommandHandlers = Mapping[type[Message], CommandHandler]
ObservationHandlers = Mapping[type[Message], ObservationHandler]
