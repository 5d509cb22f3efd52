"""What the gateway asks of a service: writes, each in one transaction with its answer, and reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.restore import entities_of
from libs.bus.tables import bus_tables
from libs.contracts.calls import Answer, Call
from libs.contracts.envelope import new_message_id
from libs.runtime import projection_calls, replay_calls
from libs.runtime.calls import (
    CallHandler,
    CallHandlers,
    QueryHandler,
    QueryHandlers,
    failed_answer,
    idempotent,
    operation_calls,
    operation_queries,
    paused_answer,
)
from libs.runtime.dead_letter_calls import dead_letter_calls, dead_letter_queries
from libs.runtime.history import History
from libs.saga.parking import park_all

if TYPE_CHECKING:
    from libs.runtime.service import App

# What the shell answers itself, beside handlers.
SHELL_CALLS = (
    *("projections", "rebuild_projection", "rebuild_progress"),
    *("restore", "accept_restore"),
    *("replays", "replay", "start_replay", "cancel_replay"),
)

log = structlog.get_logger("service")


class Door:
    """The calls and queries of one running service."""

    def __init__(self, app: App) -> None:
        self.app = app

    def names(self) -> set[str]:
        """Everything it answers."""
        return {*self.all_queries(), *self.all_calls(), *SHELL_CALLS}

    async def run_call(self, call: Call) -> Answer:
        """A write of the gateway."""
        if call.name == "rebuild_projection":
            return await projection_calls.rebuild(self.app.rebuilds, call)
        if self.app.replays is not None and call.name == "start_replay":
            return await replay_calls.start(self.app.replays, call)
        if self.app.replays is not None and call.name == "cancel_replay":
            return await replay_calls.cancel(self.app.replays, call)
        if call.name == "accept_restore" and self.app.history is not None:
            return await self._accept_restore(self.app.history, call)
        if self.app.writes.reasons:
            return paused_answer(self.app.service.name, self.app.writes.reasons[0])
        handler = self.all_calls().get(call.name)
        if handler is None:
            return failed_answer(LookupError(call.name))
        async with self.app.database.transaction() as conn:
            ctx = self._call_context(conn, call)
            answer = await idempotent(ctx, call, handler)
            if answer.status >= 400:
                # A refusal writes nothing, whatever the handler had begun.
                await conn.rollback()
                return answer
            await ctx.flush()
        self.app.wake()
        return answer

    def _call_context(self, conn: AsyncConnection, call: Call) -> Context:
        return Context(
            conn,
            self.app.service.name,
            actor=call.actor,
            correlation_id=call.correlation_id,
            epoch=self.app.epoch,
            sagas=self.app.engine,
        )

    async def _accept_restore(self, history: History, call: Call) -> Answer:
        """Go on after a restore; the sagas that ran are parked."""
        tables = entities_of(
            self.app.service.metadata, bus_tables(self.app.service.name).saga, self.app.service.entities
        )

        async def park(conn: AsyncConnection, why: str) -> int:
            return await park_all(self.app.engine, conn, self.app.context, why) if self.app.engine is not None else 0

        answer = await history.accept(call, self._call_context, tables, park)
        self.app.wake()
        return answer

    async def accept_as_set(self) -> None:
        """Whoever starts the process may say what a human would over the API: identity's own grants may be the loss."""
        if self.app.settings.accept_restore and self.app.history is not None and self.app.history.held is not None:
            epoch, _, reason = self.app.settings.accept_restore.partition(":")
            params = {"epoch": int(epoch), "reason": reason}
            call = Call(name="accept_restore", actor="system:settings", correlation_id=new_message_id(), params=params)
            answer = await self._accept_restore(self.app.history, call)
            log.warning("restore_accepted_as_set", status=answer.status, answer=answer.body)

    async def run_query(self, call: Call) -> Answer:
        """A read of the gateway."""
        if call.name == "projections":
            async with self.app.read() as conn:
                return await projection_calls.listed(conn, self.app.service.name)
        if self.app.replays is not None and call.name == "replays":
            return await replay_calls.listed(self.app.replays)
        if self.app.replays is not None and call.name == "replay":
            return await replay_calls.shown(self.app.replays, call)
        if call.name == "rebuild_progress":
            return await projection_calls.rebuild_progress(self.app.rebuilds, call)
        if call.name == "restore" and self.app.history is not None:
            return await self.app.history.show(call)
        handler = self.all_queries().get(call.name)
        if handler is None:
            return failed_answer(LookupError(call.name))
        async with self.app.read() as conn:
            return await handler(conn, call)

    def all_queries(self) -> QueryHandlers:
        common: dict[str, QueryHandler] = dict(dead_letter_queries(self.app.service.name))
        if self.app.engine is not None:
            common |= operation_queries(self.app.engine)
        return {**common, **self.app.service.queries}

    def all_calls(self) -> CallHandlers:
        common: dict[str, CallHandler] = dict(dead_letter_calls(self.app.service.name))
        if self.app.engine is not None:
            common |= operation_calls(self.app.engine)
        return {**common, **self.app.service.calls}
