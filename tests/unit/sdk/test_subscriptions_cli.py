"""`slipway subscribers` and `slipway webhooks`: what is shown once, and what to do when it was lost."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from slipway.cli import app
from slipway.cli.exits import Exit
from typer.testing import CliRunner

from tests.unit.sdk.conftest import Api

CREDENTIALS = {
    "server": "nats://hub:4222",
    "user": "sbr-1",
    "password": "secret-1",
    "stream": "EVT",
    "consumer": "sbr-1_g1",
    "inbox_prefix": "_INBOX_1",
}
SUBSCRIBER: dict[str, Any] = {"id": "sbr-1", "name": "reader", "state": "ACTIVE", "subjects": ["evt.*.acme.>"]}
WEBHOOK: dict[str, Any] = {"id": "whk-1", "name": "hook", "state": "ACTIVE", "url": "https://a.example/x"}
run = CliRunner().invoke


@pytest.fixture(autouse=True)
def known(api: Api, configured: Path) -> None:
    api.on("GET", "/v1/subscribers/sbr-1", (200, SUBSCRIBER))


def test_credentials_go_to_a_file_that_only_its_owner_reads(api: Api, tmp_path: Path) -> None:
    api.on("POST", "/v1/subscribers", (201, {**SUBSCRIBER, "credentials": CREDENTIALS}))
    out = tmp_path / "reader.json"
    done = run(app, ["subscribers", "create", "reader", "--subject", "evt.*.acme.>", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text()) == CREDENTIALS
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "secret-1" not in done.output
    assert api.asked("/v1/subscribers")[0].body["subjects"] == ["evt.*.acme.>"]


def test_credentials_whose_answer_was_lost_are_to_be_made_anew(api: Api) -> None:
    api.on("POST", "/v1/subscribers", (201, {**SUBSCRIBER, "credentials": None}))
    done = run(app, ["subscribers", "create", "reader"])
    assert done.exit_code == Exit.USAGE
    assert "slipway subscribers rotate reader" in done.output


def test_cutting_off_without_a_grace_is_asked_for_first(api: Api) -> None:
    done = run(app, ["subscribers", "rotate", "reader"])
    assert done.exit_code == Exit.USAGE
    assert api.requests == []


@pytest.mark.parametrize(("grace", "seconds"), [("90s", 90), ("15m", 900), ("1h", 3600), ("2d", 172_800)])
def test_a_grace_is_a_number_and_a_unit(api: Api, grace: str, seconds: int) -> None:
    api.on("POST", "/v1/subscribers/reader/rotate", (200, {**SUBSCRIBER, "credentials": CREDENTIALS}))
    assert run(app, ["subscribers", "rotate", "reader", "--grace", grace]).exit_code == 0
    assert api.asked("/v1/subscribers/reader/rotate")[0].body == {"grace_seconds": seconds}


def test_a_grace_that_is_none_is_refused_with_an_example() -> None:
    done = run(app, ["subscribers", "rotate", "reader", "--grace", "soon"])
    assert done.exit_code == Exit.USAGE
    assert "1h" in done.output


def test_a_ping_that_fails_ends_with_one_and_the_reason(api: Api) -> None:
    api.on("POST", "/v1/webhooks/hook/test", (202, {"webhook_id": "whk-1", "delivery_id": 7}))
    waiting = (200, {"id": 7, "state": "WAITING"})
    failed = (200, {"id": 7, "state": "GIVEN_UP", "error": "answered 401: no"})
    api.on("GET", "/v1/webhooks/hook/deliveries/7", waiting, failed)
    done = run(app, ["webhooks", "test", "hook"])
    assert done.exit_code == Exit.FAILED
    assert "answered 401" in done.output


def test_a_list_shows_what_is_wrong(api: Api) -> None:
    disabled = {**WEBHOOK, "state": "DISABLED", "problem": "the receiver answered 410 Gone"}
    failing = {**WEBHOOK, "id": "whk-2", "name": "other", "failures": 4, "last_error": "no answer within 10 s"}
    api.on("GET", "/v1/webhooks", (200, {"items": [disabled, failing], "next_cursor": None}))
    done = run(app, ["webhooks", "list"], env={"COLUMNS": "200"})
    assert "410 Gone" in done.output
    assert "FAILING" in done.output
    assert "no answer within 10 s" in done.output


@pytest.mark.parametrize("arguments", [[], ["--since", "2026-11-30", "--begin", "start"], ["--service", "cost"]])
def test_a_replay_needs_one_place_to_begin(api: Api, arguments: list[str]) -> None:
    done = run(app, ["webhooks", "replay", "hook", "--yes", *arguments])
    assert done.exit_code == Exit.USAGE
    assert api.requests == []
