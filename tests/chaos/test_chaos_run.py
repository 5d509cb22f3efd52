"""A short seeded run of the fault harness on the real system; `make chaos` is the long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import main
from chaos.history import Event, History

PORT_BASE = 29000
LIMIT_SECONDS = 900.0  # A busy machine is slow; what never ends is still noticed.
# The kinds that hurt most in the least time, and a seed that draws each of them once.
KINDS = ("kill", "pause", "break_commit", "lose_tail", "repeat")
SEED = "short-317"


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_the_system_keeps_its_promises_under_a_few_faults(repository: Path, tmp_path: Path) -> None:
    wanted = ["--seed", SEED, "--faults", "5", "--kinds", ",".join(KINDS), "--tenants", "1", "--pace", "0.3"]
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "--out", str(tmp_path), *wanted],
        cwd=repository,
        env={**os.environ, "SLIPWAY_PORT_BASE": str(PORT_BASE)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    print(done.stdout[-12000:], done.stderr[-4000:])
    summary: dict[str, Any] = json.loads((tmp_path / f"seed-{SEED}" / "summary.json").read_text())
    assert summary["broken"] == [] and summary["not_inflicted"] == []
    assert done.returncode == 0
    # Green because it was good, not because there was nothing to look at.
    assert summary["faults"] == dict.fromkeys(KINDS, 1)
    assert summary["messages_dropped_by_the_broker"] > 0 and summary["commits_broken"] > 0
    assert summary["events"] > 100 and summary["deploys"] > 0 and summary["cleans"] > 0
    assert summary["projections_rebuilt"] > 5
    lines = [json.loads(line) for line in (tmp_path / f"seed-{SEED}" / "journal.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines].count("fault ends") == 5


def test_a_kept_history_that_breaks_a_rule_ends_with_1_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = Event(service="cost", position=2, sequence=2, id="e2", type="slipway.cost.price.set", entity="p", version=1)
    History(seed="kept", streams={"cost": (late,)}).write(tmp_path / "history.json")
    assert main(["--judge", str(tmp_path / "history.json")]) == 1
    assert "a_stream_is_gapless_and_in_order: cost: event 1 is missing" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kinds", "earthquake"), "there is no kind of fault earthquake; there are kill"),
        (("--judge", "nowhere.json"), "nowhere.json is no recorded history"),
        (("--seed", "../up"), "give up to 40 letters, digits and dashes"),
        (("--faults", "0"), "give a number from 1 to 10000"),
        (("--pace", "fast"), "give a number from 0 to 100"),
    ],
)
def test_bad_input_is_refused_with_2_and_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert _status(["--out", str(tmp_path), *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def _status(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))
