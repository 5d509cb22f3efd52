"""What a server killed with -9 leaves behind: its children, which still hold its port or its data.

gunicorn's workers and PostgreSQL's back ends outlive their parent for up to a second or two. A start
right after a crash has to wait for them, and end them when they do not go by themselves. Only
processes that are certainly ours are ended: those whose command line or working folder lies in the
lab's own folder.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from libs.runtime.processes import Process, StartError

LEAVE_BY_THEMSELVES_SECONDS = 3.0
LEAVE_KILLED_SECONDS = 5.0


def end_leftovers(process: Process, title: bytes | None = None) -> None:
    """End what is left of a dead `process`'s group. Nothing happens while it runs or when it never did.

    `title` is how the command lines of its children begin, where they do not name the program that was started.
    """
    if process.pid() is not None:
        return
    try:
        group = int(json.loads(process.pid_file.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return
    program = os.fsencode(process.argv[0])

    def ours(pid: int) -> bool:
        command = _command(pid)
        return program in command or (title is not None and command.startswith(title))

    _end(f"children of {process.name}", lambda: [pid for pid in _group_members(group) if ours(pid)])


def end_in_folder(what: str, folder: Path, program: Path) -> None:
    """End every `program` whose working folder is `folder`, as is true of each of PostgreSQL's processes."""
    home, binary = folder.resolve(), program.resolve()
    _end(what, lambda: [pid for pid in _pids() if _link(pid, "cwd") == home and _link(pid, "exe") == binary])


def _end(what: str, left: Callable[[], list[int]]) -> None:
    if _gone_within(LEAVE_BY_THEMSELVES_SECONDS, left):
        return
    for pid in left():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if not _gone_within(LEAVE_KILLED_SECONDS, left):
        raise StartError(f"{what} from an earlier run do not end: pids {left()}; end them and try again")


def _gone_within(limit_seconds: float, left: Callable[[], list[int]]) -> bool:
    deadline = time.monotonic() + limit_seconds
    while left():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _group_members(group: int) -> list[int]:
    members = []
    for pid in _pids():
        try:
            state, _, pgrp = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(pgrp) == group and state not in "ZX":
            members.append(pid)
    return members


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _link(pid: int, name: str) -> Path | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/{name}"))
    except OSError:
        return None
