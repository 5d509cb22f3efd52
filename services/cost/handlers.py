"""Set prices; announce metered lines. Prices are only ever added, so nothing that was billed changes its price."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, problem
from libs.contracts.cost import PriceFacts, PriceSet, UsageMetered
from libs.runtime.params import parse
from services.cost import errors, store
from services.cost.metering import whole
from services.cost.requests import NewPrice

ANNOUNCE_AT_ONCE = 500


async def add_price(ctx: Context, wanted: NewPrice, latest: PriceFacts | None) -> PriceFacts | None:
    """Append a price after `latest` and say so; None when somebody was faster."""
    facts = PriceFacts(
        profile=wanted.profile,
        price_per_machine_hour=wanted.price_per_machine_hour,
        currency=wanted.currency,
        valid_from=whole((wanted.valid_from or ctx.now).astimezone(UTC)),
        version=latest.version + 1 if latest else 1,
    )
    if not await store.add_price(ctx.conn, facts, set_by=ctx.actor, now=ctx.now):
        return None
    ctx.emit(PriceSet(price=facts), entity_id=facts.profile, entity_version=facts.version)
    return facts


async def set_price(ctx: Context, call: Call) -> Answer:
    """PUT /prices/{profile} {price_per_machine_hour, currency, valid_from?}; If-Match names the version it follows."""
    wanted = parse(NewPrice, call.params)
    if isinstance(wanted, Answer):
        return wanted
    latest = await store.latest_price(ctx.conn, wanted.profile)
    refusal = _stale(call, latest) or _rewrites_the_past(ctx, wanted, latest)
    if refusal is not None:
        return refusal
    facts = await add_price(ctx, wanted, latest)
    if facts is None:
        return _changed(wanted.profile)
    return Answer(status=200 if latest else 201, body=facts.model_dump(mode="json"), etag=str(facts.version))


def _stale(call: Call, latest: PriceFacts | None) -> Answer | None:
    given = (call.if_match or "").removeprefix("W/").strip('"')
    if latest is None:
        return _changed(str(call.params["profile"])) if given not in ("", "*") else None
    if not given:
        return problem(
            428,
            errors.PRICE_VERSION_NEEDED,
            f"The profile {latest.profile!r} has a price already.",
            f'Send the version it follows: If-Match: "{latest.version}"',
        )
    return _changed(latest.profile) if given not in ("*", str(latest.version)) else None


def _changed(profile: str) -> Answer:
    return problem(
        412,
        errors.PRICE_CHANGED,
        f"The price of {profile!r} is not the one you have seen.",
        "Read it again: GET /prices?profile=…",
    )


def _rewrites_the_past(ctx: Context, wanted: NewPrice, latest: PriceFacts | None) -> Answer | None:
    """Only a profile that never had a price may get one for the past: nothing of it was billed."""
    if latest is None:
        return None
    valid_from = whole(wanted.valid_from or ctx.now)
    if valid_from >= whole(ctx.now) and valid_from > latest.valid_from:
        return None
    return problem(
        409,
        errors.PRICE_IN_THE_PAST,
        f"A price of {wanted.profile!r} from {valid_from.isoformat()} on would change what was billed already; "
        f"the last one is valid from {latest.valid_from.isoformat()}.",
        "Choose a later valid_from.",
        errors=[{"field": "valid_from", "message": "must be in the future and after the last price's"}],
    )


async def announce_usage(ctx: Context) -> int:
    """Emit usage.metered for closed lines, each once; answers how many."""
    lines = await store.lines_to_announce(ctx.conn, ANNOUNCE_AT_ONCE)
    mine = await store.claim_announcements(ctx.conn, [line.id for line in lines], now=ctx.now)
    for line in lines:
        if line.id in mine:
            ctx.emit(
                UsageMetered(usage=store.usage_facts(line)), entity_id=line.id, entity_version=1, tenant=line.tenant
            )
    return len(mine)


CALLS: dict[str, Callable[[Context, Call], Awaitable[Answer]]] = {"set_price": set_price}
