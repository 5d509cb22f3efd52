"""`python -m bench [row …]`: measure, print the table, write bench/results/latest.json. `make bench` measures all.

A row of the file that is not measured this time keeps its earlier figure.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import orjson
import structlog

import bench.events
import bench.inventory
import bench.inventory_enrol
import bench.inventory_sync
import bench.recovery
import bench.relay
import bench.replay
import bench.reservation_hold
import bench.saga_rivals
import bench.sagas
import bench.subscribers
import bench.system
from bench.rows import Row

RESULTS = Path(__file__).parent / "results" / "latest.json"
Measure = Callable[[Path], Awaitable[Sequence[Row]]]
# In the table's order. What is measured together runs together.
MEASURES: tuple[tuple[tuple[str, ...], Measure], ...] = (
    (("events.end_to_end", "events.end_to_end_inbox", "events.one_by_one"), bench.events.measure),
    (("relay.vs_bare", "consume.per_process", "consume.per_process_inbox"), bench.relay.measure),
    (("replay.million",), bench.replay.measure),
    (("events.ten_subscribers",), bench.subscribers.measure),
    (("saga.throughput",), bench.sagas.measure),
    (("saga.vs_temporal", "saga.vs_dbos"), bench.saga_rivals.measure),
    (("api.create_cluster_p99", "memory.all", "cpu.idle"), bench.system.measure),
    (("reservation.hold8_p99",), bench.reservation_hold.measure),
    (("inventory.sync_ratio",), bench.inventory_sync.measure),
    (("recovery.kill_all",), bench.recovery.measure),
    (("inventory.list_p99", "inventory.vs_netbox", "inventory.memory"), bench.inventory.measure),
    (("inventory.enrol_1000",), bench.inventory_enrol.measure),
)


def main() -> int:
    known = [name for names, _ in MEASURES for name in names]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure, beside a peer in the same run")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"which rows, default all: {', '.join(known)}")
    parser.add_argument("--long", action="store_true", help="events.ten_subscribers writes for 60 s, not 15")
    given = parser.parse_args()
    wanted = set(given.rows or known)
    if wanted - set(known):
        print(f"bench: no such row: {', '.join(sorted(wanted - set(known)))}; there are {', '.join(known)}")
        return 2
    # Warnings are for a service's log; here they would tear the table.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    longer: dict[Measure, Measure] = {
        bench.subscribers.measure: partial(bench.subscribers.measure, seconds=bench.subscribers.LONG_SECONDS)
    }
    found: list[Row] = []
    failed = False
    for names, measure in MEASURES:
        if not wanted.isdisjoint(names):
            began = time.monotonic()
            print(f"measuring {', '.join(names)} …", file=sys.stderr, flush=True)
            try:
                found += _in_a_folder(longer.get(measure, measure) if given.long else measure)
            except Exception as error:
                failed = True
                print(f"bench: {', '.join(names)}: {type(error).__name__}: {error}", file=sys.stderr)
            print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(found))
    keep(found, known)
    return 1 if failed else 0


def _in_a_folder(measure: Measure) -> Sequence[Row]:
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user when we are root.
        return asyncio.run(_awaited(measure(folder)))


async def _awaited(rows: Awaitable[Sequence[Row]]) -> Sequence[Row]:
    return await rows


def keep(rows: Sequence[Row], order: Sequence[str]) -> None:
    """Replace these rows in the results' file."""
    kept = {row["id"]: row for row in orjson.loads(RESULTS.read_bytes())} if RESULTS.exists() else {}
    kept |= {row.id: asdict(row) for row in rows}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    ordered = [kept[name] for name in order if name in kept]
    RESULTS.write_bytes(orjson.dumps(ordered, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def table(rows: Sequence[Row]) -> str:
    """The rows as text, with their notes below."""
    head = ("id", "value", "goal", "met", "peer's", "ratio")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    shown.insert(1, "-" * len(shown[0]))
    notes = [f"{row.id}: {row.what}.\n    peer: {row.peer or 'none'}\n    {row.note}" for row in rows]
    return "\n".join([*shown, "", *notes])


def _cells(row: Row) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: "-"}[row.met]
    peer = "-" if row.peer_value is None else f"{row.peer_value:g}"
    return row.id, f"{row.value:g} {row.unit}", row.goal, met, peer, "-" if row.ratio is None else f"{row.ratio:g}"


if __name__ == "__main__":
    sys.exit(main())
