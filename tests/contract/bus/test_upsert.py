"""Rows that are newer than what is kept: one statement a batch where it can be, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from libs.projection import upsert_newer
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedPostgres
from tests.conftest import fresh_database

metadata = sa.MetaData(schema="live")


def a_table(name: str, *more: sa.Column[Any]) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("facts", JSONB, nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("healthy", sa.Boolean),
        sa.Column("seen_at", sa.DateTime(timezone=True)),
        sa.Column("amount", sa.Numeric),
        sa.Column("version", sa.BigInteger, nullable=False),
        *more,
    )


plain, with_list = a_table("plain"), a_table("with_list", sa.Column("tags", ARRAY(sa.Text)))
TABLES = [pytest.param(plain, id="plain"), pytest.param(with_list, id="with-list")]
SHADOW = {"schema_translate_map": {"live": "shadow"}}
KEY = ("id", "part")


@pytest_asyncio.fixture
async def database(postgres: EmbeddedPostgres) -> AsyncIterator[Database]:
    made = Database(postgres.url(await fresh_database(postgres, "reservation")), application_name="test")
    async with made.transaction() as conn:
        for schema in ("live", "shadow"):
            await conn.execute(sa.text(f"CREATE SCHEMA {schema}"))
        await conn.run_sync(metadata.create_all)
        shadow = await conn.execution_options(**SHADOW)
        await shadow.run_sync(metadata.create_all)
    yield made
    await made.close()


def row(table: sa.Table, id_: str, version: int, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": id_,
        "part": 1,
        "facts": {"of": [id_, {"version": version}], "text": 'a "quoted" {word}, \\ and ü'},
        "note": None,
        "healthy": None,
        "seen_at": datetime(2026, 12, 1, 9, 30, 0, 123456, UTC),
        "amount": None,
        "version": version,
        **more,
    }
    return made if "tags" not in table.c else {**made, "tags": more.get("tags", ["a", "b"])}


async def kept(database: Database, table: sa.Table) -> dict[str, dict[str, Any]]:
    async with database.transaction() as conn:
        return {found["id"]: dict(found) for found in (await conn.execute(sa.select(table))).mappings()}


@pytest.mark.parametrize("table", TABLES)
async def test_every_kind_of_value_is_kept_as_it_is(database: Database, table: sa.Table) -> None:
    rows = [
        row(table, "a", 1, note="", healthy=True, seen_at=None),
        row(table, "b", 2**40, note="{,\"'NULL", healthy=False, facts={}),
    ]
    async with database.transaction() as conn:
        await upsert_newer(conn, table, rows, key=KEY, version="version")
    assert await kept(database, table) == {made["id"]: made for made in rows}


@pytest.mark.parametrize("table", TABLES)
async def test_only_what_is_newer_changes_a_row(database: Database, table: sa.Table) -> None:
    async with database.transaction() as conn:
        await upsert_newer(conn, table, [row(table, "a", 5), row(table, "b", 5)], key=KEY, version="version")
    async with database.transaction() as conn:
        again = [row(table, "a", 4, note="older"), row(table, "b", 5, note="the same"), row(table, "c", 1)]
        await upsert_newer(conn, table, [*again, row(table, "a", 6, note="newer")], key=KEY, version="version")
    found = await kept(database, table)
    assert {id_: (found[id_]["version"], found[id_]["note"]) for id_ in found} == {
        "a": (6, "newer"),
        "b": (5, None),
        "c": (1, None),
    }


async def test_of_one_key_in_a_batch_the_newest_wins(database: Database) -> None:
    batch = [row(plain, "a", 3, note="newest"), row(plain, "a", 1), row(plain, "a", 2), row(plain, "a", 9, part=2)]
    async with database.transaction() as conn:
        await upsert_newer(conn, plain, batch, key=KEY, version="version")
        await upsert_newer(conn, plain, [], key=KEY, version="version")
        found = await conn.execute(sa.select(plain.c.part, plain.c.version, plain.c.note).order_by(plain.c.part))
        assert [tuple(each) for each in found] == [(1, 3, "newest"), (2, 9, None)]


@pytest.mark.parametrize("table", TABLES)
async def test_a_rebuild_writes_beside_the_live_table(database: Database, table: sa.Table) -> None:
    """The statement is kept between calls; the schema it writes to is still the connection's."""
    async with database.transaction() as conn:
        await upsert_newer(conn, table, [row(table, "a", 1)], key=KEY, version="version")
    async with database.engine.connect() as raw:
        conn = await raw.execution_options(**SHADOW)
        await upsert_newer(conn, table, [row(table, "b", 1)], key=KEY, version="version")
        assert (await conn.scalars(sa.select(table.c.id))).all() == ["b"]
        await conn.commit()
    assert set(await kept(database, table)) == {"a"}


async def test_columns_that_are_not_given_keep_their_defaults_and_their_values(database: Database) -> None:
    def some(version: int) -> dict[str, Any]:
        return {"id": "a", "part": 1, "facts": {}, "version": version}

    async with database.transaction() as conn:
        await upsert_newer(conn, plain, [row(plain, "a", 1, note="kept")], key=KEY, version="version")
        await upsert_newer(conn, plain, [some(2)], key=KEY, version="version")
    found = (await kept(database, plain))["a"]
    assert (found["version"], found["note"], found["facts"]) == (2, "kept", {})
