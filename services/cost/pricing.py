"""Prices and roll-ups: what usage lines come to. Pure and exact.

Invariant: every second is billed once, at the price valid in that second. Amounts are kept as price x seconds
(exact decimals) and divided by 3,600 once, at the end; where rounded rows differ from the rounded total, the
difference is shown as its own figure. A second without a price is counted as unpriced, never as free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from itertools import pairwise

from services.cost.metering import Line, whole, whole_seconds

SECONDS_PER_HOUR = 3600
ROW_QUANTUM = Decimal("0.000001")  # Rows are shown to a millionth, so that a second of a cheap machine is not 0.
TOTAL_QUANTUM = Decimal("0.01")  # Totals in the currency's minor unit.
# Enough for 10^12 seconds at the highest price without rounding.
_EXACT = Context(prec=60)


class By(StrEnum):
    HOUR = "hour"
    DAY = "day"
    CLUSTER = "cluster"
    TENANT = "tenant"


class Basis(StrEnum):
    """USED: a correction counts when the machine was used. BOOKED: when the correction was booked."""

    USED = "used"
    BOOKED = "booked"


@dataclass(frozen=True)
class Price:
    """Price of one machine-hour from `valid_from` until the next price of the profile."""

    price_per_machine_hour: Decimal
    currency: str
    valid_from: datetime


PriceBook = Mapping[str, Sequence[Price]]  # By profile, in the order of valid_from.


@dataclass(frozen=True)
class Window:
    """[start, stop), None: no bound. Open lines count until `as_of`."""

    start: datetime | None
    stop: datetime | None
    as_of: datetime


@dataclass(frozen=True)
class Piece:
    """Part of a line within one price and one bucket. Seconds are signed; price None: nobody set one."""

    line: Line
    started_at: datetime
    seconds: int
    price: Price | None

    @property
    def price_seconds(self) -> Decimal:
        price = self.price.price_per_machine_hour if self.price else Decimal(0)
        return _EXACT.multiply(price, Decimal(self.seconds))


@dataclass(frozen=True)
class RowKey:
    """What a row is about. Empty fields are not grouped by."""

    cluster_id: str = ""
    tenant: str = ""
    starts_at: datetime | None = None
    currency: str = ""
    correction: bool = False


@dataclass
class Row:
    """Sums of one key."""

    seconds: int = 0
    unpriced_seconds: int = 0
    price_seconds: Decimal = field(default_factory=Decimal)
    open: bool = False

    @property
    def amount(self) -> Decimal:
        return amount_of(self.price_seconds, ROW_QUANTUM)


@dataclass(frozen=True)
class Total:
    """One currency's total, rounded once. `rounding_difference` + the sum of the rows' amounts = `amount`."""

    currency: str
    seconds: int
    unpriced_seconds: int
    price_seconds: Decimal
    amount: Decimal
    rounding_difference: Decimal


def amount_of(price_seconds: Decimal, quantum: Decimal) -> Decimal:
    """price x seconds / 3,600, rounded half to even to `quantum`."""
    # A quotient by 3,600 ends early or repeats for ever, so cutting it at 60 digits can't make it look like a tie.
    return _EXACT.divide(price_seconds, Decimal(SECONDS_PER_HOUR)).quantize(
        quantum, rounding=ROUND_HALF_EVEN, context=_EXACT
    )


def exact_text(value: Decimal) -> str:
    """An exact decimal as plain text without trailing zeros: one text for one value."""
    return format(_EXACT.normalize(value), "f") if value else "0"


def price_at(prices: Sequence[Price], moment: datetime) -> Price | None:
    """The price valid in the second that begins at `moment`."""
    valid = [price for price in prices if whole(price.valid_from) <= moment]
    return max(valid, key=lambda price: price.valid_from) if valid else None


def pieces(line: Line, book: PriceBook, window: Window, *, by: By, basis: Basis) -> Iterator[Piece]:
    """The line cut at the window's ends, at price changes and at the buckets' borders."""
    start, stop = line.started_at, line.stopped_at if line.stopped_at is not None else whole(window.as_of)
    if basis is Basis.USED or line.booked_at is None:
        start = max(start, whole(window.start)) if window.start else start
        stop = min(stop, whole(window.stop)) if window.stop else stop
    elif not _inside(line.booked_at, window):
        return
    if stop <= start:
        return
    prices = book.get(line.profile, ())
    cuts = {start, stop} | {whole(price.valid_from) for price in prices if start < whole(price.valid_from) < stop}
    cuts |= set(_borders(start, stop, by))
    moments = sorted(cuts)
    for left, right in pairwise(moments):
        yield Piece(line, left, line.sign * whole_seconds(left, right), price_at(prices, left))


def _inside(moment: datetime, window: Window) -> bool:
    after = window.start is None or moment >= window.start
    return after and (window.stop is None or moment < window.stop)


def _borders(start: datetime, stop: datetime, by: By) -> Iterator[datetime]:
    if by not in (By.HOUR, By.DAY):
        return
    step = timedelta(hours=1) if by is By.HOUR else timedelta(days=1)
    border = bucket(start, by) + step
    while border < stop:
        yield border
        border += step


def bucket(moment: datetime, by: By) -> datetime:
    """The UTC hour or day that `moment` lies in."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    return hour if by is By.HOUR else hour.replace(hour=0)


def roll_up(
    lines: Iterable[Line], book: PriceBook, window: Window, *, by: By, basis: Basis = Basis.USED
) -> dict[RowKey, Row]:
    """Sums by key, corrections apart from usage."""
    rows: dict[RowKey, Row] = defaultdict(Row)
    for line in lines:
        for piece in pieces(line, book, window, by=by, basis=basis):
            row = rows[_key(piece, by, basis)]
            row.seconds += piece.seconds
            row.open = row.open or line.stopped_at is None
            if piece.price is None:
                row.unpriced_seconds += piece.seconds
            row.price_seconds = _EXACT.add(row.price_seconds, piece.price_seconds)
    return dict(rows)


def _key(piece: Piece, by: By, basis: Basis) -> RowKey:
    line = piece.line
    currency = piece.price.currency if piece.price else ""
    correction = line.correction_of is not None
    match by:
        case By.CLUSTER:
            return RowKey(cluster_id=line.cluster_id, tenant=line.tenant, currency=currency, correction=correction)
        case By.TENANT:
            return RowKey(tenant=line.tenant, currency=currency, correction=correction)
        case By.HOUR | By.DAY:
            booked = line.booked_at if basis is Basis.BOOKED else None
            return RowKey(starts_at=bucket(booked or piece.started_at, by), currency=currency, correction=correction)


def totals(rows: Mapping[RowKey, Row]) -> tuple[Total, ...]:
    """One total for each currency, sorted; "" is the currency of seconds without a price."""
    result = []
    for currency in sorted({key.currency for key in rows}):
        of_currency = [row for key, row in rows.items() if key.currency == currency]
        exact = Decimal(0)
        shown = Decimal(0)
        for row in of_currency:
            exact = _EXACT.add(exact, row.price_seconds)
            shown = _EXACT.add(shown, row.amount)
        amount = amount_of(exact, TOTAL_QUANTUM)
        result.append(
            Total(
                currency=currency,
                seconds=sum(row.seconds for row in of_currency),
                unpriced_seconds=sum(row.unpriced_seconds for row in of_currency),
                price_seconds=exact,
                amount=amount,
                rounding_difference=_EXACT.subtract(amount, shown),
            )
        )
    return tuple(result)
