"""One action for many machines on the command line: looked at first, asked about, then done."""

from __future__ import annotations

from typing import Any

import pytest
from slipway import resources, transport
from slipway.cli import app
from typer.testing import CliRunner, Result

from tests.unit.sdk.conftest import Api
from tests.unit.sdk.documents import OPERATION_ID

pytestmark = pytest.mark.usefixtures("configured")
PATH = "/operator/v1/machine-actions"
WOULD: dict[str, Any] = {
    "operation_id": "",
    "dry_run": True,
    "machines": [{"id": "m1", "name": "n1"}],
    "skipped": [{"id": "m2", "name": "n2", "reason": "n2 is RETIRED"}],
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(resources, "WATCH_EVERY_SECONDS", 0.001)


def bulk(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, ["machines", "bulk", *arguments], input=answer)


def test_a_dry_run_says_what_would_change_and_why_others_would_not(api: Api) -> None:
    api.on("POST", PATH, (200, WOULD))

    result = bulk("hold", "--rack", "r1", "--reason", "cabling", "--dry-run")

    assert "n1" in result.stdout and "n2 is RETIRED" in result.stdout
    assert api.requests[0].body == {
        "action": "hold", "reason": "cabling", "dry_run": True, "rack": ["r1"],
    }  # fmt: skip


def test_nothing_is_done_without_a_yes(api: Api) -> None:
    api.on("POST", PATH, (200, WOULD), (202, {"operation_id": OPERATION_ID, "machines": ["m1"]}))

    refused = bulk("hold", "--rack", "r1", "--reason", "cabling", answer="n\n")
    assert refused.exit_code != 0 and len(api.requests) == 1

    done = bulk("hold", "--rack", "r1", "--reason", "cabling", "--yes")
    assert done.exit_code == 0
    assert "dry_run" not in api.requests[1].body


def test_no_choice_is_not_everything(api: Api) -> None:
    assert bulk("hold", "--reason", "cabling", "--yes").exit_code == 2
    assert api.requests == []
