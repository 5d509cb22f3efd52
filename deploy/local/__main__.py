"""What `make up` and `make down` call: `python -m deploy.local up|down|status|install [--site real|sim]`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from deploy.local.layout import REPOSITORY, Ports
from deploy.local.stack import Stack, seconds
from libs.runtime.logs import set_up_logging
from libs.runtime.processes import StartError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description="Slipway on this machine")
    parser.add_argument("what", choices=("up", "down", "status", "install"))
    parser.add_argument("--site", choices=("real", "sim"), default=os.environ.get("SITE") or None)
    parser.add_argument("--var", type=Path, default=None, help="where its state lives (default: var, or var/sim)")
    given = parser.parse_args()
    set_up_logging("local", "pretty", "warning")
    try:
        stack = _stack(given.site, given.var)
        return {"up": _up, "down": _down, "status": _status, "install": _install}[given.what](stack)
    except (StartError, ValueError) as error:
        print(f"slipway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _stack(site: str | None, var: Path | None) -> Stack:
    var = var or REPOSITORY / "var" / ("local-sim" if site == "sim" else "local")
    return Stack(var, Ports.from_environment(), "sim" if site == "sim" else "real")


def _up(stack: Stack) -> int:
    began = time.monotonic()
    stack.up(lambda line: print(f"  {seconds(began):>8}  {line}", flush=True))
    _sign_in_here(stack)
    print(f"""
Slipway is up ({seconds(began)}).
  tenant door     {stack.tenant_url}      (API: {stack.tenant_url}/openapi.json)
  operator door   {stack.operator_url}
  command line    .venv/bin/slipway machines list      (signed in as the operator; --context alice for a tenant)
  logs            {stack.var}/log/
  stop            make down{" SITE=sim" if stack.site == "sim" else ""}""")
    return 0


def _sign_in_here(stack: Stack) -> None:
    """Let the command line find this deployment from anywhere in the repository."""
    config = REPOSITORY / "var" / "slipway" / "config.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.touch(mode=0o600)
    config.write_text((stack.var / "slipway" / "config.json").read_text())


def _down(stack: Stack) -> int:
    stack.down()
    print("Slipway is down; its state stays in", stack.var)
    return 0


def _status(stack: Stack) -> int:
    for process in stack.processes():
        pid = process.pid()
        print(f"{process.name:<16} {'pid ' + str(pid) if pid else 'not running':<14} {process.log_file}")
    return 0


def _install(stack: Stack) -> int:
    stack.install(lambda line: print(f"  {line}", flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
