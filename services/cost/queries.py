"""Answers about usage, costs and prices. Amounts are exact decimals as text; every figure can be recomputed.

Costs are rolled up when they are asked for, from usage lines and the price book: there is no second set of sums
that could disagree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, problem
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.cost import errors, store
from services.cost.metering import whole
from services.cost.pricing import By, Row, RowKey, Total, Window, exact_text, roll_up, totals
from services.cost.requests import CostRequest, Range

MAX_HOURLY_RANGE = timedelta(days=31)
MAX_ROWS = 2000  # An answer stays well below the broker's largest message.


def _usage_body(row: Mapping[Any, Any]) -> dict[str, Any]:
    line = store.line_of(row)
    booked = line.booked_at.isoformat() if line.booked_at else None
    return {**store.usage_facts(line).model_dump(mode="json"), "booked_at": booked}


def _price_body(row: Mapping[Any, Any]) -> dict[str, Any]:
    return store.price_facts(row).model_dump(mode="json")


def _anomaly_body(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("event_id", "cluster_id", "machine_id", "message")} | {
        "learnt_at": row["learnt_at"].isoformat()
    }


PRICES = Listing(
    table=store.price,
    filters={"profile": store.price.c.profile, "currency": store.price.c.currency},
    sorts={"valid_from": store.price.c.valid_from, "profile": store.price.c.profile},
    default_sort="profile",
    key=sa.func.concat(store.price.c.profile, "/", store.price.c.version),
    row=_price_body,
)
ANOMALIES = Listing(
    table=store.anomaly,
    filters={"cluster_id": store.anomaly.c.cluster_id, "machine_id": store.anomaly.c.machine_id},
    sorts={"learnt_at": store.anomaly.c.learnt_at},
    default_sort="-learnt_at",
    key=store.anomaly.c.event_id,
    row=_anomaly_body,
)


def _usage_listing(start: datetime | None, stop: datetime | None) -> Listing:
    usage = store.usage
    statement = sa.select(usage)
    if start is not None:
        statement = statement.where(sa.or_(usage.c.stopped_at.is_(None), usage.c.stopped_at > start))
    if stop is not None:
        statement = statement.where(usage.c.started_at < stop)
    lines = statement.subquery()
    return Listing(
        table=lines,
        filters={name: lines.c[name] for name in ("cluster_id", "tenant", "machine_id", "profile", "correction_of")},
        sorts={"started_at": lines.c.started_at},
        default_sort="started_at",
        key=lines.c.id,
        tenant=lines.c.tenant,
        row=_usage_body,
    )


async def list_usage(conn: AsyncConnection, call: Call) -> Answer:
    """Usage lines that overlap [from, to); running ones have no stop and no seconds."""
    wanted = parse(Range, call.params)
    if isinstance(wanted, Answer):
        return wanted
    return await list_page(conn, _usage_listing(wanted.start, wanted.stop), call, as_of=(await _now(conn)).isoformat())


async def list_prices(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, PRICES, call)


async def list_anomalies(conn: AsyncConnection, call: Call) -> Answer:
    """Node events that made no sense; they billed nothing by themselves."""
    if call.tenants is not None:
        return Answer(body={"items": [], "next_cursor": None, "as_of": None})
    return await list_page(conn, ANOMALIES, call)


async def get_costs(conn: AsyncConnection, call: Call) -> Answer:
    """{by, items, totals, as_of}. Running machines count until `as_of`, which the answer carries."""
    wanted = parse(CostRequest, call.params)
    if isinstance(wanted, Answer):
        return wanted
    now = await _now(conn)
    if wanted.by is By.HOUR and _range(wanted, now) > MAX_HOURLY_RANGE:
        return problem(
            422,
            errors.RANGE_TOO_LONG,
            "Costs by hour are given for at most 31 days.",
            "Give `from` and `to` at most 31 days apart, or ask by=day.",
            errors=[{"field": "from", "message": "is missing or more than 31 days before `to`"}],
        )
    window = Window(wanted.start, wanted.stop, now)
    lines = await store.lines_in(conn, window, tenants=_tenants(call, wanted), clusters=wanted.cluster_id)
    rows = roll_up(lines, await store.price_book(conn), window, by=wanted.by, basis=wanted.basis)
    if len(rows) > MAX_ROWS:
        return problem(
            422,
            errors.TOO_MANY_ROWS,
            f"The answer would have {len(rows)} rows; at most {MAX_ROWS} are given.",
            "Ask for a shorter range, one tenant or some clusters.",
        )
    ordered = sorted(rows.items(), key=lambda entry: _order(entry[0]))
    return Answer(
        body={
            "by": wanted.by,
            "basis": wanted.basis,
            "from": wanted.start.isoformat() if wanted.start else None,
            "to": wanted.stop.isoformat() if wanted.stop else None,
            "items": [_row_body(key, row, wanted.by) for key, row in ordered],
            "totals": [_total_body(total) for total in totals(rows)],
            "next_cursor": None,
            "as_of": now.isoformat(),
        }
    )


def _range(wanted: CostRequest, now: datetime) -> timedelta:
    return (wanted.stop or now) - wanted.start if wanted.start else timedelta.max


def _tenants(call: Call, wanted: CostRequest) -> tuple[str, ...] | None:
    """Those asked for that the caller may see; None: all of them."""
    if not wanted.tenant:
        return call.tenants
    return tuple(tenant for tenant in wanted.tenant if call.may_see(tenant))


def _order(key: RowKey) -> tuple[Any, ...]:
    moment = key.starts_at.timestamp() if key.starts_at else 0.0
    return (moment, key.tenant, key.cluster_id, key.currency, key.correction)


def _row_body(key: RowKey, row: Row, by: By) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if by is By.CLUSTER:
        about = {"cluster_id": key.cluster_id, "tenant": key.tenant}
    elif by is By.TENANT:
        about = {"tenant": key.tenant}
    elif key.starts_at is not None:
        about = {"starts_at": key.starts_at.isoformat()}
    return {
        **about,
        "kind": "correction" if key.correction else "usage",
        "seconds": row.seconds,
        "unpriced_seconds": row.unpriced_seconds,
        "currency": key.currency or None,
        "amount": _money(row.amount, key.currency),
        "price_seconds": exact_text(row.price_seconds),
        "open": row.open,
    }


def _total_body(total: Total) -> dict[str, Any]:
    return {
        "currency": total.currency or None,
        "seconds": total.seconds,
        "unpriced_seconds": total.unpriced_seconds,
        "amount": _money(total.amount, total.currency),
        "rounding_difference": _money(total.rounding_difference, total.currency),
        "price_seconds": exact_text(total.price_seconds),
    }


def _money(amount: Decimal, currency: str) -> str | None:
    """Text; None where nobody set a price, which is not 0."""
    return format(amount, "f") if currency else None


async def _now(conn: AsyncConnection) -> datetime:
    """The database's clock, by whole seconds."""
    now: datetime = (await conn.execute(sa.select(sa.func.now()))).scalar_one()
    return whole(now.astimezone(UTC))


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_usage": list_usage,
    "list_prices": list_prices,
    "list_anomalies": list_anomalies,
    "get_costs": get_costs,
}
