"""What a projection is: streams in, tables out, one pure-ish function between them.

`apply` must be deterministic (no clock, no randomness) and use SQLAlchemy Core on its own tables only, so that
a rebuild in the `<service>_rebuild` schema gives an equal digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Table, select
from sqlalchemy.dialects.postgresql import insert
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

    Of several rows with one key in the batch the newest wins.
    """
    newest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        row_key = tuple(row[name] for name in key)
        kept = newest.get(row_key)
        if kept is None or row[version] >= kept[version]:
            newest[row_key] = row
    if not newest:
        return
    statement = insert(table)
    changes = {name: statement.excluded[name] for name in next(iter(newest.values())) if name not in key}
    statement = statement.on_conflict_do_update(
        index_elements=list(key), set_=changes, where=table.c[version] < statement.excluded[version]
    )
    await conn.execute(statement, list(newest.values()))


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
