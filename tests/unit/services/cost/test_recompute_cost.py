"""The separate program and the service agree to the last digit, whatever the log holds."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from node_events import price_set, started, stopped

from libs.contracts.envelope import Envelope
from services.cost.pricing import By, Price, PriceBook, Window, exact_text, roll_up, totals
from services.cost.projections import MeteringBatch, node_fact

PROGRAM = Path(__file__).resolve().parents[4] / "tools" / "recompute_cost.py"
BASE = datetime(2026, 3, 1, tzinfo=UTC)
END = datetime(2026, 6, 1, tzinfo=UTC)


def program() -> Any:
    spec = importlib.util.spec_from_file_location("recompute_cost", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECOMPUTE = program()


def exported(events: Sequence[Envelope]) -> io.StringIO:
    return io.StringIO("".join(event.encode().decode() + "\n" for event in events))


def recomputed(events: Sequence[Envelope]) -> Any:
    return RECOMPUTE.recompute(RECOMPUTE.read_events([exported(events)]), RECOMPUTE.epoch(END.isoformat()))


def of_the_service(nodes: Sequence[Envelope], book: PriceBook, by: By) -> dict[str, Any]:
    """What the service's own code makes of the same events, in the program's shape."""
    batch = MeteringBatch()
    for event in nodes:
        batch.apply(event, node_fact(event))
    rows = roll_up(batch.added.values(), book, Window(None, END, END), by=by)
    result: dict[str, Any] = {}
    for name in sorted({key.cluster_id if by is By.CLUSTER else key.tenant for key in rows}):
        own = {k: row for k, row in rows.items() if name == (k.cluster_id if by is By.CLUSTER else k.tenant)}
        sums = totals(own)
        # A correction that takes everything back leaves a row of 0, where the program sees nothing at all.
        priced = [total for total in sums if total.currency and (total.seconds or total.price_seconds)]
        result[name] = {
            "seconds": sum(total.seconds for total in sums),
            "unpriced_seconds": sum(total.unpriced_seconds for total in sums),
            "price_seconds": {total.currency: exact_text(total.price_seconds) for total in priced},
            "amounts": {total.currency: format(total.amount, "f") for total in priced},
        }
    return result


moments = st.integers(0, 80 * 86400).map(lambda second: BASE + timedelta(seconds=second, milliseconds=second % 1000))
node_events = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "stop"]),
        st.sampled_from(["c1", "c2"]),
        st.sampled_from(["m1", "m2"]),
        moments,
        st.integers(0, 40 * 86400),
    ),
    max_size=12,
)
price_events = st.lists(
    st.tuples(moments, st.decimals("0", "9999.999999", places=6), st.sampled_from(["EUR", "EUR", "USD"])),
    max_size=4,
    unique_by=lambda point: point[0].replace(microsecond=0),
)
TENANT_OF = {"c1": "acme", "c2": "globex"}


@settings(max_examples=60, deadline=None)
@given(node_events, price_events)
def test_the_separate_program_agrees_with_the_service_whatever_the_log_holds(
    nodes: list[tuple[str, str, str, datetime, int]], points: list[tuple[datetime, Decimal, str]]
) -> None:
    log = []
    for number, (what, cluster, machine, at, later) in enumerate(nodes):
        make = started if what == "start" else stopped
        time = at + timedelta(seconds=later)
        log.append(make(cluster, machine, at, tenant=TENANT_OF[cluster], sequence=number + 1, time=time))
    points = sorted(points)
    prices = [price_set(str(amount), moment, n + 1, currency) for n, (moment, amount, currency) in enumerate(points)]
    book = {"h100": [Price(amount, currency, moment) for moment, amount, currency in points]}
    found = recomputed([*log, *prices])
    for group, by in (("clusters", By.CLUSTER), ("tenants", By.TENANT)):
        ours = of_the_service(log, book, by)
        theirs = {name: entry for name, entry in found[group].items() if entry["seconds"]}
        assert theirs == {name: entry for name, entry in ours.items() if entry["seconds"]}


def test_an_event_that_was_exported_twice_counts_once() -> None:
    log = [started("c1", "m1", BASE), stopped("c1", "m1", BASE + timedelta(hours=1)), price_set("2.00", BASE, 1)]
    once, twice = recomputed(log), recomputed([*log, *log])
    assert once == twice
    assert once["total"] == {
        "seconds": 3600,
        "unpriced_seconds": 0,
        "price_seconds": {"EUR": "7200"},
        "amounts": {"EUR": "2.00"},
    }


def test_it_runs_on_its_own_with_nothing_but_python(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(exported([started("c1", "m1", BASE), stopped("c1", "m1", BASE + timedelta(hours=1))]).getvalue())
    # -I: without the repository on the path, an import of ours would fail.
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), str(log)], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["clusters"]["c1"]["unpriced_seconds"] == 3600


def test_a_machine_that_still_runs_needs_a_time_to_count_until(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text(exported([started("c1", "m1", BASE)]).getvalue())
    done = subprocess.run([sys.executable, str(PROGRAM), str(log)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "--until" in done.stderr
