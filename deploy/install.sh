#!/usr/bin/env bash
# Make .venv from the lock file with a Python >= 3.11. Needs a package index the first time, no root.
set -euo pipefail
cd "$(dirname "$0")/.."

python=""
for candidate in python3.11 python3.12 python3.13 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$(command -v "$candidate")
    break
  fi
done
if [ -z "$python" ]; then
  echo "slipway: Python 3.11 or newer is needed (Debian, Ubuntu: apt install python3 python3-venv)" >&2
  exit 1
fi
if [ ! -x .venv/bin/uv ]; then
  rm -rf .venv
  "$python" -m venv .venv || { echo "slipway: this Python has no venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$(cat deploy/uv-version)"
fi
.venv/bin/uv sync --frozen --quiet --compile-bytecode --python .venv/bin/python
touch .venv/ready
