"""Tells the story: one heading a scene, lines with the time since the start, progress of operations as it comes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.table import Table
from slipway.models import Operation, Step


class Timed(Protocol):
    """Whatever keeps how long each scene took."""

    @property
    def seconds(self) -> dict[str, float]: ...


class Narrator:
    """Writes to the terminal; plain lines when it is none."""

    def __init__(self, summary: Timed) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.summary = summary
        self.began = time.monotonic()
        self._scene = 0

    @contextmanager
    def scene(self, key: str, title: str) -> Iterator[None]:
        """One scene; its time goes into the summary."""
        self._scene += 1
        self.console.print(f"\n[bold]{self._scene}. {title}[/bold]")
        began = time.monotonic()
        try:
            yield
        finally:
            self.summary.seconds[key] = round(time.monotonic() - began, 1)

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:7.1f} s[/dim]  {text}")

    def command(self, text: str) -> None:
        """What a person would type for the same."""
        self.console.print(f"           [cyan]$ {text}[/cyan]")

    def step_changes(self, operation: Operation, told: dict[str, str]) -> None:
        """Say which steps of an operation have changed since the last look."""
        for step in operation.steps:
            state = f"{step.status} {step.items_done}/{step.items_all}" if step.items_all else str(step.status)
            if step.status in ("PENDING", "SKIPPED") or told.get(step.name) == state:
                continue
            told[step.name] = state
            if step.status != "RUNNING":
                self.say(f"    {step.name.replace('_', ' ')}: {state.lower()}{_took(step)}")

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        table = Table(title=title, title_justify="left", header_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)


def _took(step: Step) -> str:
    if step.started_at is None or step.finished_at is None:
        return ""
    return f" in {(step.finished_at - step.started_at).total_seconds():.1f} s"
