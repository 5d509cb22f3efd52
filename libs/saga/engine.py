"""Keeps sagas in PostgreSQL: loads a row, lets the pure core decide, writes state, commands and timers together.

A reply finds its saga by the timer of the command it answers (the timer's token is the command's id), so a
reply that is late, repeated or foreign finds nothing and does nothing. Any replica can work any saga.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from prometheus_client import Counter, Gauge
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.errors import UnknownMessage
from libs.bus.inbox import Received
from libs.contracts.envelope import Envelope
from libs.contracts.ids import new_operation_id
from libs.contracts.message import Message
from libs.contracts.replies import Reply
from libs.runtime.database import Database
from libs.saga.core import Answer, Effect, Run, Send, Timer, new_state
from libs.saga.dsl import Saga
from libs.saga.state import SagaState

TIMER_BATCH = 100
_PUT_OFF = "UPDATE {schema}.saga_timer SET due_at = clock_timestamp() + interval '5 seconds'"
# JSON comes as text: the state's own parser reads it, once. Locked in the order of their ids, so that no two of us
# dead-lock.
_OPEN = """SELECT id, kind, phase, state::text, version, target_kind, target_id, tenant, correlation_id, actor,
answers::text FROM {s}.saga WHERE phase <> 'finished' AND {which} ORDER BY id FOR UPDATE"""
_AWAITING = "id IN (SELECT saga_id FROM {s}.saga_timer WHERE token = ANY($1::text[]))"
# A saga and its timers are written in one round trip.
_START = """WITH made AS (
    INSERT INTO {s}.saga (id, kind, phase, status, state, version, target_kind, target_id, tenant, correlation_id,
        actor, answers, created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $13)
    ON CONFLICT DO NOTHING RETURNING id),
timers AS (
    INSERT INTO {s}.saga_timer (saga_id, token, due_at)
    SELECT made.id, t.token, t.due_at FROM made, unnest($14::text[], $15::timestamptz[]) AS t (token, due_at))
SELECT id FROM made"""
_SAVE = """WITH saved AS (
    UPDATE {s}.saga s SET phase = n.phase, status = n.status, state = n.state::jsonb, version = n.version,
        updated_at = n.updated_at
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::timestamptz[])
        AS n (id, phase, status, state, version, updated_at) WHERE s.id = n.id),
gone AS (
    DELETE FROM {s}.saga_timer t USING unnest($7::text[], $8::text[]) AS g (saga_id, token)
    WHERE t.saga_id = g.saga_id AND t.token = g.token)
INSERT INTO {s}.saga_timer (saga_id, token, due_at)
SELECT * FROM unnest($9::text[], $10::text[], $11::timestamptz[])"""

log = structlog.get_logger("saga")
FINISHED = Counter("slipway_sagas_finished_total", "Sagas by how they ended", ["service", "kind", "status"])
OPEN = Gauge("slipway_sagas_open", "Sagas that have not ended", ["service", "kind", "phase"])

OperationEvents = tuple[type[Message], type[Message], type[Message]]
MakeContext = Callable[[AsyncConnection, Envelope | None], Context]


@dataclass(frozen=True)
class _Decided:
    """One decision on one saga: the row before it, the state after it, what it sends, and the timers that went."""

    before: Mapping[str, Any]
    state: SagaState
    version: int
    now: datetime
    effects: tuple[Effect, ...]
    gone: tuple[str, ...]

    @property
    def timers(self) -> list[Timer]:
        return [effect for effect in self.effects if isinstance(effect, Timer)]

    @property
    def changed(self) -> tuple[str, str, str, str, int, datetime]:
        """id, phase, status, state as JSON, version, updated_at."""
        state = self.state
        return (state.id, state.phase, state.status.value, state.model_dump_json(), self.version, self.now)


class SagaEngine:
    """The engine of one service. `operation_events` are its (started, progressed, finished) event types."""

    def __init__(self, service: str, sagas: Iterable[Saga], operation_events: OperationEvents) -> None:
        self.service = service
        self.sagas: Mapping[str, Saga] = {saga.kind: saga for saga in sagas}
        self.events = operation_events
        self._by_id = _OPEN.format(s=service, which="id = ANY($1::text[])")
        self._awaiting = _OPEN.format(s=service, which=_AWAITING.format(s=service))
        self._start, self._save_rows = _START.format(s=service), _SAVE.format(s=service)

    # -- inputs ---------------------------------------------------------------------------------

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
    ) -> str:
        """Create the saga's row and send its first commands, in the caller's transaction."""
        saga = self.sagas[kind]
        saga_id = operation_id or new_operation_id(self.service)
        base = {"actor": ctx.actor, "tenant": tenant, "site": site, "correlation_id": ctx.correlation_id}
        state = new_state(saga, saga_id, {**data, **base}, ctx.now)
        row = {
            "version": 0,
            "target_kind": target_kind,
            "target_id": target_id,
            "tenant": tenant,
            "correlation_id": ctx.correlation_id,
            "actor": ctx.actor,
            "answers": answers.model_dump_json(exclude_none=True) if answers else None,
        }
        run = Run(saga, state, ctx.now)
        run.start()
        decided = self._decided(row, run)
        _, phase, status, as_json, version, now = decided.changed
        rest = ("target_kind", "target_id", "tenant", "correlation_id", "actor", "answers")
        timers = _transposed([(timer.token, timer.due_at) for timer in decided.timers], 2)
        values = (saga_id, kind, phase, status, as_json, version, *(row[name] for name in rest), now, *timers)
        if (await ctx.conn.exec_driver_sql(self._start, values)).first() is None:
            return saga_id
        self._speak(ctx, decided, first=True)
        return saga_id

    async def cancel(self, ctx: Context, operation_id: str, reason: str) -> bool:
        return await self.decide(ctx, operation_id, lambda run: run.cancel(reason))

    async def resume(self, ctx: Context, operation_id: str) -> bool:
        return await self.decide(ctx, operation_id, lambda run: run.resume())

    async def replies(self, conn: AsyncConnection, make: MakeContext, received: Sequence[Received]) -> None:
        """Apply a batch of replies: one load and one save for all their sagas. The caller flushes what they send."""
        by_command = {message.envelope.causationid or "": message.envelope for message in received}
        decisions = []
        for row, state in await self._lock(conn, self._awaiting, list(by_command)):
            envelopes = [envelope for command, envelope in by_command.items() if command in state.pending]
            if not envelopes:
                continue
            decided = self._decide(make(conn, envelopes[0]), row, state, partial(_apply_replies, envelopes))
            decisions += [decided] if decided else []
            await asyncio.sleep(0)  # Deciding is computing: others, the API's calls among them, get their turn between.
        await self._save(conn, decisions)

    async def timers_due(self, database: Database) -> bool:
        """Whether there is a timer to fire."""
        return await database.any(f"SELECT 1 FROM {self.service}.saga_timer WHERE due_at <= clock_timestamp()")

    async def fire_due_timers(self, conn: AsyncConnection, make: MakeContext) -> int:
        """Fire timers that are due by the database's clock. Returns how many were claimed."""
        rows = (
            await conn.execute(
                text(
                    f"""SELECT saga_id, token FROM {self.service}.saga_timer WHERE due_at <= clock_timestamp()
                    ORDER BY due_at LIMIT :batch"""
                ),
                {"batch": TIMER_BATCH},
            )
        ).all()
        # The saga's row is always locked before its timers, here as when a reply comes; the other way round the
        # two would dead-lock. A second replica that fires the same timer finds that the saga has moved on.
        for saga_id, token in sorted((row[0], row[1]) for row in rows):
            try:
                async with conn.begin_nested():
                    await self._fire_timer(make(conn, None), saga_id, token)
            except Exception as error:
                # One saga that can't go on here must not hold up all others; a newer replica may know how.
                log.warning("timer_put_off", saga=saga_id, token=token, error=repr(error))
                await self._for_timer(conn, saga_id, token, _PUT_OFF)
        return len(rows)

    async def _fire_timer(self, ctx: Context, saga_id: str, token: str) -> None:
        if not await self.decide(ctx, saga_id, partial(_fire, token)):
            await self._for_timer(ctx.conn, saga_id, token, "DELETE FROM {schema}.saga_timer")
        await ctx.flush()

    async def _for_timer(self, conn: AsyncConnection, saga_id: str, token: str, statement: str) -> None:
        where = "WHERE saga_id = :id AND token = :token"
        await conn.execute(text(f"{statement.format(schema=self.service)} {where}"), {"id": saga_id, "token": token})

    # -- one decision ---------------------------------------------------------------------------

    async def _lock(
        self, conn: AsyncConnection, query: str, argument: list[str]
    ) -> list[tuple[Mapping[str, Any], SagaState]]:
        """The sagas that a query for open ones finds, locked."""
        rows = map(dict, (await conn.exec_driver_sql(query, (argument,))).mappings())
        return [(row, SagaState.model_validate_json(row["state"])) for row in rows]

    async def decide(self, ctx: Context, saga_id: str, what: Callable[[Run], bool]) -> bool:
        """Let the core decide on one saga. Returns False when there is none that runs, or nothing to decide."""
        for row, state in await self._lock(ctx.conn, self._by_id, [saga_id]):
            decided = self._decide(ctx, row, state, what)
            if decided is not None:
                await self._save(ctx.conn, [decided])
                return True
        return False

    def _decide(
        self, ctx: Context, row: Mapping[str, Any], state: SagaState, what: Callable[[Run], bool]
    ) -> _Decided | None:
        """Let the core decide on a locked row and say what follows; None when it had nothing to decide."""
        saga = self.sagas.get(row["kind"])
        if saga is None:
            raise UnknownMessage(f"{row['id']} is of the unknown kind {row['kind']}; is an older version running?")
        ctx.actor, ctx.correlation_id = row["actor"], row["correlation_id"]
        run = Run(saga, state, ctx.now)
        before = set(run.state.pending)
        if not what(run):
            return None
        decided = self._decided(row, run, gone=before - set(run.state.pending))
        self._speak(ctx, decided)
        return decided

    def _decided(self, row: Mapping[str, Any], run: Run, *, gone: Iterable[str] = ()) -> _Decided:
        return _Decided(row, run.state, int(row["version"]) + 1, run.now, tuple(run.effects), tuple(gone))

    def _speak(self, ctx: Context, decided: _Decided, *, first: bool = False) -> None:
        for effect in decided.effects:
            self._carry_out(ctx, decided.before, effect)
        self._emit(ctx, decided.before, decided.state, decided.version, first)

    async def _save(self, conn: AsyncConnection, decisions: Sequence[_Decided]) -> None:
        if not decisions:
            return
        rows = [decided.changed for decided in decisions]
        gone = [(decided.state.id, token) for decided in decisions for token in decided.gone]
        timers = [(decided.state.id, timer.token, timer.due_at) for decided in decisions for timer in decided.timers]
        values = (*_transposed(rows, 6), *_transposed(gone, 2), *_transposed(timers, 3))
        await conn.exec_driver_sql(self._save_rows, values)

    def _carry_out(self, ctx: Context, row: Mapping[str, Any], effect: Effect) -> None:
        match effect:
            case Send():
                ctx.send(
                    effect.message,
                    site=effect.site,
                    tenant=str(row["tenant"]),
                    deadline=effect.deadline,
                    command_id=effect.id,
                    reply_to=self.service if effect.awaited else None,
                )
            case Answer() if row["answers"]:
                ctx.answer(Envelope.model_validate_json(row["answers"]), effect.reply)
            case _:
                pass

    def _emit(self, ctx: Context, row: Mapping[str, Any], state: SagaState, version: int, first: bool) -> None:
        started, progressed, finished = self.events
        kind = finished if state.phase == "finished" else started if first else progressed
        facts = state.facts(
            service=self.service,
            target_kind=row["target_kind"],
            target_id=row["target_id"],
            correlation_id=row["correlation_id"],
            now=ctx.now,
        )
        site, tenant = facts.site, facts.tenant
        ctx.emit(kind(operation=facts), entity_id=state.id, entity_version=version, site=site, tenant=tenant)
        if state.phase == "finished":
            FINISHED.labels(self.service, state.kind, state.status.value).inc()

    async def facts(self, conn: AsyncConnection, operation_id: str) -> tuple[Mapping[str, Any], SagaState] | None:
        """The row and state of one saga, for the API."""
        row = (
            (await conn.execute(text(f"SELECT * FROM {self.service}.saga WHERE id = :id"), {"id": operation_id}))
            .mappings()
            .first()
        )
        return (dict(row), SagaState.model_validate(row["state"])) if row is not None else None

    async def measure_forever(self, database: Any) -> None:
        """Keep the gauge of open sagas true."""
        seen: set[tuple[str, str]] = set()
        while True:
            with contextlib.suppress(Exception):
                async with database.transaction() as conn:
                    rows = await conn.execute(
                        text(
                            f"SELECT kind, phase, count(*) FROM {self.service}.saga "
                            "WHERE phase <> 'finished' GROUP BY kind, phase"
                        )
                    )
                    now = {(row[0], row[1]): row[2] for row in rows}
                for labels in seen | set(now):
                    OPEN.labels(self.service, *labels).set(now.get(labels, 0))
                seen |= set(now)
            await asyncio.sleep(5)


def _transposed(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """One array a column, for a statement that unnests them; as many empty ones when there is no row."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _fire(token: str, run: Run) -> bool:
    return run.timer(token)


def _apply_replies(envelopes: Sequence[Envelope], run: Run) -> bool:
    changed = False
    for envelope in envelopes:
        if run.reply(envelope.causationid or "", Reply.model_validate(envelope.data)):
            changed = True
    return changed
