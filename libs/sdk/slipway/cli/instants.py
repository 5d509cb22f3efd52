"""Instants on the command line: RFC 3339 or the start of one, UTC when no offset is given."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer


def instant(text: str) -> datetime:
    """`text` as an instant. Raises BadParameter with an example."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no instant; write it as 2026-11-30T10:00Z") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


At = Annotated[
    datetime | None,
    typer.Option(
        "--at", parser=instant, metavar="TIME", help="As of this instant, from the events (UTC without an offset)."
    ),
]
Since = Annotated[
    datetime | None,
    typer.Option("--since", "--from", parser=instant, metavar="TIME", help="From this instant on."),
]
Until = Annotated[
    datetime | None, typer.Option("--until", "--to", parser=instant, metavar="TIME", help="Before this instant.")
]
