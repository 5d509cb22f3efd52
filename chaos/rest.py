"""Waits until nothing is under way any more, and says what still is."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import nats.errors
import nats.js.errors

from chaos import wire
from chaos.world import World
from deploy.local.layout import SERVICES
from libs.bus.tables import PENDING

LOOK_SECONDS = 1.0
# The longest that anything waits before it goes on by itself: sourcing of a site's stream after a broker's restart
# (5 s), redelivery (5 s), back-off of a retry (60 s), all by a clock that was 90 s wrong when it was set.
PATIENCE_SECONDS = 180.0


@dataclass(frozen=True)
class Rest:
    """How much is under way. `moved` changes whenever anything does."""

    under_way: dict[str, int] = field(default_factory=dict)
    moved: tuple[Any, ...] = ()

    @property
    def quiet(self) -> bool:
        return not any(self.under_way.values())

    @property
    def left(self) -> int:
        """How much there is to do; that it was never less than now is progress, too."""
        return sum(self.under_way.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.under_way.items() if count) or "nothing"


async def look(world: World) -> Rest:
    """Look once. Raises OSError or an error of the drivers while something is down."""
    under_way: dict[str, int] = {}
    moved: list[Any] = []
    async with wire.database(world) as db, wire.hub(world) as client:
        js = client.jetstream(timeout=10)
        last = {service: (await js.stream_info(f"EVT_{service}")).state.last_seq for service in SERVICES}
        for service in SERVICES:
            counts = await _counts(db, service)
            # Not what comes and goes by itself: a site's observations and what is made of them go on for ever.
            moved.append(counts["saga_versions"])
            lag = 0
            for row in await db.fetch(f"SELECT stream, position FROM {service}.projection_position"):
                lag += max(0, last.get(row["stream"], 0) - row["position"])
            under_way[f"{service} outbox"] = counts["unpublished"]
            under_way[f"{service} inbox"] = counts["unworked"]
            under_way[f"{service} sagas"] = counts["open_sagas"]
            under_way[f"{service} projections"] = lag
        # EVT is copied from the services' streams, after a broker's restart with a delay.
        under_way["EVT"] = max(0, sum(last.values()) - (await js.stream_info("EVT")).state.messages)
    under_way["satellite"] = open_commands(world.stack.var / "satellite" / "journal.sqlite")
    return Rest(under_way, tuple(moved))


async def _counts(db: asyncpg.Connection, service: str) -> dict[str, Any]:
    row = await db.fetchrow(
        f"""SELECT (SELECT count(*) FROM {service}.outbox WHERE published_at IS NULL) AS unpublished,
            (SELECT count(*) FROM {service}.inbox WHERE state = {PENDING}) AS unworked,
            (SELECT count(*) FROM {service}.saga WHERE phase IN ('running', 'undoing')) AS open_sagas,
            (SELECT coalesce(sum(version), 0) FROM {service}.saga) AS saga_versions"""
    )
    return dict(row)


def open_commands(journal: Path) -> int:
    """How many commands the satellite has not answered yet, by its journal."""
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM command WHERE state <> 'done'").fetchone()[0])
    finally:
        connection.close()


async def come_to_rest(world: World, tell: Any, patience_seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait until nothing is under way. False when nothing has moved for `patience_seconds` and something still is."""
    loop = asyncio.get_running_loop()
    changed_at, last, least = loop.time(), Rest(), math.inf
    while True:
        try:
            now = await look(world)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, nats.errors.Error,
                nats.js.errors.APIError, sqlite3.Error) as error:  # fmt: skip
            now = Rest({f"not looked: {error!r}": 1}, last.moved)
        if now.quiet:
            return True
        if now.moved != last.moved or now.left < least:
            changed_at = loop.time()
            least = now.left if now.moved != last.moved else min(least, now.left)
        if str(now) != str(last):
            tell(f"still under way: {now}")
        if loop.time() - changed_at > patience_seconds:
            return False
        last = now
        await asyncio.sleep(LOOK_SECONDS)
