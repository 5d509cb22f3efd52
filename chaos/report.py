"""What people and programs read of a run: a table, the broken rules with their evidence, a summary in JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.history import History
from chaos.rules import RULES
from chaos.run import Outcome

SHOWN_FIGURES = (
    "messages_dropped_by_the_broker", "commits_broken", "connections_cut", "requests", "tries", "accepted", "events",
    "deploys", "cleans", "projections_rebuilt",
)  # fmt: skip
SHOWN_EVIDENCE = 3
SHOWN_CHARACTERS = 400


def summary(outcome: Outcome) -> dict[str, Any]:
    """The run in figures; `ok` follows from them."""
    settings = outcome.settings
    return {
        "ok": outcome.ok,
        "seed": settings.seed,
        "repeat": repeat(outcome),
        "seconds": round(outcome.seconds, 1),
        "faults": dict(outcome.inflicted),
        "not_inflicted": outcome.not_inflicted,
        "messages_dropped_by_the_broker": outcome.lost,
        "commits_broken": outcome.commits_broken,
        "connections_cut": outcome.connections_cut,
        "restarted_by_supervisor": outcome.restarts,
        "rules": len(RULES),
        "broken": [{"rule": b.rule, "what": b.what, "evidence": list(b.evidence)} for b in outcome.broken],
        **(counted(outcome.history) if outcome.history else {}),
    }


def repeat(outcome: Outcome) -> str:
    """The command that plays the same faults again."""
    settings = outcome.settings
    words = [f"make chaos SEED={settings.seed} FAULTS={settings.faults}"]
    if settings.only:
        words.append(f"KINDS={','.join(settings.only)}")
    if settings.hubs != 1:
        words.append(f"HUBS={settings.hubs}")
    return " ".join(words)


def counted(history: History) -> dict[str, Any]:
    """How much the rules had to look at: a green run of nothing proves nothing."""
    ended = Counter(f"{saga.kind} {saga.status}" for saga in history.sagas)
    return {
        "requests": len(history.requests),
        "tries": sum(request.tries for request in history.requests),
        "accepted": len(history.operations),
        "sagas": dict(sorted(ended.items())),
        "waiting_for_a_human": [f"{s.kind}: {s.waiting_for}" for s in history.sagas if s.phase == "parked"],
        "events": sum(len(events) for events in history.streams.values()),
        "events_seen_on_the_wire": len(history.witnessed),
        "deploys": sum(1 for act in history.site if act.what == "deploy"),
        "cleans": sum(1 for act in history.site if act.what == "clean"),
        "projections_rebuilt": len(history.rebuilt),
    }


def tell(outcome: Outcome, console: Console) -> None:
    """Table, and what is broken."""
    figures = summary(outcome)
    table = Table(title=f"chaos, seed {outcome.settings.seed}", title_justify="left", show_header=False)
    table.add_row("faults", ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.inflicted.items())))
    for name in SHOWN_FIGURES:
        table.add_row(name.replace("_", " "), str(figures.get(name, 0)))
    table.add_row("sagas", "\n".join(f"{name} {count}" for name, count in figures.get("sagas", {}).items()))
    table.add_row("waiting for a human", "\n".join(figures.get("waiting_for_a_human", [])) or "none")
    table.add_row("rules", f"{len(RULES)}, broken: {len({broken.rule for broken in outcome.broken})}")
    table.add_row("seconds", f"{outcome.seconds:.0f}")
    console.print(table)
    for line in outcome.not_inflicted:
        console.print(f"could not be inflicted: {line}", style="red", markup=False)
    for broken in outcome.broken:
        console.print(f"broken: {broken.rule}: {broken.what}", style="red", markup=False)
        for line in broken.evidence[:SHOWN_EVIDENCE]:
            console.print(f"    {line[:SHOWN_CHARACTERS]}", markup=False)
    word = "green" if outcome.ok else "RED"
    console.print(f"{word}; repeat with: {repeat(outcome)}", markup=False, soft_wrap=True)


def write(outcome: Outcome, folder: Path) -> Path:
    """summary.json of one run."""
    path = folder / "summary.json"
    path.write_text(json.dumps(summary(outcome), indent=2) + "\n")
    return path


def tell_all(outcomes: Sequence[Outcome], console: Console) -> None:
    """One line a run."""
    table = Table(title="all runs", title_justify="left")
    for column in ("seed", "faults", "accepted", "events", "seconds", "result"):
        table.add_column(column)
    for outcome in outcomes:
        figures = summary(outcome)
        rules = ", ".join(sorted({broken.rule for broken in outcome.broken})) or "not all faults inflicted"
        table.add_row(
            outcome.settings.seed,
            str(sum(outcome.inflicted.values())),
            str(figures.get("accepted", 0)),
            str(figures.get("events", 0)),
            f"{outcome.seconds:.0f}",
            "green" if outcome.ok else f"RED: {rules}",
        )
    console.print(table)
