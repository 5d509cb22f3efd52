"""`slipway drift …`, `machines stuck | give-up | power`: what is asked, what is shown, how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slipway.cli import app
from typer.testing import CliRunner, Result

from tests.unit.sdk.conftest import Api

pytestmark = pytest.mark.usefixtures("configured")
OPERATOR = "/operator/v1"
LIST = f"{OPERATOR}/violations"
VIOLATION: dict[str, Any] = {
    "id": "v-1",
    "invariant": "available-on",
    "severity": "critical",
    "state": "OPEN",
    "site": "fra1",
    "name": "fra1-r1-gpu-01",
    "title": "An AVAILABLE machine is off",
    "explanation": "Nothing of ours boots it.",
    "ours": "off",
    "theirs": "on",
    "does": "wipes it",
    "command": "slipway drift repair v-1",
    "first_seen_at": "2026-03-01T12:00:00Z",
}


def slipway(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_list_shows_both_values_and_asks_for_what_is_open(api: Api) -> None:
    api.on("GET", LIST, (200, {"items": [VIOLATION], "next_cursor": None}))
    done = slipway("drift", "list", "--severity", "critical")
    assert done.exit_code == 0, done.output
    assert all(word in done.stdout for word in ("fra1-r1-gpu-01", "available-on", "SHOULD BE", "critical"))
    (request,) = api.asked(LIST)
    assert "state" not in request.query and request.query["severity"] == ["critical"]


def test_nothing_open_names_where_to_see_what_could_not_be_judged(api: Api) -> None:
    api.on("GET", LIST, (200, {"items": [], "next_cursor": None}))
    assert "slipway drift invariants" in slipway("drift", "list").stdout


def test_one_is_explained_with_the_command_that_repairs_it(api: Api) -> None:
    api.on("GET", f"{LIST}/v-1", (200, VIOLATION))
    done = slipway("drift", "show", "v-1")
    assert "Nothing of ours boots it." in done.stdout and "slipway drift repair v-1" in done.stdout


def test_a_dry_run_says_what_would_be_done_and_a_repair_wants_a_yes(api: Api) -> None:
    begun = {"violation": "v-1", "name": "fra1-r1-gpu-01", "does": "wipes it", "operation_id": None}
    api.on("POST", f"{LIST}/v-1/repair", (200, begun), (200, begun), (202, {**begun, "operation_id": "op-inv-1"}))
    tried = slipway("drift", "repair", "v-1", "--dry-run")
    assert tried.exit_code == 0 and "Nothing was done." in tried.stdout
    assert slipway("drift", "repair", "v-1").exit_code == 2
    done = slipway("drift", "repair", "v-1", "--yes")
    assert done.exit_code == 0 and "op-inv-1" in done.stdout
    assert [request.body["dry_run"] for request in api.asked(f"{LIST}/v-1/repair")] == [True, True, False]


def test_what_is_stuck_comes_with_the_command_to_run(api: Api) -> None:
    row = {
        "name": "fra1-r1-gpu-04",
        "state": "FAILED",
        "since": "2026-03-01T12:00:00+00:00",
        "over": True,
        "turn": "person",
        "why": "PSU 2 is dead",
        "command": "slipway machines retry fra1-r1-gpu-04",
    }
    api.on("GET", f"{OPERATOR}/stuck-machines", (200, {"items": [row], "next_cursor": None}))
    done = slipway("machines", "stuck", "--over", "--json")
    assert json.loads(done.stdout)["items"][0]["command"] == row["command"]
    assert "PSU 2 is dead" in slipway("machines", "stuck").stdout
    assert api.asked(f"{OPERATOR}/stuck-machines")[0].query["over"] == ["true"]


def test_a_power_state_that_is_none_is_refused_before_anybody_is_asked(api: Api) -> None:
    assert slipway("machines", "power", "gpu-1", "up", "--reason", "a test").exit_code == 2
