"""recovery.kill_all: how long until every process's work goes on after kill -9 of everything at once."""

from __future__ import annotations

from pathlib import Path

from bench.rows import Row, load_note
from chaos.recovery import measure as kill_all

GOAL_SECONDS = 5.0


async def measure(folder: Path) -> list[Row]:
    """One run on a system of its own; each saga's first new decision counts."""
    found = await kill_all(folder / "recovery")
    return [
        Row(
            id="recovery.kill_all",
            what="kill -9 of every program and server at once: every open saga decided upon anew, after the restart",
            value=found.moving_after_ready_seconds,
            unit="s",
            goal=f"< {GOAL_SECONDS:.0f} s",
            met=found.moving_after_ready_seconds < GOAL_SECONDS,
            note=f"{found.sagas} sagas open; all programs ready after {found.ready_seconds:.1f} s, all sagas moving "
            f"{found.moving_seconds:.1f} s after the first was started again; {load_note()}",
        )
    ]
