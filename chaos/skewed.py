"""Run a program of ours with a clock that is wrong: `python -m chaos.skewed SECONDS MODULE`.

The wall clock that our code reads (`now_utc`, `time.time`) is moved; the monotonic clock, which no operator can set
wrong, is not. A process of its own, so that only one clock of the system is wrong.
"""

from __future__ import annotations

import runpy
import sys
import time
from datetime import UTC, datetime, timedelta

from libs.contracts import envelope


def skew(seconds: float) -> None:
    """From here on this process's clock is `seconds` ahead (behind when negative)."""
    true_time, moved = time.time, timedelta(seconds=seconds)
    time.time = lambda: true_time() + seconds
    # Modules import the name, so it is replaced before any of them is loaded.
    envelope.now_utc = lambda: datetime.now(UTC) + moved


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit("usage: python -m chaos.skewed SECONDS MODULE [ARGUMENT...]")
    skew(float(sys.argv[1]))
    del sys.argv[0:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
