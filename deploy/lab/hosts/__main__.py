"""Play the hosts of the lab's machines: `python -m deploy.lab.hosts --lab FOLDER --base-port PORT`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

from deploy.lab.fleet import load_fleet
from deploy.lab.hosts.supervisor import Supervisor


async def _serve(lab: Path, base_port: int) -> None:
    supervising = asyncio.ensure_future(
        Supervisor(load_fleet(), lab, base_port).run(lab / "hosts" / "ready", os.getpid())
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, supervising.cancel)
    try:
        await supervising
    except asyncio.CancelledError:
        pass


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", type=Path, required=True, help="the lab's folder (var/lab)")
    parser.add_argument("--base-port", type=int, required=True, help="port of the machine with SSH port offset 0")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    asyncio.run(_serve(arguments.lab, arguments.base_port))


if __name__ == "__main__":
    main()
