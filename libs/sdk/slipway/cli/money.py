"""`slipway usage | costs | prices`: what was used, and what it costs. Amounts are exact decimals."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from slipway.cli.output import Column, console, exact, print_json, print_table, span
from slipway.cli.session import DEFAULT_LIMIT, AskedDoor, Json, Limit, group, run, show_document, show_list
from slipway.models import Price, Usage

usage = group("usage", "Metered intervals: which machine, for whom, how long.")
costs = group("costs", "What usage costs, summed up.")
prices = group("prices", "Prices of machine-hours.")
GROUPS = (usage, costs, prices)

Since = Annotated[datetime | None, typer.Option("--from", help="From this instant on (UTC when no offset is given).")]
Until = Annotated[datetime | None, typer.Option("--to", help="Before this instant.")]
ClusterId = Annotated[list[str] | None, typer.Option("--cluster", help="Of this cluster (id); may be repeated.")]
TenantId = Annotated[list[str] | None, typer.Option("--tenant", help="Of this tenant; may be repeated.")]


class By(StrEnum):
    HOUR = "hour"
    DAY = "day"
    CLUSTER = "cluster"
    TENANT = "tenant"


USAGE_COLUMNS = (
    Column[Usage]("CLUSTER", lambda u: u.cluster_id, is_id=True),
    Column[Usage]("TENANT", lambda u: u.tenant, spare=True),
    Column[Usage]("MACHINE", lambda u: u.machine_id, is_id=True),
    Column[Usage]("PROFILE", lambda u: u.profile, spare=True),
    Column[Usage]("FROM", lambda u: exact(u.started_at)),
    Column[Usage]("TO", lambda u: exact(u.stopped_at) or "running"),
    Column[Usage]("SECONDS", lambda u: u.seconds, right=True),
)
PRICE_COLUMNS = (
    Column[Price]("PROFILE", lambda p: p.profile),
    Column[Price]("PER MACHINE-HOUR", lambda p: f"{p.price_per_machine_hour} {p.currency}", right=True),
    Column[Price]("VALID FROM", lambda p: exact(p.valid_from)),
)


def aware(when: datetime | None) -> datetime | None:
    """`when` in UTC when it has no offset."""
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


@usage.command("list")
def list_usage(
    cluster: ClusterId = None,
    tenant: TenantId = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = DEFAULT_LIMIT,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List metered intervals, [from, to) in whole seconds.

    \b
      slipway usage list --from 2026-01-01 --to 2026-02-01
    """
    show_list(
        lambda client: client.usage.pages(
            door=door, cluster_id=cluster, tenant=tenant, from_=aware(since), to=aware(until)
        ),
        USAGE_COLUMNS,
        as_json=as_json,
        limit=limit,
    )


@costs.command("show")
def show_costs(
    by: Annotated[By, typer.Option("--by", help="What one line sums up.")] = By.CLUSTER,
    cluster: ClusterId = None,
    tenant: TenantId = None,
    since: Since = None,
    until: Until = None,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """Sum up usage and cost. Time without a price is shown as such, never as 0.

    \b
      slipway costs show --by cluster
      slipway costs show --by day --from 2026-01-01 --to 2026-02-01
    """
    show_document(
        lambda client: client.costs(
            by.value, door=door, cluster_id=cluster, tenant=tenant, from_=aware(since), to=aware(until)
        ),
        _render,
        as_json=as_json,
    )


def _render(document: dict[str, Any]) -> None:
    columns = (
        Column[dict[str, Any]]("FROM", lambda row: str(row.get("starts_at") or "")),
        Column[dict[str, Any]]("CLUSTER", lambda row: str(row.get("cluster_id") or "")),
        Column[dict[str, Any]]("TENANT", lambda row: str(row.get("tenant") or "")),
        Column[dict[str, Any]]("KIND", lambda row: "correction" if row.get("kind") == "correction" else ""),
        Column[dict[str, Any]]("SECONDS", lambda row: str(row.get("seconds", "")), right=True),
        Column[dict[str, Any]]("AMOUNT", _amount, right=True),
        Column[dict[str, Any]]("", lambda row: "still running" if row.get("open") else ""),
    )
    print_table(columns, document.get("items") or (), "Nothing was used.")
    for total in document.get("totals") or ():
        console().print(f"Total: {_amount(total)} for {span(total.get('seconds') or 0)} of machines")


def _amount(row: dict[str, Any]) -> str:
    unpriced = row.get("unpriced_seconds") or 0
    if row.get("amount") is None:
        return f"no price for {unpriced} s"
    extra = f" (+ {unpriced} s without a price)" if unpriced else ""
    return f"{row['amount']} {row.get('currency')}{extra}"


@prices.command("list")
def list_prices(
    profile: Annotated[list[str] | None, typer.Option("--profile", help="Of this profile; may be repeated.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    door: AskedDoor = None,
    as_json: Json = False,
) -> None:
    """List prices, past and future ones too."""
    show_list(
        lambda client: client.prices.pages(door=door, profile=profile), PRICE_COLUMNS, as_json=as_json, limit=limit
    )


@prices.command("set")
def set_price(
    profile: Annotated[str, typer.Argument(help="Profile, see 'profiles list'.")],
    amount: Annotated[str, typer.Argument(help="Per machine-hour, an exact decimal such as 98.32.")],
    currency: Annotated[str, typer.Option("--currency", help="ISO 4217 code.")] = "EUR",
    valid_from: Annotated[
        datetime | None, typer.Option("--valid-from", help="From then on; now when left out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set the price of a profile's machine-hour. (operators)

    \b
      slipway prices set h100-sxm-8 98.32 --currency EUR --valid-from 2026-02-01
    """
    price = run(lambda client: client.prices.set(profile, amount, currency, aware(valid_from)))
    if as_json:
        print_json(price.raw)
    else:
        console().print(f"{profile}: {price.price_per_machine_hour} {price.currency} from {exact(price.valid_from)}")
