"""The tables in the code are the tables that the migrations make, for every service and its rebuild schema."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, Table, text
from sqlalchemy.ext.asyncio import create_async_engine

from libs.bus.tables import bus_ddl
from libs.runtime.embedded import EmbeddedPostgres
from libs.runtime.migrations import STATEFUL_SERVICES, migrate
from libs.runtime.service import Service

# Made by the bus's own statements and by Alembic; the stores of the services do not declare them.
_NOT_THE_STORES = {
    "alembic_version",
    *(m.group(1) for s in bus_ddl("x") if (m := re.search(r"CREATE TABLE x\.(\w+)", s))),
}


def _declared(service: str) -> MetaData:
    rooms = importlib.import_module(f"services.{service}")
    for room in pkgutil.iter_modules(rooms.__path__):
        if room.name.endswith("_store"):  # Further rooms of the same tables.
            importlib.import_module(f"services.{service}.{room.name}")
    store = importlib.import_module(f"services.{service}.store")
    tables = [value for value in vars(store).values() if isinstance(value, Table)]
    assert tables, f"services/{service}/store.py declares no table"
    metadata: MetaData = tables[0].metadata
    return metadata


def _differences(connection: Connection, service: str) -> list[Any]:
    # A partition is declared by its table.
    named = connection.execute(text("SELECT relname FROM pg_class WHERE relispartition"))
    partitions = {row.relname for row in named}

    def compared(thing: Any, name: str | None, kind: str, reflected: bool, other: Any) -> bool:
        if kind == "table":
            return name not in _NOT_THE_STORES and name not in partitions
        # The database may be stricter and quicker than a store says; what a store says must be there.
        return not (kind in ("index", "unique_constraint") and reflected and other is None)

    context = MigrationContext.configure(
        connection,
        opts={
            "include_schemas": True,
            "include_name": lambda name, kind, parents: kind != "schema" or name == service,
            "include_object": compared,
            "compare_type": True,
        },
    )
    return list(compare_metadata(context, _declared(service)))


async def _migrated(postgres: EmbeddedPostgres, service: str) -> str:
    name = f"architecture_{service}"
    admin = await asyncpg.connect(postgres.url())
    try:
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.execute(f"CREATE DATABASE {name}")
    finally:
        await admin.close()
    await migrate(postgres.url(name), service)
    return postgres.url(name)


@pytest.mark.parametrize("service", STATEFUL_SERVICES)
async def test_the_migrated_database_is_what_the_store_declares(postgres: EmbeddedPostgres, service: str) -> None:
    url = await _migrated(postgres, service)
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    try:
        async with engine.connect() as connection:
            differences = await connection.run_sync(_differences, service)
    finally:
        await engine.dispose()
    assert differences == []


@pytest.mark.parametrize("service", STATEFUL_SERVICES)
async def test_a_projection_has_the_same_tables_where_it_is_rebuilt(postgres: EmbeddedPostgres, service: str) -> None:
    projections = _service(service).projections
    connection = await asyncpg.connect(await _migrated(postgres, service))
    try:
        for projection in projections:
            for table in projection.tables:
                live = await _columns(connection, service, table.name)
                assert live, f"{service}.{table.name} does not exist"
                assert await _columns(connection, f"{service}_rebuild", table.name) == live
    finally:
        await connection.close()


def _service(name: str) -> Service:
    app = importlib.import_module(f"services.{name}.app")
    service = app.service
    assert isinstance(service, Service)
    return service


async def _columns(connection: Any, schema: str, table: str) -> list[tuple[str, ...]]:
    rows = await connection.fetch(
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
        "WHERE table_schema = $1 AND table_name = $2 ORDER BY column_name",
        schema,
        table,
    )
    return [tuple(row) for row in rows]
