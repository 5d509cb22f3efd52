"""Write what is derived from the code: `python -m tools.generate`; `--check` only compares (exit status 1: it differs).

Schemas, examples, the AsyncAPI and OpenAPI documents and the drawn pages. Deterministic: the same code gives the same
bytes. An example that exists is never touched, because it stands for messages that were already sent.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.gateway.openapi import document
from services.gateway.routes import Door
from tools.check_compatibility import releases
from tools.generation.asyncapi import asyncapi
from tools.generation.catalogue import FOLDER as CATALOGUE
from tools.generation.catalogue import catalogue
from tools.generation.examples import examples
from tools.generation.messages import Files, index, schemas
from tools.generation.pages import FOLDER as PAGES
from tools.generation.pages import pages

ROOT = Path(__file__).resolve().parents[1]
# Folders in which everything is generated: a file that nothing generates any more does not belong there.
GENERATED_FOLDERS = (
    "schemas/events",
    "schemas/commands",
    "schemas/examples",
    "schemas/api",
    "schemas/asyncapi",
    PAGES,
    CATALOGUE,
)


def wanted(root: Path = ROOT) -> Files:
    """Every generated file by its path below `root`; an example that exists counts as it is."""
    files = {**schemas(), **index(), **asyncapi(), **pages()}
    files |= {f"schemas/api/{door}.json": document(door) for door in Door}
    for path, text in examples().items():
        kept = root / path
        files[path] = kept.read_text(encoding="utf-8") if kept.exists() else text
    files = {**_released(root), **files}
    return {**files, **catalogue(files)}


def _released(root: Path) -> Files:
    """Schemas and examples of every message ever released: they stay when the model goes, for the log is read on."""
    names = {name for release in releases(root).values() for name in release["messages"]}
    folders = ("schemas/events", "schemas/commands", "schemas/examples")
    files = (root / folder / f"{name}.json" for folder in folders for name in names)
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files if file.exists()}


def differing(root: Path, files: Files) -> list[str]:
    """What of `files` is missing or different, and what is left over, as paths below `root`."""
    changed = [path for path, text in files.items() if _read(root / path) != text]
    present = (file for folder in GENERATED_FOLDERS for file in (root / folder).glob("*") if file.is_file())
    left_over = [str(file.relative_to(root)) for file in present]
    return sorted([*changed, *(path for path in left_over if path not in files)])


def write(root: Path = ROOT) -> list[str]:
    """Bring every file up to date and remove what is left over; returns the paths that changed."""
    files = wanted(root)
    changed = differing(root, files)
    for path in changed:
        target = root / path
        if path in files:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(files[path], encoding="utf-8")
        else:
            target.unlink()
    return changed


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; list what differs and exit with 1")
    if parser.parse_args().check:
        changed = differing(ROOT, wanted())
        if changed:
            print("Not up to date; run `python -m tools.generate`:", *changed, sep="\n  ", file=sys.stderr)
        return 1 if changed else 0
    for path in write():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
