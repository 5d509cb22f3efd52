"""Files that only their owner can read, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def check_writable(path: Path) -> None:
    """Raises OSError when a private file could not be written to `path`: known before there is a secret to keep."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    draft = _draft(path)
    draft.touch(mode=0o600)
    draft.unlink()


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_private(path: Path, content: Any) -> None:
    """Write `content` as JSON to `path`, mode 600; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = _draft(path)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
