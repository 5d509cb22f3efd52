"""`make check`: what must hold before anything else is looked at, in seconds. Stops at nothing; reports everything."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BIN = REPOSITORY / ".venv" / "bin"
TYPED = ("libs", "services", "deploy", "tools", "bench", "chaos")

TWO = ("-n", "2")
CHECKS: tuple[tuple[str, Sequence[str]], ...] = (
    ("format", (str(BIN / "ruff"), "format", "--check", "--quiet", ".")),
    ("lint", (str(BIN / "ruff"), "check", "--quiet", ".")),
    ("types", (str(BIN / "mypy"), *TYPED)),
    ("imports", (str(BIN / "lint-imports"), "--no-logo")),
    ("generated files", (sys.executable, "-m", "tools.generate", "--check")),
    ("compatibility", (sys.executable, "-m", "tools.check_compatibility")),
    ("unit tests", (sys.executable, "-m", "pytest", "-q", "-x", *TWO, "tests/unit/libs", "tests/architecture")),
)


def main() -> int:
    failed = []
    for name, command in CHECKS:
        began = time.monotonic()
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        good = done.returncode == 0
        print(f"{'ok    ' if good else 'FAILED'} {name:<16} {time.monotonic() - began:5.1f} s", flush=True)
        if not good:
            failed.append(name)
            print(done.stdout[-6000:] + done.stderr[-2000:], flush=True)
    if failed:
        print(f"check failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
