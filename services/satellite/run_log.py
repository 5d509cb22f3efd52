"""A run's log on its way to the hub: lines become RunnerLog observations, numbered, in pieces the bus can carry.

Numbers go on where the last piece ended, also after a restart, so a reader sees each line once and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from libs.contracts.envelope import Envelope, now_utc
from libs.contracts.site import RunnerLog
from services.satellite.journal import Journal
from services.satellite.messages import observation_envelope, observation_subject
from services.satellite.ports import LogSink

# 64 lines of at most 2,000 characters stay below the bus's 256 KiB even when every character takes 2 bytes.
LINES_PER_PIECE = 64
MAX_LINE_CHARACTERS = 2_000
_CUT = " … [cut]"


def log_sink(site: str, journal: Journal, on_posted: Callable[[], None], command: Envelope) -> LogSink:
    """Where the run that `command` (a RunTemplate) asks for writes its log."""
    run_id = str(command.data.get("run_id", ""))

    async def write(lines: Sequence[str]) -> None:
        for start in range(0, len(lines), LINES_PER_PIECE):
            piece = tuple(_short(line) for line in lines[start : start + LINES_PER_PIECE])
            first_line = journal.next_line(run_id)
            message = RunnerLog(
                run_id=run_id,
                cluster_id=str(command.data.get("cluster_id", "")),
                operation_id=str(command.data.get("operation_id", "")),
                first_line=first_line,
                lines=piece,
            )
            envelope = observation_envelope(site, message, now_utc(), correlation_id=command.correlationid)
            journal.post_log(run_id, first_line, len(piece), envelope, observation_subject(site, message))
        on_posted()

    return write


def _short(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - len(_CUT)] + _CUT
