"""What commands print: tables for people, the API's own JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
GAP = 3  # What the table's style puts between two columns.
LEAST_GROWING = 24  # A column that wraps is not useful when it is narrower.
SHORT_ID = 15
PIPE_WIDTH = 160  # Wide enough for every table, so that `| grep` finds whole rows.
STYLES = {
    "green": {"AVAILABLE", "READY", "SUCCEEDED", "PASS", "HEALTHY", "ASSIGNED", "CLAIMED", "SKIPPED"},
    "red": {"FAILED", "QUARANTINED", "FAIL", "REFUSED", "critical"},
    "yellow": {"INCONCLUSIVE", "UNKNOWN", "SUSPECT", "WAITING", "CANCELLED", "UNDOING", "UNDONE", "EXPIRED", "warning"},
    "cyan": {
        "RUNNING",
        "CREATING",
        "DELETING",
        "ENROLLING",
        "SANITIZING",
        "VALIDATING",
        "PROVISIONING",
        "RELEASING",
        "RETURNING",
        "HELD",
    },
    "dim": {"PENDING", "EXPECTED", "DELETED", "ENDED", "RETIRED", "-", ""},
}
_STYLE_OF = {word: style for style, words in STYLES.items() for word in words}


def console(*, stderr: bool = False) -> Console:
    """A console for people; into a pipe it is wide and plain."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, emoji=False, markup=False)


def print_json(document: Any) -> None:
    """The document and nothing else, on standard output."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column; `value` may give styled text.

    When the table is too wide, ids (`is_id`) are shortened in their middle, then `spare` columns are left out;
    `grows` columns take what width is left and wrap.
    """

    title: str
    value: Callable[[T], str | Text | int | None]
    grows: bool = False
    right: bool = False
    is_id: bool = False
    spare: bool = False


def print_table(columns: Sequence[Column[T]], items: Iterable[T], nothing: str = "Nothing found.") -> int:
    """Print the items; returns how many there were. A column that is empty in every row is left out."""
    rows = [[_text(column.value(item)) for column in columns] for item in items]
    out = console()
    if not rows:
        out.print(Text(nothing, "dim"))
        return 0
    shown = _fitting(columns, rows, out.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for index in shown:
        column = columns[index]
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, no_wrap=not column.grows, overflow="fold")
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    out.print(table)
    return len(rows)


def _fitting(columns: Sequence[Column[T]], rows: list[list[Text]], width: int) -> list[int]:
    """The indices of the columns to show in `width`; ids in `rows` are shortened when that is needed."""
    shown = [index for index in range(len(columns)) if any(row[index].plain not in ("", "-") for row in rows)]

    def too_wide() -> bool:
        return sum(_width(columns[index], index, rows) for index in shown) + GAP * (len(shown) - 1) > width

    for index in [index for index in shown if columns[index].is_id]:
        if too_wide():
            for row in rows:
                row[index] = _shortened(row[index])
    for index in [index for index in reversed(shown) if columns[index].spare]:
        if too_wide():
            shown.remove(index)
    return shown


def _width(column: Column[T], index: int, rows: list[list[Text]]) -> int:
    widest = max(len(column.title), *(row[index].cell_len for row in rows))
    return min(widest, LEAST_GROWING) if column.grows else widest


def _shortened(text: Text) -> Text:
    return text if text.cell_len <= SHORT_ID else Text(f"{text.plain[:8]}…{text.plain[-6:]}", text.style)


def print_facts(facts: Iterable[tuple[str, str | Text | int | None]]) -> None:
    """Names and values of one thing, one a line; what is not known is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        text = _text(value)
        if text.plain:
            table.add_row(name, text)
    console().print(table)


def _text(value: str | Text | int | None) -> Text:
    match value:
        case Text():
            return value
        case None:
            return Text("")
        case _:
            return Text(str(value))


def state(word: str | None) -> Text:
    """A state or verdict, coloured by what it means."""
    shown = word or "-"
    return Text(shown, _STYLE_OF.get(shown, ""))


def ago(when: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in one unit: "3m", "2h", "5d"; "" when not known."""
    if when is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    return f"in {span(-seconds)}" if seconds < -1 else span(max(seconds, 0.0))


def span(seconds: float) -> str:
    """A length of time, short: "0.4s", "12s", "3m05s", "2h10m", "5d"."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
    if seconds < 86400:
        return f"{int(seconds) // 3600}h{int(seconds) % 3600 // 60:02d}m"
    return f"{seconds / 86400:.0f}d"


def exact(when: datetime | None) -> str:
    """An instant, to the second, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ") if when else ""


def plain_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of documents whose members are not known beforehand."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [Column[Mapping[str, Any]](name.upper(), lambda row, n=name: _cell(row.get(n))) for name in names]  # type: ignore[misc]
    print_table(columns, rows)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)
