"""A toy service in two roles, for the bus's promises: it counts, and its saga asks itself to count.

It lives in the inventory schema of a test database of its own, because services have fixed names. What it tells itself
goes over the bus here, as what it would tell a peer (`over_the_bus`); test_own_commands.py has the short way.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus import context
from libs.bus.context import Context
from libs.contracts.inventory import (
    EnrolMachine,
    InventoryOperationFinished,
    InventoryOperationProgressed,
    InventoryOperationStarted,
    RackFacts,
    RackUpdated,
)
from libs.contracts.replies import Reply, failed, ok
from libs.projection import Projection, upsert_newer
from libs.runtime.service import Service
from libs.runtime.settings import ServiceSettings
from libs.saga import saga, step

metadata = MetaData(schema="inventory")
counter = Table(
    "counter", metadata, Column("id", Text, primary_key=True), Column("n", Integer), Column("version", BigInteger)
)
mirror = Table(
    "mirror",
    metadata,
    Column("id", Text, primary_key=True),
    Column("n", Integer),
    Column("version", BigInteger),
    Column("seen", Integer),
)

DDL = (
    "CREATE TABLE inventory.counter (id text PRIMARY KEY, n integer NOT NULL, version bigint NOT NULL)",
    *(
        f"CREATE TABLE {schema}.mirror (id text PRIMARY KEY, n integer, version bigint, seen integer)"
        for schema in ("inventory", "inventory_rebuild")
    ),
)


class Switches:
    """What a test can turn on: fail the next handlings of an id."""

    fail: ClassVar[dict[str, int]] = {}


async def count(ctx: Context, command: EnrolMachine) -> Reply:
    """Count up the row of the command's id and say so."""
    key = command.machine_id
    if Switches.fail.get(key, 0) > 0:
        Switches.fail[key] -= 1
        raise RuntimeError(f"told to fail for {key}")
    if key.startswith("never"):
        return failed("toy.never", "told to say no")
    n, version = await count_up(ctx, key)
    emit_count(ctx, key, n, version)
    return ok(n=n)


async def count_up(ctx: Context, key: str) -> tuple[int, int]:
    """Count up the row of `key`. Returns the count and the entity's version."""
    row = (
        await ctx.conn.execute(
            insert(counter)
            .values(id=key, n=1, version=1)
            .on_conflict_do_update(index_elements=["id"], set_={"n": counter.c.n + 1, "version": counter.c.version + 1})
            .returning(counter.c.n, counter.c.version)
        )
    ).one()
    return row.n, row.version


def emit_count(ctx: Context, key: str, n: int, version: int) -> None:
    facts = RackFacts(id=key, name=str(n), site="fra1", version=version)
    ctx.emit(RackUpdated(rack=facts), entity_id=key, entity_version=version, site="fra1")


async def apply_mirror(conn: AsyncConnection, events: Any) -> None:
    rows = [
        {"id": e.subject, "n": int(e.data["rack"]["name"]), "version": e.entityversion, "seen": 1}
        for e in events
        if e.type == "slipway.inventory.rack.updated"
    ]
    await upsert_newer(conn, mirror, rows, key=("id",), version="version")


def count_once(data: dict[str, Any], item: dict[str, Any]) -> EnrolMachine:
    return EnrolMachine(machine_id=item["id"])


def count_again(data: dict[str, Any], item: dict[str, Any]) -> EnrolMachine:
    return EnrolMachine(machine_id=item["id"])


toy_saga = saga(
    "toy",
    step(count_once, each="machines", within=timedelta(seconds=30)),
    step(count_again, each="machines", within=timedelta(seconds=30), then=lambda item, data: {**item, "n": data["n"]}),
    result=lambda data: {"counts": [item["n"] for item in data["machines"]]},
)


def over_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command is the service's own: the toy is its own peer."""
    monkeypatch.setattr(context, "OWN", "nobody.{s}.")


def toy_service(nats_url: str, database_url: str) -> Service:
    settings = ServiceSettings(nats_url=nats_url, database_url=database_url)
    return Service(
        name="inventory",
        metadata=metadata,
        settings=settings,
        commands={EnrolMachine: count},
        entities={"rack": counter},
        sagas=(toy_saga,),
        operation_events=(InventoryOperationStarted, InventoryOperationProgressed, InventoryOperationFinished),
        projections=(Projection("mirror", ("inventory",), (mirror,), apply_mirror),),
    )


async def counts(conn: AsyncConnection, table: Table = counter) -> dict[str, int]:
    return {row.id: row.n for row in await conn.execute(select(table))}


async def scalar(conn: AsyncConnection, sql: str) -> Any:
    return await conn.scalar(text(sql))
