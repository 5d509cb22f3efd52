"""A row of the table, and how figures are taken: pairs of ours and the peer's, repeated, medians compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One measurement. `goal` and `peer` are words; `ratio` is value / peer_value; None where there is none."""

    id: str
    what: str
    value: float
    unit: str
    goal: str
    met: bool | None
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    note: str = ""


def ratio(value: float, peer_value: float) -> float | None:
    """How many times the peer's figure ours is; None when the peer's is zero."""
    return round(value / peer_value, 3) if peer_value else None


def pair_ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Medians of (ours, the peer's) and the median of the ratios within each pair."""
    ours, theirs = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    return ours, theirs, round(median(own / peer for own, peer in pairs), 3)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def load_note() -> str:
    """How busy the computer is; other programs' work is in every figure."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
