"""`make chaos`: one or more seeded runs. Exit status 0 when every rule held in every run, 1 when one was broken, 2 for
bad input."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from chaos import report
from chaos.history import History
from chaos.plan import kinds
from chaos.rules import judge
from chaos.run import Outcome, Settings, run
from deploy.local.layout import REPOSITORY
from libs.runtime.logs import set_up_logging
from libs.runtime.processes import StartError

DEFAULT_FAULTS = 40
SEED_BYTES = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """`arguments`: those of the command line when None. Ends with SystemExit(2) when they make no sense."""
    given = _arguments(arguments)
    console = Console()
    # However we are asked to end: what was started is taken down first. A shell in the background has SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    set_up_logging("chaos", "pretty", "error")
    if given.list:
        for kind in kinds().values():
            console.print(f"{kind.name:<16} {kind.what}", markup=False)
        return 0
    if given.judge is not None:
        return _judge(given.judge, console)
    seeds = [given.seed or secrets.token_hex(SEED_BYTES)]
    seeds += [f"{seeds[0]}-{number}" for number in range(2, given.runs + 1)]
    outcomes: list[Outcome] = []
    for seed in seeds:
        settings = Settings(
            seed=seed,
            faults=given.faults,
            out=given.out,
            only=tuple(name for name in given.kinds.split(",") if name),
            hubs=given.hubs,
            tenants_each=given.tenants,
            keep=given.keep,
            pace=given.pace,
        )
        try:
            outcomes.append(_one(settings, console))
        except (StartError, ValueError) as error:
            print(f"chaos: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
    if len(outcomes) > 1:
        report.tell_all(outcomes, console)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make chaos",
        description="Hurt the running system by seeded faults and prove that it keeps its promises.",
        epilog="Results: var/chaos/seed-…/{summary,history}.json and journal.jsonl. See docs/guides/chaos.md.",
    )
    parser.add_argument("--seed", type=_seed, help="plays the same faults again; a new one when left out")
    parser.add_argument("--faults", type=_count, default=DEFAULT_FAULTS, help=f"how many (default {DEFAULT_FAULTS})")
    parser.add_argument("--kinds", default="", help="only these kinds, separated by commas (see --list)")
    parser.add_argument("--hubs", type=int, choices=(1, 3), default=1, help="NATS servers of the hub (default 1)")
    parser.add_argument("--runs", type=_count, default=1, help="that many runs with seeds of their own (default 1)")
    parser.add_argument("--tenants", type=_count, default=3, help="people of each of the two tenants (default 3)")
    parser.add_argument("--pace", type=_pace, default=1.0, help="stretches the pauses between faults (default 1)")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "var" / "chaos", help="where results go")
    parser.add_argument("--keep", action="store_true", help="keep the state and logs of a green run too")
    parser.add_argument("--list", action="store_true", help="list the kinds of faults")
    parser.add_argument("--judge", type=Path, metavar="HISTORY", help="judge a recorded history.json again")
    return parser.parse_args(arguments)


def _seed(text: str) -> str:
    if not text.replace("-", "").isalnum() or len(text) > 40:
        raise argparse.ArgumentTypeError(f"{text!r}: give up to 40 letters, digits and dashes")
    return text


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 1 to 10000")
    return int(text)


def _pace(text: str) -> float:
    try:
        pace = float(text)
    except ValueError:
        pace = -1.0
    if not 0 <= pace <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 0 to 100")
    return pace


def _one(settings: Settings, console: Console) -> Outcome:
    console.print(f"seed {settings.seed}: {settings.faults} faults", markup=False)
    outcome = asyncio.run(
        run(settings, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
    )
    report.write(outcome, settings.folder)
    report.tell(outcome, console)
    return outcome


def _judge(path: Path, console: Console) -> int:
    try:
        found = judge(History.read(path))
    except (OSError, ValidationError) as error:
        print(f"chaos: {path} is no recorded history: {error}", file=sys.stderr)
        return 2
    for broken in found:
        console.print(f"broken: {broken.rule}: {broken.what}", markup=False)
    console.print("every rule holds" if not found else f"{len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
