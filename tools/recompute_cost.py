#!/usr/bin/env python3
"""Recompute what was used and what it costs from an exported event log alone.

Reads events (CloudEvents, one JSON document a line, in the order of the export) from files or standard input and
prints a JSON document: node-seconds and cost of every cluster and tenant. It shares no code with Slipway and needs
only Python, so that a tenant or an auditor can check the bill without trusting who wrote it.

    slipway events export --out events.jsonl
    python3 tools/recompute_cost.py events.jsonl

Rules (docs/architecture/cost.md): a machine is billed from `at` of node_started to `at` of node_stopped (exclusive),
both cut to whole UTC seconds; the last word on when it stopped counts; a repeated start is ignored; a stop without
a start bills nothing; each second at the price valid in it; exact decimals, divided by 3,600 and rounded half to even
once, at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, getcontext
from fractions import Fraction
from typing import Any

getcontext().prec = 60

STARTED = "slipway.provisioning.cluster.node_started"
STOPPED = "slipway.provisioning.cluster.node_stopped"
PRICE_SET = "slipway.cost.price.set"


def epoch(text: str) -> int:
    """Whole Unix seconds of an RFC 3339 time, cut, never rounded."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    since = moment.astimezone(UTC).replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86400 + since.seconds


def read_events(streams: Iterable[Iterable[str]]) -> Iterator[dict[str, Any]]:
    """Events of the log, each once, whatever was exported twice."""
    seen: set[str] = set()
    for stream in streams:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line, parse_float=Decimal)
                identity = event["id"]
            except (ValueError, KeyError, TypeError) as error:
                raise SystemExit(f"{getattr(stream, 'name', 'input')}, line {number}: no event: {error}") from error
            if identity not in seen:
                seen.add(identity)
                yield event


Interval = dict[str, Any]
Prices = dict[str, dict[int, tuple[Fraction, str]]]


def intervals_and_prices(events: Iterable[dict[str, Any]]) -> tuple[list[Interval], Prices]:
    """(intervals, prices): intervals are dicts with start and stop (None: still running), in order of their start."""
    running: dict[tuple[str, str], Interval] = {}  # (cluster, machine) -> its latest interval, running or stopped
    intervals: list[Interval] = []
    prices: Prices = defaultdict(dict)  # profile -> {valid_from: (price, currency)}
    for event in events:
        data = event["data"]
        if event["type"] == PRICE_SET:
            price = data["price"]
            amount = Fraction(Decimal(str(price["price_per_machine_hour"])))
            prices[price["profile"]][epoch(price["valid_from"])] = (amount, price["currency"])
        elif event["type"] == STARTED:
            key, at = (data["cluster"]["id"], data["machine_id"]), epoch(data["at"])
            last = running.get(key)
            if last is not None:
                if at == last["start"] or last["stop"] is None:
                    continue
                at = max(at, last["stop"])
            interval = {
                "cluster": key[0],
                "machine": key[1],
                "tenant": data["cluster"]["tenant"],
                "profile": data["profile"],
                "start": at,
                "stop": None,
            }
            running[key] = interval
            intervals.append(interval)
        elif event["type"] == STOPPED:
            last = running.get((data["cluster"]["id"], data["machine_id"]))
            if last is not None:
                last["stop"] = max(epoch(data["at"]), last["start"])
    return intervals, prices


def priced_parts(interval: Interval, prices: Prices, until: int | None) -> Iterator[tuple[int, Fraction | None, str]]:
    """(seconds, price or None, currency) for each price the interval saw."""
    start = interval["start"]
    stop = (
        until if interval["stop"] is None else min(interval["stop"], until) if until is not None else interval["stop"]
    )
    if stop is None:
        raise SystemExit(
            f"machine {interval['machine']} of cluster {interval['cluster']} is still running at the end of the log: "
            "say until when to count with --until"
        )
    changes = sorted(prices.get(interval["profile"], {}).items())
    for index, (valid_from, (price, currency)) in enumerate(changes):
        if index == 0 and start < min(valid_from, stop):
            yield min(valid_from, stop) - start, None, ""
        left = max(start, valid_from)
        right = min(stop, changes[index + 1][0]) if index + 1 < len(changes) else stop
        if left < right:
            yield right - left, price, currency
    if not changes and start < stop:
        yield stop - start, None, ""


def rounded(amount: Fraction) -> str:
    """Hundredths of a currency's unit, half to even, as text."""
    exact = Decimal(amount.numerator) / Decimal(amount.denominator)
    return format(exact.quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN), "f")


def exact_text(price_seconds: Fraction) -> str:
    """Price x seconds, exactly: prices are decimals, so this always ends."""
    value = Decimal(price_seconds.numerator) / Decimal(price_seconds.denominator)
    return format(value.normalize(), "f") if value else "0"


def recompute(events: Iterable[dict[str, Any]], until: int | None = None) -> dict[str, Any]:
    """The document that is printed."""
    intervals, prices = intervals_and_prices(events)
    sums: dict[str, dict[str, dict[str, Any]]] = {"clusters": {}, "tenants": {}, "all": {}}
    for interval in intervals:
        keys = (("clusters", interval["cluster"]), ("tenants", interval["tenant"]), ("all", "all"))
        for seconds, price, currency in priced_parts(interval, prices, until):
            for group, key in keys:
                entry = sums[group].setdefault(key, {"seconds": 0, "unpriced_seconds": 0, "exact": {}})
                entry["seconds"] += seconds
                if price is None:
                    entry["unpriced_seconds"] += seconds
                else:
                    entry["exact"][currency] = entry["exact"].get(currency, Fraction(0)) + price * seconds
    for entries in sums.values():
        for entry in entries.values():
            exact = entry.pop("exact")
            entry["price_seconds"] = {currency: exact_text(exact[currency]) for currency in sorted(exact)}
            entry["amounts"] = {currency: rounded(exact[currency] / 3600) for currency in sorted(exact)}
    total = sums.pop("all").get("all", {"seconds": 0, "unpriced_seconds": 0, "amounts": {}, "price_seconds": {}})
    return {"clusters": sums["clusters"], "tenants": sums["tenants"], "total": total}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("files", nargs="*", help="event logs, one JSON document a line; standard input when left out")
    parser.add_argument("--until", help="count running machines until this time, and nothing after it (RFC 3339)")
    options = parser.parse_args(arguments)
    until = epoch(options.until) if options.until else None
    with contextlib.ExitStack() as opened:
        streams: list[Any] = [opened.enter_context(open(name, encoding="utf-8")) for name in options.files] or [
            sys.stdin
        ]
        result = recompute(read_events(streams), until)
    json.dump(result, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
