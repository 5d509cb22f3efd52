"""What a projection is: streams in, tables out, one pure-ish function between them.

`apply` must be deterministic (no clock, no randomness) and use SQLAlchemy Core on its own tables only, so that
a rebuild in the `<service>_rebuild` schema gives an equal digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import ARRAY as SqlArray
from sqlalchemy import Table, bindparam, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from libs.contracts.versions import todays

Apply = Callable[[AsyncConnection, Sequence[Envelope]], Awaitable[None]]
DIGEST_FETCH = 1000


@dataclass(frozen=True)
class Projection:
    """`streams` names services (their EVT_ streams); `tables` are this projection's alone.

    `apply` gets each event as its newest version says it, and once when it is published in two; `as_sent`: every one as
    it was sent.
    """

    name: str
    streams: tuple[str, ...]
    tables: tuple[Table, ...]
    apply: Apply
    as_sent: bool = False

    async def take_in(self, conn: AsyncConnection, events: Sequence[Envelope]) -> None:
        """Apply a batch. Raises NewerMessage for a version that only a newer release knows."""
        await self.apply(conn, events if self.as_sent else [read for e in events if (read := todays(e)) is not None])


async def upsert_newer(
    conn: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: tuple[str, ...], version: str
) -> None:
    """Insert or update rows; a row that is not newer by `version` than what is kept changes nothing.

    All rows have the same columns. Of several rows with one key in the batch the newest wins.
    """
    newest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        row_key = tuple(row[name] for name in key)
        kept = newest.get(row_key)
        if kept is None or row[version] >= kept[version]:
            newest[row_key] = row
    if not newest:
        return
    values = list(newest.values())
    names = tuple(values[0])
    statement = _upsert(table, names, key, version)
    if _in_columns(table, names):
        await conn.execute(statement, {name: [row[name] for row in values] for name in names})
    else:
        await conn.execute(statement, values)


@lru_cache(maxsize=256)
def _upsert(table: Table, names: tuple[str, ...], key: tuple[str, ...], version: str) -> Insert:
    """The statement for rows of these columns: all of them in one, where it can be, else one row each."""
    statement = insert(table)
    if _in_columns(table, names):
        arrays = [bindparam(name, type_=ARRAY(table.c[name].type)) for name in names]
        columns = [column(name, table.c[name].type) for name in names]
        batch = func.unnest(*arrays).table_valued(*columns, name="batch").render_derived()
        statement = statement.from_select(list(names), select(*batch.c), include_defaults=False)
    changes = {name: statement.excluded[name] for name in names if name not in key}
    return statement.on_conflict_do_update(
        index_elements=list(key), set_=changes, where=table.c[version] < statement.excluded[version]
    )


def _in_columns(table: Table, names: tuple[str, ...]) -> bool:
    """Whether a batch can go as one array a column, which costs a fraction; unnest would flatten arrays of arrays."""
    return not any(isinstance(table.c[name].type, SqlArray) for name in names)


async def digest(conn: AsyncConnection, tables: Sequence[Table]) -> str:
    """SHA-256 over all rows of the tables in primary-key order. Memory is bounded: rows are streamed."""
    total = hashlib.sha256()
    for table in tables:
        total.update(table.name.encode())
        statement = select(table).order_by(*table.primary_key.columns)
        result = await conn.stream(statement.execution_options(yield_per=DIGEST_FETCH))
        async for row in result:
            total.update(orjson.dumps(list(row), default=str))
    return total.hexdigest()
