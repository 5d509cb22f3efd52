"""What rules give: one breach each with its evidence; an empty iterator when the promise held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chaos.history import Event, History

FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
MOST_SHOWN = 20  # One fault in a store breaks thousands of rows; the first ones say where.

Breaches = Iterator[tuple[str, list[str]]]  # What is wrong, and the lines of the history that show it.
Rule = Callable[[History], Breaches]


@dataclass(frozen=True)
class Broken:
    """One breach: the rule's name, what is wrong, and the lines of the history that show it."""

    rule: str
    what: str
    evidence: tuple[str, ...] = ()


def all_events(history: History) -> Iterator[Event]:
    for events in history.streams.values():
        yield from events


def forgotten(history: History, event: Event) -> bool:
    """Whether it was told before a restore that its owner went on from: the database may know nothing of it."""
    return any(event.sequence <= restore.goes_on_after.get(event.service, 0) for restore in history.restores)
