"""The processes that run on a lab machine, found and ended as a loss of power would end them.

Every process started on a host carries the machine's UUID in its environment, and so do its children, however
far they have detached themselves. That also finds those left over from a host process that was killed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "SLIPWAY_LAB_MACHINE"


def residents(system_uuid: str, lab: Path) -> list[int]:
    """The pids that run on the machine of this lab."""
    wanted = f"{MARK}={lab}:{system_uuid}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # It has ended, or belongs to another user.
            if wanted in environment:
                found.append(int(entry.name))
    return found


def end_residents(system_uuid: str, lab: Path) -> None:
    """Kill everything that runs on the machine; processes that start others meanwhile are looked for again."""
    for _ in range(5):
        pids = residents(system_uuid, lab)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
