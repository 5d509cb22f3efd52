"""What the harness did and when, one JSON line each, written before anything else is done with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Journal:
    """Appends to `path`; `tell` gets a line for people."""

    def __init__(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)
        self._tell = tell

    def note(self, what: str, told: str = "", **more: Any) -> None:
        """`what` happened now; `told` is what people read of it, if anything."""
        line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what, **more}
        self._file.write(json.dumps(line, default=str) + "\n")
        if told:
            self._tell(told)

    def close(self) -> None:
        self._file.close()
