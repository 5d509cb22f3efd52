"""A service under test without a broker: commands in, events and state out, on a real migrated PostgreSQL.

Every message is handled through the service shell's own code path. `command` and `observe` deliver twice (the
second delivery must have no effect), because the bus may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, text

from libs.bus.inbox import Received, landing_key
from libs.bus.tables import DONE, PENDING, bus_tables
from libs.contracts.calls import Answer, Call
from libs.contracts.envelope import Envelope, decode, new_message_id, now_utc
from libs.contracts.message import Message, json_data
from libs.contracts.replies import REPLY_TYPE, Reply
from libs.runtime.database import Database
from libs.runtime.service import App, Service


@dataclass
class ServiceKit:
    """One service on its own database. `database_url` is the running role's or a superuser's."""

    service: Service
    database: Database
    app: App = field(init=False)
    _seen: int = 0

    def __post_init__(self) -> None:
        self.app = App(self.service, self.database)

    async def command(self, command: Message, **envelope: Any) -> Reply | None:
        """Handle a command; returns the reply, None when a saga will answer later."""
        sent = self._envelope(command, replyto="test", **envelope)
        await self._handle(sent)
        replies = await self._replies_to(sent.id)
        return replies[-1] if replies else None

    async def observe(self, seen: Message, *, site: str = "fra1") -> None:
        """Handle an observation."""
        await self._handle(self._envelope(seen, site=site))

    async def reply(self, to: Envelope, reply: Reply) -> None:
        """Answer a command that the service (a saga of it) has sent."""
        envelope = Envelope(
            id=new_message_id(),
            source="/slipway/test",
            type=REPLY_TYPE,
            time=now_utc(),
            subject=to.subject,
            correlationid=to.correlationid,
            causationid=to.id,
            actor=to.actor,
            data=json_data(reply),
        )
        await self._handle(envelope)

    async def work_own(self) -> None:
        """Work on what the service has told itself, and on what follows from it, until nothing is left."""
        while await self._next_own():
            pass

    async def project(self, name: str, events: Sequence[Envelope]) -> None:
        """Apply a batch of events to a projection."""
        projection = next(p for p in self.service.projections if p.name == name)
        async with self.database.transaction() as conn:
            await projection.apply(conn, events)

    async def call(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        tenants: tuple[str, ...] | None = None,
        actor: str = "user:test",
        idempotency_key: str | None = None,
        if_match: str | None = None,
    ) -> Answer:
        """A write, as the gateway would ask for it."""
        return await self.app.run_call(_call(name, params, tenants, actor, idempotency_key, if_match))

    async def query(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        tenants: tuple[str, ...] | None = None,
        actor: str = "user:test",
    ) -> Answer:
        """A read, as the gateway would ask for it."""
        return await self.app.run_query(_call(name, params, tenants, actor, None, None))

    async def events(self) -> list[Envelope]:
        """Every event emitted so far, in order."""
        return [envelope for envelope, is_event in await self._outbox() if is_event]

    async def sent(self) -> list[Envelope]:
        """Every command sent so far (no replies), in order."""
        said = [envelope for envelope, is_event in await self._outbox() if not is_event]
        return sorted((e for e in said + await self._to_itself() if e.type != REPLY_TYPE), key=lambda e: e.time)

    async def fire_timers(self, *, all_due: bool = True) -> int:
        """Fire timers; with `all_due` every timer counts as due now."""
        assert self.app.engine is not None
        async with self.database.transaction() as conn:
            if all_due:
                await conn.execute(text(f"UPDATE {self.service.name}.saga_timer SET due_at = '-infinity'"))
            return await self.app.engine.fire_due_timers(conn, self.app.context)

    def event(
        self,
        event: Message,
        *,
        entity_id: str,
        entity_version: int,
        tenant: str = "-",
        site: str = "-",
        sequence: int | None = None,
    ) -> Envelope:
        """An envelope as another service would publish it."""
        return make_event(
            event, entity_id=entity_id, entity_version=entity_version, tenant=tenant, site=site, sequence=sequence
        )

    async def _handle(self, envelope: Envelope) -> None:
        """Twice, with the inbox between: the second delivery finds the id and does nothing."""
        table = bus_tables(self.service.name).inbox
        for _ in range(2):
            async with self.database.transaction() as conn:
                known = await conn.scalar(select(table.c.id).where(table.c.message_id == envelope.id))
                if known is not None:
                    continue
                row = {
                    "message_id": envelope.id,
                    "key": landing_key(envelope),
                    "subject": "test",
                    "payload": envelope.encode(),
                    "state": 1,
                    "attempts": 0,
                    "due_at": now_utc(),
                    "received_at": now_utc(),
                }
                await conn.execute(table.insert(), [row])
                # What is handled has been through JSON, as on the bus.
                await self.app.handle_batch(conn, [Received(0, decode(envelope.encode()), 0)])

    async def _outbox(self) -> list[tuple[Envelope, bool]]:
        table = bus_tables(self.service.name).outbox
        async with self.database.transaction() as conn:
            rows = await conn.execute(select(table.c.payload, table.c.is_event).order_by(table.c.id))
            return [(decode(row[0]), row[1]) for row in rows]

    async def _to_itself(self) -> list[Envelope]:
        """What the service has told itself, done or not."""
        table = bus_tables(self.service.name).inbox
        own = table.c.subject.startswith(f"cmd.{self.service.name}.")
        async with self.database.transaction() as conn:
            rows = await conn.execute(select(table.c.payload).where(own).order_by(table.c.id))
            return [decode(row[0]) for row in rows]

    async def _next_own(self) -> bool:
        """Work on the oldest message that the service has told itself. False when there is none."""
        table = bus_tables(self.service.name).inbox
        async with self.database.transaction() as conn:
            oldest = select(table.c.id, table.c.payload).where(table.c.state == PENDING).order_by(table.c.id).limit(1)
            row = (await conn.execute(oldest)).first()
            if row is None:
                return False
            await self.app.handle_batch(conn, [Received(row[0], decode(row[1]), 0)])
            await conn.execute(table.update().where(table.c.id == row[0]).values(state=DONE))
            return True

    async def _replies_to(self, command_id: str) -> list[Reply]:
        return [
            Reply.model_validate(envelope.data)
            for envelope, is_event in await self._outbox()
            if not is_event and envelope.type == REPLY_TYPE and envelope.causationid == command_id
        ]

    def _envelope(self, message: Message, *, site: str = "-", replyto: str | None = None, **more: Any) -> Envelope:
        kind = message.message_type
        return Envelope(
            id=new_message_id(),
            source="/slipway/test",
            type=kind.type,
            time=now_utc(),
            subject=message.key(),
            dataschema=kind.dataschema,
            correlationid=new_message_id(),
            actor="user:test",
            site=site,
            replyto=replyto,
            data=json_data(message),
            **more,
        )


def make_event(
    event: Message,
    *,
    entity_id: str,
    entity_version: int,
    tenant: str = "-",
    site: str = "-",
    sequence: int | None = None,
) -> Envelope:
    """An event's envelope, as its owner would publish it."""
    kind = event.message_type
    return Envelope(
        id=new_message_id(),
        source=f"/slipway/{kind.group}",
        type=kind.type,
        time=now_utc(),
        subject=entity_id,
        dataschema=kind.dataschema,
        entityversion=entity_version,
        correlationid=new_message_id(),
        site=site,
        tenant=tenant,
        sequence=f"{sequence:020d}" if sequence is not None else None,
        data=json_data(event),
    )


def _call(
    name: str,
    params: Mapping[str, Any] | None,
    tenants: tuple[str, ...] | None,
    actor: str,
    idempotency_key: str | None,
    if_match: str | None,
) -> Call:
    return Call(
        name=name,
        actor=actor,
        tenants=tenants,
        correlation_id=new_message_id(),
        idempotency_key=idempotency_key,
        if_match=if_match,
        params=dict(params or {}),
    )
