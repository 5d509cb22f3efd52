"""The fleet as CSV and JSON Lines: every page, whole files only, and no cell that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from slipway import transport
from slipway.cli import app
from typer.testing import CliRunner, Result

from tests.unit.sdk.conftest import Api
from tests.unit.sdk.documents import MACHINES

pytestmark = pytest.mark.usefixtures("configured")
PATH = "/operator/v1/machines"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT_SECONDS", 0.001)


def export(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["machines", "export", *arguments])


def page(*items: Any, cursor: str | None = None) -> tuple[int, dict[str, Any]]:
    return 200, {"items": list(items), "next_cursor": cursor, "as_of": None}


def test_every_page_becomes_lines_of_csv(api: Api) -> None:
    api.on("GET", PATH, page(MACHINES[0], cursor="more"), page({**MACHINES[1], "name": "=1+1", "tenant": "-"}))

    result = export("--state", "FAILED", "--held", "--tenant", "acme", "-q", "gpu-04 r1")

    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["id"] for row in rows] == [machine["id"] for machine in MACHINES]
    assert (rows[1]["name"], rows[1]["tenant"], rows[1]["failed_step"]) == ("'=1+1", "-", "enrol")
    assert "2 machines" in result.stderr
    wanted = {"state": ["FAILED"], "held": ["yes"], "tenant": ["acme"], "q": ["gpu-04 r1"], "limit": ["200"]}
    assert api.requests[0].query == wanted
    assert api.requests[1].query == {**wanted, "cursor": ["more"]}


def test_json_lines_are_the_apis_own_documents(api: Api) -> None:
    api.on("GET", PATH, page(*MACHINES))

    assert [json.loads(line) for line in export("--format", "json").stdout.splitlines()] == MACHINES


def test_a_file_is_whole_or_the_one_that_was_there(api: Api, tmp_path: Path) -> None:
    out = tmp_path / "fleet.csv"
    out.write_text("yesterday's")
    problem = {"code": "service.unavailable", "message": "inventory does not answer", "next_step": "Try again."}
    api.on("GET", PATH, page(MACHINES[0], cursor="more"), (403, problem))

    assert export("--out", str(out)).exit_code != 0
    assert out.read_text() == "yesterday's"

    api.on("GET", PATH, page(*MACHINES))
    assert export("--out", str(out)).exit_code == 0
    assert len(out.read_text().splitlines()) == 3
