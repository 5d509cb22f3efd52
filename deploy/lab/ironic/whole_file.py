"""Write a file so that a reader, or a restart after a kill, finds it whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace `path` by `text` in one step; missing folders are made. `mode` holds from the first byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=mode)
    partial.write_text(text)
    partial.replace(path)
