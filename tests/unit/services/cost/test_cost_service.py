"""Cost on a real database: events in, usage, prices and answers out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from node_events import started, stopped
from sqlalchemy import text

from libs.projection import digest
from libs.testing.kit import ServiceKit
from services.cost.app import announce, service
from services.cost.bootstrap import BootstrapError, apply_prices, read_prices
from services.cost.projections import METERING

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
PRICE = {"profile": "h100", "price_per_machine_hour": "31.20", "currency": "EUR", "valid_from": T0.isoformat()}
FOUR_HOURS = [
    started("c1", "m1", T0, sequence=1),
    started("c1", "m2", T0, sequence=2),
    stopped("c1", "m1", T0 + HOUR, sequence=3),
    stopped("c1", "m2", T0 + 3 * HOUR, sequence=4),
]


async def costs(kit: ServiceKit, params: dict[str, Any] | None = None, tenants: tuple[str, ...] | None = None) -> Any:
    answer = await kit.query("get_costs", params or {}, tenants=tenants)
    assert answer.status == 200, answer.body
    return answer.body


async def test_what_was_used_costs_seconds_times_price(service_kit: Any) -> None:
    kit = await service_kit(service)
    assert (await kit.call("set_price", PRICE)).status == 201
    await kit.project("metering", FOUR_HOURS)
    body = await costs(kit)
    assert body["items"] == [
        {
            "cluster_id": "c1",
            "tenant": "acme",
            "kind": "usage",
            "seconds": 14400,
            "unpriced_seconds": 0,
            "currency": "EUR",
            "amount": "124.800000",
            "price_seconds": "449280",
            "open": False,
        }
    ]
    assert body["totals"][0]["amount"] == "124.80"


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_the_size_of_the_batches_changes_nothing(service_kit: Any, size: int) -> None:
    log = [
        *FOUR_HOURS,
        stopped("c1", "m2", T0 + 2 * HOUR, sequence=5, time=T0 + 4 * HOUR),
        stopped("c9", "m9", T0, sequence=6),
        started("c1", "m1", T0 + 5 * HOUR, sequence=7),
    ]
    found = []
    for step in (len(log), size):
        kit = await service_kit(service)
        for first in range(0, len(log), step):
            await kit.project("metering", log[first : first + step])
        async with kit.app.read() as conn:
            found.append(await digest(conn, METERING.tables))
    assert found[0] == found[1]


async def test_a_stop_without_a_start_is_an_anomaly_and_bills_nothing(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("metering", [stopped("c1", "m1", T0)])
    assert (await kit.query("list_usage")).body["items"] == []
    assert [item["machine_id"] for item in (await kit.query("list_anomalies")).body["items"]] == ["m1"]


async def test_an_unreadable_event_is_an_anomaly_and_metering_goes_on(service_kit: Any) -> None:
    kit = await service_kit(service)
    bad = started("c1", "m1", T0)
    for broken in ({"at": None}, {"at": "2026-03-01T12:00:00"}, {"cluster": {}}, {"machine_id": None}):
        event = bad.model_copy(update={"id": str(broken), "data": {**bad.data, **broken}})
        await kit.project("metering", [event])
    await kit.project("metering", FOUR_HOURS)
    assert len((await kit.query("list_anomalies")).body["items"]) == 4
    assert len((await kit.query("list_usage")).body["items"]) == 2


async def test_each_closed_line_is_announced_once_even_after_a_rebuild(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("metering", FOUR_HOURS[:3])
    await announce(kit.app)
    await announce(kit.app)
    metered = [event for event in await kit.events() if event.type == "slipway.cost.usage.metered"]
    assert [(e.data["usage"]["seconds"], e.tenant, e.entityversion) for e in metered] == [(3600, "acme", 1)]
    async with kit.database.transaction() as conn:
        for table in ("usage", "meter", "anomaly"):
            await conn.execute(text(f"DELETE FROM cost.{table}"))
    await kit.project("metering", FOUR_HOURS)
    await announce(kit.app)
    metered = [event for event in await kit.events() if event.type == "slipway.cost.usage.metered"]
    assert [e.data["usage"]["seconds"] for e in metered] == [3600, 3 * 3600]


async def test_a_late_stop_is_a_correction_of_its_own(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.call("set_price", PRICE)
    await kit.project("metering", FOUR_HOURS)
    await kit.project("metering", [stopped("c1", "m2", T0 + 2 * HOUR, sequence=5, time=T0 + 4 * HOUR)])
    body = await costs(kit)
    assert {item["kind"]: item["amount"] for item in body["items"]} == {
        "usage": "124.800000",
        "correction": "-31.200000",
    }
    assert body["totals"][0]["amount"] == "93.60"


async def test_days_and_hours_add_up_to_the_clusters(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.call("set_price", PRICE)
    await kit.project("metering", FOUR_HOURS)
    span = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z"}
    hours = await costs(kit, {"by": "hour", **span})
    assert [item["seconds"] for item in hours["items"]] == [7200, 3600, 3600]
    assert hours["totals"] == (await costs(kit, {"by": "day", **span}))["totals"] == (await costs(kit))["totals"]


async def test_a_tenant_sees_its_own_costs_only(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.call("set_price", PRICE)
    other = [started("c2", "m5", T0, tenant="globex"), stopped("c2", "m5", T0 + HOUR, tenant="globex")]
    await kit.project("metering", [*FOUR_HOURS, *other])
    mine = ("globex",)
    assert [item["cluster_id"] for item in (await costs(kit, tenants=mine))["items"]] == ["c2"]
    assert (await costs(kit, {"tenant": "acme"}, tenants=mine))["items"] == []
    assert (await costs(kit, {"cluster_id": "c1"}, tenants=mine))["items"] == []
    assert {i["tenant"] for i in (await kit.query("list_usage", tenants=mine)).body["items"]} == {"globex"}
    assert len((await costs(kit, {"by": "tenant"}))["items"]) == 2


async def test_usage_without_a_price_has_no_amount(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("metering", FOUR_HOURS)
    row = (await costs(kit))["items"][0]
    assert (row["amount"], row["unpriced_seconds"]) == (None, 14400)


NONSENSE_QUESTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"by": "moon"}, "by"),
    ({"from": "yesterday"}, "from"),
    ({"from": "2026-03-01T00:00:00"}, "from"),
    ({"from": "2026-03-02T00:00:00Z", "to": "2026-03-01T00:00:00Z"}, "(body)"),
    ({"by": "hour"}, "from"),
    ({"by": "hour", "from": "2026-01-01T00:00:00Z", "to": "2026-03-01T00:00:00Z"}, "from"),
)


async def test_a_question_that_makes_no_sense_is_refused_by_field(service_kit: Any) -> None:
    kit = await service_kit(service)
    for params, field in NONSENSE_QUESTIONS:
        answer = await kit.query("get_costs", params)
        assert (answer.status, answer.body["errors"][0]["field"]) == (422, field), params


NONSENSE_PRICES: tuple[tuple[str, Any], ...] = (
    *(
        ("price_per_machine_hour", value)
        for value in (None, "", "-1", "NaN", "Infinity", "1.1234567", True, [], "1000001")
    ),
    ("currency", "euro"),
    ("currency", "eur"),
    ("valid_from", "soon"),
    ("valid_from", "2026-03-01T00:00:00"),
    ("profile", "no/slash"),
    ("colour", "red"),
)


async def test_a_price_that_makes_no_sense_is_refused_by_field(service_kit: Any) -> None:
    kit = await service_kit(service)
    for field, value in NONSENSE_PRICES:
        answer = await kit.call("set_price", {**PRICE, field: value})
        assert (answer.status, answer.body["errors"][0]["field"]) == (422, field), value
    assert await kit.events() == []


async def test_a_new_price_follows_the_one_that_was_seen_and_never_the_past(service_kit: Any) -> None:
    kit = await service_kit(service)
    first = await kit.call("set_price", PRICE)
    assert first.etag == "1"
    now = {key: value for key, value in PRICE.items() if key != "valid_from"}
    assert (await kit.call("set_price", now)).status == 428
    assert (await kit.call("set_price", now, if_match='"7"')).status == 412
    past = await kit.call("set_price", {**PRICE, "valid_from": (T0 + HOUR).isoformat()}, if_match='"1"')
    assert (past.status, past.body["code"]) == (409, "price.in_the_past")
    second = await kit.call("set_price", now, if_match='"1"')
    assert (second.status, second.etag) == (200, "2")
    listed = (await kit.query("list_prices", {"profile": "h100"})).body["items"]
    assert [item["version"] for item in listed] == [1, 2]
    assert listed[0]["price_per_machine_hour"] == "31.20"
    assert [event.entityversion for event in await kit.events()] == [1, 2]


async def test_the_first_prices_are_applied_once(service_kit: Any, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("prices:\n  - {profile: h100, price_per_machine_hour: 31.2, currency: EUR}\n")
    kit = await service_kit(service)
    for expected in (1, 0):
        async with kit.app.transaction(actor="system:bootstrap") as ctx:
            assert await apply_prices(ctx, read_prices(path)) == expected
    path.write_text("prices: [{profile: h100}]")
    with pytest.raises(BootstrapError, match=r"prices\.0"):
        read_prices(path)
