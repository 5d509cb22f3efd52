"""How many dead letters there are, how long the oldest has waited for a human, and what waits behind them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from prometheus_client import Gauge
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.tables import DEAD, PENDING
from libs.runtime.database import Database

LOOK_SECONDS = 5.0

log = structlog.get_logger("inbox")
DEAD_LETTERS = Gauge("slipway_inbox_dead_letters", "Messages set aside for a human", ["service"])
OLDEST = Gauge(
    "slipway_inbox_dead_letter_oldest_seconds", "For how long the oldest dead letter has waited", ["service"]
)
PARKED = Gauge("slipway_inbox_parked", "Messages that wait behind a dead letter of their key", ["service"])


@dataclass(frozen=True)
class Waiting:
    """`oldest_seconds` by the database's clock, 0 without a dead letter; `parked` counts each message once."""

    dead: int
    oldest_seconds: float
    parked: int


async def waiting(conn: AsyncConnection, service: str) -> Waiting:
    """What waits for a human in the service's inbox."""
    row = (
        await conn.execute(
            text(
                f"""SELECT count(*), coalesce(extract(epoch FROM now() - min(dead_at)), 0), (
                    SELECT count(DISTINCT b.id) FROM {service}.inbox d JOIN {service}.inbox b
                    ON b.key = d.key AND b.id > d.id AND b.state = {PENDING}
                    WHERE d.state = {DEAD} AND d.key <> '')
                FROM {service}.inbox WHERE state = {DEAD}"""
            )
        )
    ).one()
    return Waiting(int(row[0]), float(row[1]), int(row[2]))


async def measure_forever(service: str, database: Database) -> None:
    """Keep the gauges true. While nobody can look they are NaN: an old figure would pass for a good one."""
    while True:
        try:
            async with database.transaction() as conn:
                found = await waiting(conn, service)
        except Exception as error:
            log.warning("dead_letters_unknown", service=service, error=repr(error))
            show(service, None)
        else:
            show(service, found)
        await asyncio.sleep(LOOK_SECONDS)


def show(service: str, found: Waiting | None) -> None:
    """Set the gauges; None: nobody knows."""
    DEAD_LETTERS.labels(service).set(found.dead if found else float("nan"))
    OLDEST.labels(service).set(found.oldest_seconds if found else float("nan"))
    PARKED.labels(service).set(found.parked if found else float("nan"))
