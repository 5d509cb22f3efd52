# mypy: ignore-errors
"""Six steps on DBOS with PostgreSQL: `python dbos_steps.py DATABASE SECONDS AT_ONCE STEPS`, in the peers' environment.

Plain functions in threads, started directly: measured against coroutines and against other sizes of the pool, this was
the fastest; a queue would add its own polling to each. Run by path: what it imports is not in our environment.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, DBOSConfig


@DBOS.step()
def act(number: int) -> int:
    return number


@DBOS.workflow()
def six_steps(steps: int) -> int:
    for number in range(steps):
        act(number)
    return steps


def run(seconds: float, at_once: int, steps: int) -> None:
    six_steps(steps)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    began = time.monotonic()

    def one_after_the_other(_: int) -> int:
        count = 0
        while time.monotonic() < began + seconds:
            six_steps(steps)
            count += 1
        return count

    with ThreadPoolExecutor(at_once) as threads:
        count = sum(threads.map(one_after_the_other, range(at_once)))
    said = {"began": began, "ended": time.monotonic(), "count": count, "cpu": time.process_time()}
    print(json.dumps(said), flush=True)


def main() -> None:
    database_url, seconds, at_once, steps = sys.argv[1:]
    config: DBOSConfig = {
        "name": "six-steps",
        "system_database_url": database_url,
        "sys_db_pool_size": int(at_once),  # So that no workflow waits for a connection.
        "log_level": "ERROR",
        "run_admin_server": False,
    }
    DBOS(config=config)
    DBOS.launch()
    run(float(seconds), int(at_once), int(steps))
    DBOS.destroy()


if __name__ == "__main__":
    main()
