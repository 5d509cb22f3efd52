"""Lists: filters, one sort, cursor pages. A cursor names the last row seen, so pages are stable while rows change."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, literal, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import FromClause

from libs.contracts.calls import Answer, Call
from libs.runtime.params import invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


@dataclass(frozen=True)
class Listing:
    """What can be listed and how. `row` makes the item; `tenant` is the column that isolates, None: operators only.

    `search` columns are matched by ?q=, case-insensitively, anywhere; `text` is one lower-case column instead of them.
    `columns` are what `row` needs, default the whole table. `conditions` are filters that are more than "is one of":
    from the parameter's values to a condition; they raise ValueError with words for the caller.
    """

    table: FromClause
    key: ColumnElement[Any]
    row: Callable[[Mapping[str, Any]], dict[str, Any]]
    filters: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    sorts: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    default_sort: str = ""
    tenant: ColumnElement[Any] | None = None
    search: tuple[ColumnElement[Any], ...] = ()
    text: ColumnElement[Any] | None = None
    columns: tuple[ColumnElement[Any], ...] = ()
    conditions: Mapping[str, Callable[[Sequence[Any]], ColumnElement[bool]]] = field(default_factory=dict)


class _Bad(ValueError):
    def __init__(self, field: str, message: str) -> None:
        self.field, self.message = field, message
        super().__init__(message)


async def list_page(conn: AsyncConnection, listing: Listing, call: Call, *, as_of: str | None = None) -> Answer:
    """One page for the call, or 422 naming the parameter that is wrong."""
    try:
        statement, sort, limit = _statement(listing, call)
    except _Bad as bad:
        return invalid([{"field": bad.field, "message": bad.message}])
    rows = (await conn.execute(statement.limit(limit + 1))).mappings().all()
    items = [listing.row(row) for row in rows[:limit]]
    cursor = _encode(sort, rows[limit - 1]) if len(rows) > limit else None
    return Answer(body={"items": items, "next_cursor": cursor, "as_of": as_of})


def conditions_of(listing: Listing, call: Call) -> list[ColumnElement[bool]] | Answer:
    """What the call's filters ask for, or 422 naming the one that is wrong. No filter: no condition."""
    try:
        return _conditions(listing, call)
    except _Bad as bad:
        return invalid([{"field": bad.field, "message": bad.message}])


def statement_of(listing: Listing, call: Call) -> Select[Any]:
    """The page's statement as it is sent, for looking at its plan. Raises ValueError for a wrong parameter."""
    statement, _, limit = _statement(listing, call)
    return statement.limit(limit + 1)


def _statement(listing: Listing, call: Call) -> tuple[Select[Any], str, int]:
    params = call.params
    limit = _limit(params.get("limit"))
    sort = str(params.get("sort") or listing.default_sort or "")
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name and name not in listing.sorts:
        raise _Bad("sort", f"{name!r} can't be sorted by; choose one of {', '.join(sorted(listing.sorts))}")
    column = listing.sorts[name] if name else listing.key
    statement = select(*(listing.columns or (listing.table,)), column.label("_sort"), listing.key.label("_key"))
    for condition in _conditions(listing, call):
        statement = statement.where(condition)
    if params.get("cursor"):
        statement = statement.where(_after(str(params["cursor"]), sort, column, listing.key, descending))
    order = (column.desc(), listing.key.desc()) if descending else (column.asc(), listing.key.asc())
    return statement.order_by(*order), sort, limit


def _conditions(listing: Listing, call: Call) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if listing.tenant is not None and call.tenants is not None:
        conditions.append(listing.tenant.in_(call.tenants))
    for name, column in listing.filters.items():
        wanted = call.params.get(name)
        if wanted is not None and wanted != "":
            values = wanted if isinstance(wanted, list) else [wanted]
            conditions.append(column.in_(values))
    for name, condition in listing.conditions.items():
        wanted = call.params.get(name)
        if wanted is not None and wanted != "" and wanted != []:
            try:
                conditions.append(condition(wanted if isinstance(wanted, list) else [wanted]))
            except ValueError as error:
                raise _Bad(name, str(error)) from None
    return [*conditions, *_search(listing, str(call.params.get("q") or ""))]


def _search(listing: Listing, text: str) -> list[ColumnElement[bool]]:
    """Every word must occur: one in the text column, or the whole in one of the search columns."""
    if not text:
        return []
    if listing.text is not None:
        return [listing.text.like(_anywhere(word)) for word in text.lower().split()]
    return [or_(*(column.ilike(_anywhere(text)) for column in listing.search))] if listing.search else []


def _anywhere(text: str) -> str:
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def _limit(given: Any) -> int:
    if given is None or given == "":
        return DEFAULT_LIMIT
    try:
        limit = int(given)
    except (TypeError, ValueError):
        raise _Bad("limit", f"{given!r} is no number") from None
    if not 1 <= limit <= MAX_LIMIT:
        raise _Bad("limit", f"{limit} is not between 1 and {MAX_LIMIT}")
    return limit


def _encode(sort: str, row: Mapping[str, Any]) -> str:
    value = row["_sort"]
    stamp = {"t": value.isoformat()} if isinstance(value, datetime) else {"v": value}
    return base64.urlsafe_b64encode(orjson.dumps([sort, stamp, row["_key"]], default=str)).decode().rstrip("=")


def _after(
    cursor: str, sort: str, column: ColumnElement[Any], key: ColumnElement[Any], descending: bool
) -> ColumnElement[bool]:
    try:
        kept_sort, stamp, last = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        value = datetime.fromisoformat(stamp["t"]) if "t" in stamp else stamp["v"]
    except (ValueError, TypeError, KeyError):
        raise _Bad("cursor", "this is no cursor of ours; start again without one") from None
    if kept_sort != sort:
        raise _Bad("cursor", f"it belongs to a list sorted by {kept_sort!r}, not {sort!r}")
    # Compared as rows, for which an index on (column, key) is enough; spelled out with OR, none would be used.
    here, there = tuple_(column, key), tuple_(literal(value, column.type), literal(last, key.type))
    return here < there if descending else here > there
