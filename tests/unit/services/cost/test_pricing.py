"""What usage comes to: prices by second, roll-ups, rounding once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from services.cost.metering import Line
from services.cost.pricing import Basis, By, Price, RowKey, Window, roll_up, totals


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def line(start: str, stop: str | None, number: int = 0, **more: object) -> Line:
    values: dict[str, object] = {
        "id": f"l{number}{start}",
        "cluster_id": "c1",
        "tenant": "acme",
        "machine_id": f"m{number}",
        "profile": "h100",
        "gpu_count": 8,
        "started_at": at(start),
        "stopped_at": at(stop) if stop else None,
        **more,
    }
    return Line(**values)  # type: ignore[arg-type]


def price(text: str, valid_from: str, currency: str = "EUR") -> Price:
    return Price(Decimal(text), currency, at(valid_from))


MARCH = Window(at("2026-03-01"), at("2026-04-01"), at("2026-05-01"))
# Prices 2.00, from the 15th 3.00, from the 25th 2.00 again; 8 machines, 4 from the 10th noon, 16 from the 20th 06:00.
BOOK = {"h100": (price("2.00", "2026-03-01"), price("3.00", "2026-03-15"), price("2.00", "2026-03-25"))}
RESIZED = [
    *(line("2026-03-01", "2026-03-10T12:00", number) for number in range(4)),
    *(line("2026-03-01", "2026-04-01", number) for number in range(4, 8)),
    *(line("2026-03-20T06:00", "2026-04-01", number) for number in range(8, 20)),
]


def test_each_second_is_billed_once_at_the_price_valid_then() -> None:
    rows = roll_up(RESIZED, BOOK, MARCH, by=By.CLUSTER)
    total = totals(rows)[0]
    assert (total.amount, total.rounding_difference) == (Decimal("16872.00"), Decimal(0))
    assert len(rows) == 1


def test_days_add_up_to_the_month() -> None:
    rows = roll_up(RESIZED, BOOK, MARCH, by=By.DAY)
    assert len(rows) == 31
    assert totals(rows)[0].amount == Decimal("16872.00")


def test_a_correction_is_a_row_of_its_own_in_the_month_of_use_and_leaves_the_months_own_row() -> None:
    taken_back = [
        line(
            "2026-03-30",
            "2026-04-01",
            number,
            sign=-1,
            correction_of="l4",
            booked_at=at("2026-04-02T10:00"),
        )
        for number in (4, 5)
    ]
    rows = roll_up([*RESIZED, *taken_back], BOOK, MARCH, by=By.TENANT)
    assert rows[RowKey(tenant="acme", currency="EUR")].amount == Decimal("16872.00")
    assert rows[RowKey(tenant="acme", currency="EUR", correction=True)].amount == Decimal("-192.00")
    booked = roll_up([*RESIZED, *taken_back], BOOK, MARCH, by=By.TENANT, basis=Basis.BOOKED)
    assert list(booked) == [RowKey(tenant="acme", currency="EUR")]
    april = Window(at("2026-04-01"), at("2026-05-01"), at("2026-05-01"))
    rows = roll_up([*RESIZED, *taken_back], BOOK, april, by=By.TENANT, basis=Basis.BOOKED)
    assert {key.correction: row.amount for key, row in rows.items()} == {True: Decimal("-192.00")}


def test_a_second_without_a_price_is_unpriced_and_not_free() -> None:
    rows = roll_up(
        [line("2026-02-28T23:00", "2026-03-01T01:00")], BOOK, Window(None, None, at("2026-05-01")), by=By.CLUSTER
    )
    assert rows[RowKey(cluster_id="c1", tenant="acme")].unpriced_seconds == 3600
    assert rows[RowKey(cluster_id="c1", tenant="acme", currency="EUR")].amount == Decimal("2.00")


def test_an_open_line_counts_until_the_time_of_the_answer_and_says_that_it_is_open() -> None:
    window = Window(None, None, at("2026-03-01T00:30"))
    row = roll_up([line("2026-03-01", None)], BOOK, window, by=By.CLUSTER).popitem()[1]
    assert (row.seconds, row.open) == (1800, True)


def test_currencies_are_never_added_together() -> None:
    book = {"h100": (price("1", "2026-03-01"), price("1", "2026-03-02", "USD"))}
    rows = roll_up([line("2026-03-01", "2026-03-03")], book, MARCH, by=By.CLUSTER)
    assert {total.currency: total.amount for total in totals(rows)} == {"EUR": Decimal(24), "USD": Decimal(24)}


def test_the_total_is_rounded_once_and_the_difference_is_shown() -> None:
    """A third of a cent in each of three rows is one cent in all."""
    book = {"h100": (price("12.00", "2026-03-01"),)}
    lines = [line("2026-03-01", "2026-03-01T00:00:01", n, cluster_id=f"c{n}") for n in range(3)]
    rows = roll_up(lines, book, MARCH, by=By.CLUSTER)
    total = totals(rows)[0]
    assert {row.amount for row in rows.values()} == {Decimal("0.003333")}
    assert total.amount == Decimal("0.01")
    assert total.rounding_difference == Decimal("0.000001")


spans = st.lists(
    st.tuples(st.integers(0, 10_000_000), st.integers(0, 1_000_000), st.sampled_from(["c1", "c2"])), max_size=8
)
price_points = st.lists(
    st.tuples(st.integers(0, 10_000_000), st.decimals("0", "999.999999", places=6)),
    max_size=5,
    unique_by=lambda p: p[0],
)


@settings(deadline=None)  # A busy computer is no fault of the code.
@given(spans, price_points)
def test_every_way_to_roll_up_gives_the_same_exact_sum(
    some: list[tuple[int, int, str]], points: list[tuple[int, Decimal]]
) -> None:
    base = at("2026-01-01")
    lines = []
    for number, (began, length, cluster) in enumerate(some):
        start = base + timedelta(seconds=began)
        lines.append(
            Line(f"l{number}", cluster, "acme", f"m{number}", "h100", 8, start, start + timedelta(seconds=length))
        )
    book = {"h100": [Price(amount, "EUR", base + timedelta(seconds=moment)) for moment, amount in points]}
    window = Window(None, None, at("2027-01-01"))
    sums = {
        by: (sum(row.price_seconds for row in rows.values()), sum(row.seconds for row in rows.values()))
        for by in (By.DAY, By.CLUSTER, By.TENANT)
        if (rows := roll_up(lines, book, window, by=by)) is not None
    }
    assert len(set(sums.values())) == 1
    assert sums[By.CLUSTER][1] == sum(length for _, length, _ in some)
