"""Shows an operation while it runs: a live table of steps on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slipway.cli.exits import Exit
from slipway.cli.output import console, print_json, span, state
from slipway.client import Client
from slipway.doors import Door
from slipway.models import Operation, Problem, Started, Step

T = TypeVar("T")
MARKS = {"SUCCEEDED": ("✓", "green"), "FAILED": ("✗", "red"), "RUNNING": ("●", "cyan"), "SKIPPED": ("–", "dim")}
UNKNOWN_MARK = ("·", "dim")


class Progress(Protocol):
    def update(self, operation: Operation) -> None: ...


async def watch(client: Client, operation_id: str, *, door: Door | None = None, quiet: bool = False) -> Operation:
    """Follow an operation to its end. With `quiet` the progress goes to standard error."""
    out = console(stderr=quiet)
    with showing(out) as progress:
        async for operation in client.operations.watch(operation_id, door=door):
            progress.update(operation)
    show_outcome(operation, out)
    return operation


def exit_code(operation: Operation) -> Exit:
    return Exit.OK if operation.status == "SUCCEEDED" else Exit.FAILED


@contextmanager
def showing(out: Console) -> Iterator[Progress]:
    """Live on a terminal, lines elsewhere."""
    if out.is_terminal:
        with Live(console=out, refresh_per_second=4, transient=False) as live:
            yield _LiveProgress(live)
    else:
        yield _LineProgress(out)


class _LiveProgress:
    def __init__(self, live: Live) -> None:
        self._live = live

    def update(self, operation: Operation) -> None:
        self._live.update(Rendered(operation))


class Rendered:
    """An operation as of now; running times go on between two updates."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def __rich__(self) -> Group:
        return render(self._operation, datetime.now(UTC))


class _LineProgress:
    """One line whenever a step begins, gets on or ends."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._seen: dict[str, tuple[str, int]] = {}
        self._notes = 0
        self._waiting = ""

    def update(self, operation: Operation) -> None:
        now = datetime.now(UTC)
        for step in operation.steps:
            current = (step.status, step.items_done)
            if step.status != "PENDING" and self._seen.get(step.name) != current:
                self._seen[step.name] = current
                self._line(operation, now, f"{step.status:<9} {step.name:<24} {_items(step):>7} {_took(step, now):>7}")
        for note in operation.notes[self._notes :]:
            self._line(operation, now, f"note      {note}")
        self._notes = len(operation.notes)
        if operation.waiting_for and operation.waiting_for != self._waiting:
            self._line(operation, now, f"WAITING   {operation.waiting_for}")
        self._waiting = operation.waiting_for

    def _line(self, operation: Operation, now: datetime, text: str) -> None:
        since = span((now - operation.created_at).total_seconds()) if operation.created_at else ""
        self._out.print(f"{since:>7}  {text.rstrip()}", soft_wrap=True)


def render(operation: Operation, now: datetime) -> Group:
    """The operation with its steps, each with its time."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for column in ("mark", "step", "items", "time"):
        table.add_column(justify="right" if column in ("items", "time") else "left", no_wrap=True)
    table.add_column(overflow="fold")
    for step in operation.steps:
        mark, style = MARKS.get(step.status, UNKNOWN_MARK)
        remark = step.last_error.message if step.last_error and step.status != "SUCCEEDED" else ""
        tries = f" ({step.attempts} tries)" if step.attempts > 1 else ""
        name = Text(step.name.replace("_", " ") + tries, "dim" if step.status == "PENDING" else "")
        table.add_row(Text(mark, style), name, _items(step), _took(step, now), Text(remark, "red"))
    return Group(_headline(operation, now), table, *(Text(f"  {note}", "dim") for note in operation.notes))


def _headline(operation: Operation, now: datetime) -> Text:
    ended = operation.updated_at if operation.final else now
    took = span((ended - operation.created_at).total_seconds()) if ended and operation.created_at else ""
    line = Text.assemble((operation.kind.replace("_", " "), "bold"), f"  {operation.id}  ", state(operation.status))
    line.append(f"  {operation.progress:.0%}  {took}")
    if operation.compensating and not operation.final:
        line.append("  giving back what was taken", "yellow")
    if operation.waiting_for:
        line.append(f"  waiting for {operation.waiting_for}", "yellow")
    return line


def _items(step: Step) -> str:
    return f"{step.items_done}/{step.items_all}" if step.items_all else ""


def _took(step: Step, now: datetime) -> str:
    if step.started_at is None:
        return ""
    return span(max(((step.finished_at or now) - step.started_at).total_seconds(), 0.0))


def show_outcome(operation: Operation, out: Console) -> None:
    """How it ended, and what to do when it did not end well."""
    took = ""
    if operation.created_at and operation.updated_at:
        took = f" after {span((operation.updated_at - operation.created_at).total_seconds())}"
    line = Text.assemble(operation.kind.replace("_", " "), " ", state(operation.status), took)
    out.print(line, soft_wrap=True)
    if operation.status != "SUCCEEDED" and operation.problem:
        show_problem(operation.problem, out)


def show_problem(problem: Problem, out: Console) -> None:
    out.print(Text.assemble(("Why:  ", "bold red"), f"{problem.message} ({problem.code})"), soft_wrap=True)
    if problem.next_step:
        out.print(Text.assemble(("Next: ", "bold"), problem.next_step), soft_wrap=True)


Action = Callable[[Client], Awaitable[T]]


def end(started: Started, operation: Operation | None, *, as_json: bool) -> None:
    """End a command that began an operation: say how to follow it, or with the outcome's exit code."""
    if as_json:
        print_json((operation or started).raw)
    elif operation is None:
        console().print(f"Started. Follow it with: slipway operations watch {started.operation_id}")
    if operation is not None:
        raise typer.Exit(exit_code(operation))
