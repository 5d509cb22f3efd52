"""Cost: what was used and what it costs. Amounts are exact decimals as text, times UTC, intervals half-open."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from libs.contracts.message import Message, event


class PriceFacts(Message):
    """Price of one machine-hour of a profile from `valid_from` on. `currency` is ISO 4217."""

    profile: str
    price_per_machine_hour: Decimal
    currency: str
    valid_from: datetime
    version: int


@event("cost", "price", "set")
class PriceSet(Message):
    """An operator set the price of a machine-hour, from an instant on."""

    price: PriceFacts


class UsageFacts(Message):
    """One metered interval [started_at, stopped_at) of one machine in one cluster; whole seconds."""

    id: str
    cluster_id: str
    tenant: str
    machine_id: str
    profile: str
    gpu_count: int
    started_at: datetime
    stopped_at: datetime | None = None
    seconds: int | None = None
    correction_of: str | None = None
    version: int


@event("cost", "usage", "metered")
class UsageMetered(Message):
    """An interval ended: its seconds are final; what is learnt later comes as a correction line of its own."""

    usage: UsageFacts
