"""`python -m deploy.lab.netbox up|down|seed|dump --var DIR`: run the lab's NetBox by itself."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from deploy.lab.interpreters import VAR
from deploy.lab.netbox.instance import NetBoxPorts
from deploy.lab.netbox.lab import NetBoxLab
from libs.runtime.processes import StartError

DEFAULT_PORTS = NetBoxPorts(http=28801, postgres=28802, redis=28803)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.lab.netbox", description=__doc__)
    parser.add_argument("action", choices=["up", "down", "seed", "dump"])
    parser.add_argument("--var", type=Path, default=VAR, help="the folder that everything is kept in")
    parser.add_argument("--http-port", type=int, default=DEFAULT_PORTS.http)
    parser.add_argument("--postgres-port", type=int, default=DEFAULT_PORTS.postgres)
    parser.add_argument("--redis-port", type=int, default=DEFAULT_PORTS.redis)
    parser.add_argument("--worker", action="store_true", help="start the background worker too (webhooks need it)")
    given = parser.parse_args()
    ports = NetBoxPorts(given.http_port, given.postgres_port, given.redis_port)
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    lab = NetBoxLab(given.var.resolve(), ports, tell, given.worker)
    try:
        run(lab, given.action)
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    tell("done")
    return 0


def run(lab: NetBoxLab, action: str) -> None:
    """Do one of the command line's actions. Raises StartError."""
    if action == "down":
        lab.stop()
    elif action == "dump":
        lab.install()
        lab.postgres.start()
        lab.instance.configure(lab.postgres.facts)
        lab.instance.redis.start()
        lab.on_progress(f"wrote {lab.schema.make_dump(lab.on_progress)}")
    else:
        lab.start()
        if action == "seed":
            lab.seed()
        lab.on_progress(f"NetBox is at {lab.url}, user admin, password in {lab.instance.password_file}")


if __name__ == "__main__":
    sys.exit(main())
