"""Answers the gateway's requests: reads on a connection, writes in a transaction with the Idempotency-Key kept.

Every service also answers here for what it has in common: its operations and its projections
(dead letters: dead_letter_calls.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.tables import bus_tables
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.runtime.params import parse
from libs.saga.engine import SagaEngine

QueryHandler = Callable[[AsyncConnection, Call], Awaitable[Answer]]
CallHandler = Callable[[Context, Call], Awaitable[Answer]]
QueryHandlers = Mapping[str, QueryHandler]
CallHandlers = Mapping[str, CallHandler]


def request_digest(call: Call) -> str:
    """What makes two requests the same: name and parameters."""
    return hashlib.sha256(
        orjson.dumps([call.name, call.params, call.if_match], option=orjson.OPT_SORT_KEYS, default=str)
    ).hexdigest()


async def idempotent(ctx: Context, call: Call, handler: CallHandler) -> Answer:
    """Run a write once for its key: a repeat gets the first answer, other content under the same key 422.

    Answers with status ≥ 500 are not kept: nothing was done.
    """
    if call.idempotency_key is None:
        return await handler(ctx, call)
    table = bus_tables(ctx.service).idempotency
    await ctx.conn.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:k, 0))"), {"k": f"{call.actor}/{call.idempotency_key}"}
    )
    kept = (
        await ctx.conn.execute(
            select(table.c.request_digest, table.c.answer).where(
                table.c.key == call.idempotency_key, table.c.actor == call.actor
            )
        )
    ).first()
    digest = request_digest(call)
    if kept is not None:
        if kept.request_digest != digest:
            return problem(
                422,
                "request.idempotency_key_reused",
                f"The Idempotency-Key {call.idempotency_key!r} was used for another request.",
                "Use a new key for a new request.",
            )
        return Answer.model_validate(kept.answer)
    answer = await handler(ctx, call)
    if answer.status < 400:
        row = {
            "key": call.idempotency_key,
            "actor": call.actor,
            "request_digest": digest,
            "answer": _kept(answer),
            "created_at": ctx.now,
        }
        await ctx.conn.execute(insert(table), row)
    return answer


def _kept(answer: Answer) -> dict[str, Any]:
    """The answer as a repeat gets it: what is said once is not stored."""
    kept = answer.model_dump(mode="json")
    for name in answer.once:
        kept["body"][name] = None
    return kept


# -- what every service answers ------------------------------------------------------------------


def operation_queries(engine: SagaEngine) -> dict[str, QueryHandler]:
    async def get_operation(conn: AsyncConnection, call: Call) -> Answer:
        operation_id = str(call.params.get("operation_id", ""))
        found = await engine.facts(conn, operation_id)
        if found is None or not call.may_see(found[0]["tenant"]):
            return not_found("operation", operation_id)
        row, state = found
        facts = state.facts(
            service=engine.service,
            target_kind=row["target_kind"],
            target_id=row["target_id"],
            correlation_id=row["correlation_id"],
            now=row["updated_at"],
        )
        body = {**facts.model_dump(mode="json"), "progress": facts.progress}
        return Answer(body=body, etag=f'"{row["version"]}"')

    return {"get_operation": get_operation}


class _Cancel(BaseModel):
    operation_id: str
    reason: str = Field(default="cancelled by its requester", min_length=1, max_length=500)


def operation_calls(engine: SagaEngine) -> dict[str, CallHandler]:
    async def cancel_operation(ctx: Context, call: Call) -> Answer:
        wanted = parse(_Cancel, call.params)
        if isinstance(wanted, Answer):
            return wanted
        found = await engine.facts(ctx.conn, wanted.operation_id)
        if found is None or not call.may_see(found[0]["tenant"]):
            return not_found("operation", wanted.operation_id)
        if not await engine.cancel(ctx, wanted.operation_id, f"{wanted.reason} ({call.actor})"):
            return problem(
                409,
                "operation.too_late",
                f"The operation is {found[1].status} and past the point where it can be cancelled.",
                "Look at it; what it made can be deleted.",
            )
        return Answer(status=202, body={"operation_id": wanted.operation_id})

    async def resume_operation(ctx: Context, call: Call) -> Answer:
        operation_id = str(call.params.get("operation_id", ""))
        found = await engine.facts(ctx.conn, operation_id)
        if found is None or not call.may_see(found[0]["tenant"]):
            return not_found("operation", operation_id)
        if not await engine.resume(ctx, operation_id):
            return problem(
                409,
                "operation.not_waiting",
                f"The operation is {found[1].phase}; only one that waits for a human can be resumed.",
                "Nothing needs to be done.",
            )
        return Answer(status=202, body={"operation_id": operation_id})

    return {"cancel_operation": cancel_operation, "resume_operation": resume_operation}


def decode_call(payload: bytes) -> Call | Answer:
    """The request, or the refusal when it is none."""
    try:
        return Call.model_validate_json(payload)
    except ValidationError as error:
        return problem(400, "request.unreadable", f"This is no call: {error.errors()[0]['msg']}")


def failed_answer(error: Exception) -> Answer:
    """A fault of ours: says that nothing was done and that trying again is right."""
    return problem(
        503,
        "service.failed",
        f"The service could not answer ({type(error).__name__}); nothing was changed.",
        "Try again in a moment; when it goes on, look at the service's log with the correlation id.",
    )


def paused_answer(service: str, why: str) -> Answer:
    """No changes just now: the outbox is full, or the database was restored. Nothing was done."""
    return problem(
        503,
        "service.paused",
        f"{service} takes no changes just now: {why}.",
        "Send the same request with the same Idempotency-Key again later; nothing was changed.",
    )
