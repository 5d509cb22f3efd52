"""Runs a command's async part with a client, and turns errors into messages and exit codes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from slipway import config
from slipway.cli.exits import Exit, code_of, show_error
from slipway.cli.output import Column, console, print_json, print_table
from slipway.client import Client
from slipway.doors import Door
from slipway.errors import SlipwayError
from slipway.models import D, Page

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print the API's own JSON, and nothing else.")]
AskedDoor = Annotated[Door | None, typer.Option("--door", help="Which door to use where both offer this.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Show at most so many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay and show the progress until it has ended.")]
Sort = Annotated[str | None, typer.Option("--sort", help="Field to sort by; with a dash in front: descending.")]
DEFAULT_LIMIT = 500
CONTEXT: ContextVar[str | None] = ContextVar("context", default=None)
"""The configuration's context that --context named."""


def group(name: str, help_text: str) -> typer.Typer:
    """A noun: a group of commands."""
    return typer.Typer(
        name=name,
        help=help_text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run(action: Callable[[Client], Awaitable[T]]) -> T:
    """Run `action` with a client of the chosen context; errors end the command."""

    async def with_client() -> T:
        async with config.connect(CONTEXT.get()) as client:
            return await action(client)

    try:
        return asyncio.run(with_client())
    except SlipwayError as error:
        fail(error)


def fail(error: SlipwayError) -> NoReturn:
    """Say what happened and end with its code."""
    show_error(error, console(stderr=True))
    raise typer.Exit(code_of(error))


def usage_error(message: str, next_step: str) -> NoReturn:
    """The command line cannot be carried out as it stands."""
    show_error(SlipwayError(message, next_step), console(stderr=True))
    raise typer.Exit(Exit.USAGE)


def show_list(
    pages: Callable[[Client], AsyncIterator[Page[D]]],
    columns: Sequence[Column[D]],
    *,
    as_json: bool,
    limit: int = DEFAULT_LIMIT,
    nothing: str = "Nothing found.",
) -> None:
    """Print a list: all pages up to `limit` items, as a table or as one JSON page."""

    async def collect(client: Client) -> tuple[list[D], str | None, str | None]:
        items: list[D] = []
        async for page in pages(client):
            items += page.items
            if len(items) >= limit:
                return items[:limit], page.next_cursor, page.as_of
        return items, None, page.as_of

    items, cursor, as_of = run(collect)
    if as_json:
        print_json({"items": [item.raw for item in items], "next_cursor": cursor, "as_of": as_of})
        return
    print_table(columns, items, nothing)
    if as_of:
        console(stderr=True).print(f"As of {as_of}.", style="dim")
    if cursor or len(items) == limit:
        console(stderr=True).print(f"The first {len(items)} are shown; --limit shows more.", style="dim")


def show_one(fetch: Callable[[Client], Awaitable[D]], render: Callable[[D], None], *, as_json: bool) -> None:
    """Print one thing."""
    item = run(fetch)
    if as_json:
        print_json(item.raw)
    else:
        render(item)


def show_document(fetch: Callable[[Client], Awaitable[Any]], render: Callable[[Any], None], *, as_json: bool) -> None:
    """Print a document that has no model."""
    document = run(fetch)
    if as_json:
        print_json(document)
    else:
        render(document)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone. Without a terminal, --yes is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        usage_error(
            "This cannot be undone and nobody is there to be asked.", "Add --yes, or look first with --dry-run."
        )
    if not typer.confirm(question):
        console(stderr=True).print("Nothing was done.")
        raise typer.Exit(Exit.OK)
