"""What people may ask audit to do: sign, set how long events are kept, hold, release, remove what is expired.

All of it is written down as an event of ours, with who and why.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.topology import EVENT_SERVICES
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.runtime.calls import CallHandler, CallHandlers, QueryHandlers
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import invalid, parse
from services.audit import checkpoints, errors, holds, retention
from services.audit.requests import NewHold, NewPolicy, Preview, Release, RetentionStep
from services.audit.signing import Signers

_holds = holds.selected()
HOLDS = Listing(
    table=_holds,
    key=_holds.c.id,
    filters={name: _holds.c[name] for name in ("kind", "value", "placed_by", "in_force")},
    sorts={"placed_at": _holds.c.placed_at},
    default_sort="-placed_at",
    row=lambda row: holds.facts_of(row).model_dump(mode="json"),
)


def _no_key() -> Answer:
    return problem(
        409,
        errors.NO_SIGNING_KEY,
        "Audit has no signing key; without one nothing is signed, and so nothing is removed.",
        "Make one (python -m services.audit.signing FILE), name it in SLIPWAY_AUDIT_SIGNING_KEY, start audit again.",
    )


# -- checkpoints ------------------------------------------------------------------------------------


def make_checkpoint(signers: Signers) -> CallHandler:
    async def handle(ctx: Context, call: Call) -> Answer:
        """POST /audit/checkpoints: sign every chain that has grown since it was signed last."""
        signer = signers()
        if signer is None:
            return _no_key()
        made = await checkpoints.make_checkpoints(ctx, signer, daily=False)
        return Answer(status=201, body={"items": [facts.model_dump(mode="json") for facts in made]})

    return handle


# -- retention --------------------------------------------------------------------------------------


async def set_retention(ctx: Context, call: Call) -> Answer:
    """PUT /audit/retention {keep_days, reason}; If-Match names the version that it follows."""
    wanted = parse(NewPolicy, call.params)
    if isinstance(wanted, Answer):
        return wanted
    all_set = await retention.policies(ctx.conn)
    latest = all_set[0].version if all_set else 0
    given = (call.if_match or "").removeprefix("W/").strip('"')
    if given not in ("", "*", str(latest)):
        return _changed()
    facts = await retention.set_policy(ctx, wanted.keep_days, wanted.reason, latest + 1)
    return _changed() if facts is None else Answer(body=facts.model_dump(mode="json"), etag=str(facts.version))


def _changed() -> Answer:
    return problem(
        412,
        errors.RETENTION_CHANGED,
        "The policy is not the one you have seen.",
        "Read it again: GET /audit/retention",
    )


async def get_retention(conn: AsyncConnection, call: Call) -> Answer:
    """The policy that counts now, the one that is going to, and all there ever were."""
    if call.tenants is not None:
        return not_found("retention", "audit")
    all_set, now = await retention.policies(conn), await retention.in_force(conn)
    latest = all_set[0] if all_set else None
    pending = latest if latest is not None and (now is None or latest.version != now.version) else None
    body = {
        "in_force": now.model_dump(mode="json") if now is not None else None,
        "pending": pending.model_dump(mode="json") if pending is not None else None,
        "history": [facts.model_dump(mode="json") for facts in all_set],
    }
    return Answer(body=body, etag=str(latest.version if latest is not None else 0))


async def preview_retention(conn: AsyncConnection, call: Call) -> Answer:
    """What would be removed now: by `keep_days`, else by the policy set last, whether it is in force yet or not."""
    wanted = parse(Preview, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if call.tenants is not None:
        return not_found("retention", "audit")
    all_set = await retention.policies(conn)
    keep_days = wanted.keep_days or (all_set[0].keep_days if all_set else None)
    items = await retention.preview(conn, keep_days) if keep_days is not None else []
    return Answer(
        body={
            "keep_days": keep_days,
            "items": items,
            "removed": sum(item["removed"] for item in items),
            "held": sum(item["held"] for item in items),
        }
    )


def run_retention(signers: Signers) -> CallHandler:
    async def handle(ctx: Context, call: Call) -> Answer:
        """POST /audit/retention/run: one bounded step of a round; `next_cursor` goes on, null: the round is over."""
        wanted = parse(RetentionStep, call.params)
        if isinstance(wanted, Answer):
            return wanted
        signer = signers()
        if signer is None:
            return _no_key()
        service, _, after = (wanted.cursor or f"{EVENT_SERVICES[0]}:0").partition(":")
        if service not in EVENT_SERVICES:
            return invalid([{"field": "cursor", "message": "this is no cursor of ours; start again without one"}])
        step = retention.Round(service, int(after))
        more = await retention.remove_some(ctx, signer, step)
        cursor = f"{step.service}:{step.after}" if more else None
        return Answer(body={"removed": step.events, "held": step.held, "next_cursor": cursor})

    return handle


# -- legal holds ------------------------------------------------------------------------------------


async def list_holds(conn: AsyncConnection, call: Call) -> Answer:
    return not_found("hold", "audit") if call.tenants is not None else await list_page(conn, HOLDS, call)


async def place_hold(ctx: Context, call: Call) -> Answer:
    """POST /audit/holds {entity_id | tenant | correlation_id, reason}."""
    wanted = parse(NewHold, call.params)
    if isinstance(wanted, Answer):
        return wanted
    kind, value = wanted.held()
    facts = await holds.place(ctx, kind, value, wanted.reason)
    # A hold on something that does not exist yet is right; a misspelt one should be noticed.
    matches = await holds.matches(ctx.conn, kind, value)
    return Answer(status=201, body={**facts.model_dump(mode="json"), "matches_now": matches})


async def release_hold(ctx: Context, call: Call) -> Answer:
    """POST /audit/holds/{id}/release {reason}."""
    wanted = parse(Release, call.params)
    if isinstance(wanted, Answer):
        return wanted
    hold = await holds.get(ctx.conn, wanted.id)
    if hold is None:
        return not_found("hold", wanted.id)
    facts = await holds.release(ctx, hold, wanted.reason) if hold.released_at is None else None
    if facts is None:
        return problem(
            409,
            errors.HOLD_RELEASED,
            f"The hold {wanted.id} was released already.",
            "Nothing needs to be done; GET /audit/holds shows by whom and why.",
        )
    return Answer(body=facts.model_dump(mode="json"))


def calls(signers: Signers) -> CallHandlers:
    return {
        "make_checkpoint": make_checkpoint(signers),
        "set_retention": set_retention,
        "run_retention": run_retention(signers),
        "place_hold": place_hold,
        "release_hold": release_hold,
    }


QUERIES: QueryHandlers = {
    "get_retention": get_retention,
    "preview_retention": preview_retention,
    "list_holds": list_holds,
}
