"""What every service answers about its dead letters: list, show, drive again (edited or not, one or many), drop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus import dead_letters
from libs.bus.context import Context
from libs.bus.dead_letters import CannotRedrive, Wanted
from libs.contracts.calls import Answer, Call, problem
from libs.contracts.causes import Cause
from libs.contracts.replies import failed
from libs.runtime.params import invalid, parse

MAX_PAGE = 200
MANY_AT_ONCE = 500  # Letters driven again in one transaction; a larger number is driven by asking again.
NO_REASON = "its cause was removed"
PAGE_BYTES = 600 * 1024  # NATS carries 1 MiB by default; the rest is for escaping and the envelope.


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Causes = Annotated[tuple[Cause, ...], BeforeValidator(_listed)]
Reason = Annotated[str, Field(min_length=1, max_length=500)]


class _Filter(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    cause: Causes = ()
    type: Several = ()
    key: Several = ()
    subject: str = ""
    error: str = ""
    since: AwareDatetime | None = None
    before: AwareDatetime | None = None

    def wanted(self) -> Wanted:
        causes = tuple(cause.value for cause in self.cause)
        return Wanted(causes, self.type, self.key, self.subject, self.error, self.before, self.since)


class _List(_Filter):
    cursor: Annotated[str, Field(pattern=r"^\d{1,18}$")] = "0"
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)


class _Redrive(BaseModel):
    reason: Reason = NO_REASON
    data: dict[str, Any] | None = None
    message: dict[str, Any] | None = None


class _Drop(BaseModel):
    reason: Reason


class _RedriveMany(_Filter):
    reason: Reason = NO_REASON
    all: bool = False
    dry_run: bool = False


def dead_letter_queries(service: str) -> dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]]:
    async def listed(conn: AsyncConnection, call: Call) -> Answer:
        asked = parse(_List, call.params)
        if isinstance(asked, Answer):
            return asked
        after = int(asked.cursor)
        rows = await dead_letters.find(conn, service, asked.wanted(), after=after, limit=asked.limit + 1)
        shown: list[Mapping[str, Any]] = []
        size = 0
        for row in rows[: asked.limit]:
            size += len(row["payload"])
            if shown and size > PAGE_BYTES:
                break
            shown.append(row)
        cursor = str(shown[-1]["id"]) if len(rows) > len(shown) else None
        return Answer(body={"items": [dead_letters.body(row) for row in shown], "next_cursor": cursor})

    async def shown(conn: AsyncConnection, call: Call) -> Answer:
        letter = str(call.params.get("id", ""))
        row = await dead_letters.get(conn, service, int(letter)) if _is_id(letter) else None
        if row is None:
            return _none(letter)
        history = await dead_letters.history(conn, service, row["id"])
        waiting = await dead_letters.waiting(conn, service, row)
        body = {
            **dead_letters.body(row),
            "as_it_is": _fault(row),
            "waiting": [{**item, "received_at": item["received_at"].isoformat()} for item in waiting],
            "history": [_action(item) for item in history],
        }
        return Answer(body=body)

    return {"dead_letters": listed, "dead_letter": shown}


def dead_letter_calls(service: str) -> dict[str, Callable[[Context, Call], Awaitable[Answer]]]:
    async def redrive(ctx: Context, call: Call) -> Answer:
        asked = parse(_Redrive, call.params)
        if isinstance(asked, Answer):
            return asked
        row = await _locked(ctx, service, call)
        if isinstance(row, Answer):
            return row
        edits = asked.data is not None or asked.message is not None
        try:
            replaced = dead_letters.edited(row, data=asked.data, message=asked.message) if edits else None
            await dead_letters.redrive(
                ctx.conn, service, row, actor=call.actor, reason=asked.reason, now=ctx.now, replaced=replaced
            )
        except CannotRedrive as error:
            return invalid([{"field": error.field, "message": str(error)}])
        return Answer(status=202, body={"id": str(row["id"]), "edited": edits, "released": row["waiting_behind"]})

    async def drop(ctx: Context, call: Call) -> Answer:
        asked = parse(_Drop, call.params)
        if isinstance(asked, Answer):
            return asked
        row = await _locked(ctx, service, call)
        if isinstance(row, Answer):
            return row
        await dead_letters.drop(ctx.conn, service, row, actor=call.actor, reason=asked.reason, now=ctx.now)
        message = dead_letters.original(row["payload"])
        if message is not None:
            # Whoever waits for an answer need not wait for its time limit: nothing was done and nothing will be.
            why = f"The message could not be handled and was given up by {call.actor}: {asked.reason}"
            ctx.answer(message, failed("message.dropped", why))
        return Answer(body={"id": str(row["id"]), "released": row["waiting_behind"]})

    async def redrive_many(ctx: Context, call: Call) -> Answer:
        asked = parse(_RedriveMany, call.params)
        if isinstance(asked, Answer):
            return asked
        wanted = asked.wanted()
        if not wanted.narrow and not asked.all:
            return invalid([{"field": "all", "message": "name a cause, type, key, subject, error or time, or set all"}])
        rows = await dead_letters.find(ctx.conn, service, wanted, limit=MANY_AT_ONCE + 1)
        driven, failures = [], []
        for found in rows[:MANY_AT_ONCE]:
            row = await dead_letters.get(ctx.conn, service, found["id"], lock=not asked.dry_run)
            if row is None:
                continue  # Somebody else dealt with it meanwhile.
            fault = _fault(row)
            if fault is not None:
                failures.append({"id": str(row["id"]), **fault})
                continue
            driven.append(row)
        if not asked.dry_run:
            for row in driven:
                await dead_letters.redrive(ctx.conn, service, row, actor=call.actor, reason=asked.reason, now=ctx.now)
        body = {
            "dry_run": asked.dry_run,
            "redriven": len(driven),
            "items": [dead_letters.summary(row) for row in driven[:MAX_PAGE]],
            "not_redriven": failures[:MAX_PAGE],
            "more": len(rows) > MANY_AT_ONCE,
        }
        return Answer(status=200 if asked.dry_run else 202, body=body)

    return {"redrive": redrive, "drop_dead_letter": drop, "redrive_many": redrive_many}


def _is_id(letter: str) -> bool:
    return letter.isascii() and letter.isdigit() and len(letter) <= 18


def _none(letter: str) -> Answer:
    return problem(
        404,
        "dead_letter.not_found",
        f"There is no dead letter {letter!r}; it may have been driven again or dropped.",
        "List them: GET /services/{service}/dead-letters",
    )


async def _locked(ctx: Context, service: str, call: Call) -> Mapping[str, Any] | Answer:
    letter = str(call.params.get("id", ""))
    row = await dead_letters.get(ctx.conn, service, int(letter), lock=True) if _is_id(letter) else None
    return row if row is not None else _none(letter)


def _fault(row: Mapping[str, Any]) -> dict[str, str] | None:
    """Why it can't be handled however often it is tried; None when nothing is known against it."""
    message = dead_letters.original(row["payload"])
    try:
        if message is None:
            raise CannotRedrive("message", "it can't be read; edit it or drop it")
        dead_letters.checked(message)
    except CannotRedrive as error:
        return {"field": error.field, "message": str(error)}
    return None


def _action(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("action", "reason", "actor", "cause_before", "error_before", "attempts_before")
    payload = row["payload_before"]
    before = {"original_before": dead_letters.json_original(payload)} if payload is not None else {}
    return {"at": row["at"].isoformat(), **{name: row[name] for name in names}, **before}
