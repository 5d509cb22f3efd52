"""`slipway dead-letters | restore | projections rebuild | events replay`: what is sent, what is shown, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slipway import resources, transport
from slipway.cli import app, replaying
from typer.testing import CliRunner, Result

from tests.unit.sdk.conftest import Api

pytestmark = pytest.mark.usefixtures("configured")
OPERATOR = "/operator/v1"
LETTERS = f"{OPERATOR}/services/inventory/dead-letters"
LETTER = {
    "id": "7",
    "message_id": "0190",
    "type": "slipway.command.inventory.enrol_machine",
    "subject": "cmd.inventory.enrol_machine.v1",
    "key": "m-1",
    "cause": "handler_failed",
    "error": "RuntimeError('no route to host')",
    "attempts": 8,
    "waiting_behind": 3,
    "received_at": "2026-11-30T10:00:00+00:00",
    "dead_at": "2026-11-30T10:04:00+00:00",
    "original": {"id": "0190", "data": {"machine_id": "m-1"}},
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(resources, "WATCH_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(replaying, "WATCH_SECONDS", 0.001)


def slipway(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=typed)


def page(*items: Any, cursor: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": cursor}


def test_dead_letters_are_listed_over_all_pages_with_what_waits_behind_them(api: Api) -> None:
    api.on("GET", LETTERS, (200, page(LETTER, cursor="7")), (200, page({**LETTER, "id": "9", "waiting_behind": 0})))
    listed = slipway("dead-letters", "list", "--service", "inventory", "--cause", "handler_failed", "--json")
    assert [item["id"] for item in json.loads(listed.stdout)["items"]] == ["7", "9"]
    assert [request.query for request in api.asked(LETTERS)] == [
        {"cause": ["handler_failed"]},
        {"cause": ["handler_failed"], "cursor": ["7"]},
    ]
    api.on("GET", LETTERS, (200, page(LETTER)))
    table = slipway("dead-letters", "list", "--service", "inventory").stdout
    assert "WAITING" in table and "handler_failed" in table and "no route to" in table


def test_a_dead_letter_is_shown_with_its_message_and_history(api: Api) -> None:
    action = {"at": "2026-11-30T11:00:00Z", "action": "redriven", "reason": "again", "actor": "user:op"}
    shown = {**LETTER, "as_it_is": None, "waiting": [{"id": 8}], "history": [action]}
    api.on("GET", f"{LETTERS}/7", (200, shown))
    text = slipway("dead-letters", "show", "inventory", "7").stdout
    assert "no route to host" in text and '"machine_id": "m-1"' in text and "user:op" in text


def test_a_dead_letter_is_driven_again_edited_from_a_file(api: Api, tmp_path: Path) -> None:
    api.on("POST", f"{LETTERS}/7/redrive", (202, {"id": "7", "edited": True, "released": 3}))
    file = tmp_path / "data.json"
    file.write_text('{"machine_id": "m-2"}')
    done = slipway("dead-letters", "redrive", "inventory", "7", "--data", f"@{file}", "--reason", "wrong machine")
    assert done.exit_code == 0 and "3 waiting behind it follow" in done.stdout
    assert api.requests[-1].body == {"reason": "wrong machine", "data": {"machine_id": "m-2"}}
    plain = slipway("dead-letters", "redrive", "inventory", "7")
    assert plain.exit_code == 0 and api.requests[-1].body == {}
    assert slipway("dead-letters", "redrive", "inventory", "7", "--data", "[1]", "-r", "x").exit_code == 2
    assert slipway("dead-letters", "redrive", "inventory", "7", "--data", "@/none", "-r", "x").exit_code == 2
    assert slipway("dead-letters", "redrive", "inventory", "7", "--all").exit_code == 2


def test_many_are_driven_again_only_by_a_filter_or_with_all(api: Api) -> None:
    assert slipway("dead-letters", "redrive", "inventory").exit_code == 2
    line = {name: LETTER[name] for name in ("id", "type", "key", "cause", "error", "waiting_behind")}
    answer = {"dry_run": True, "redriven": 1, "items": [line], "not_redriven": [{"id": "9"}], "more": True}
    api.on("POST", f"{LETTERS}/redrive", (202, answer))
    shown = slipway("dead-letters", "redrive", "inventory", "--error", "no route", "--dry-run")
    assert api.requests[-1].body == {"error": "no route", "dry_run": True}
    assert "1 would be handled again" in shown.stdout and "run the command again" in shown.stdout
    slipway("dead-letters", "redrive", "inventory", "--all", "--reason", "network is back")
    assert api.requests[-1].body == {"all": True, "reason": "network is back"}


def test_dropping_asks_and_takes_no_for_an_answer(api: Api) -> None:
    api.on("POST", f"{LETTERS}/7/drop", (200, {"id": "7", "released": 2}))
    assert slipway("dead-letters", "drop", "inventory", "7", "--reason", "sold", typed="n\n").exit_code != 0
    assert api.requests == []
    done = slipway("dead-letters", "drop", "inventory", "7", "--reason", "sold", "--yes")
    assert done.exit_code == 0 and api.requests[-1].body == {"reason": "sold"}
    assert slipway("dead-letters", "drop", "inventory", "7", "--yes").exit_code == 2, "a reason is needed"


def test_a_service_that_waits_after_a_restore_is_shown_and_accepted_by_its_epoch(api: Api) -> None:
    lost = {"entity": "machine", "id": "m-1", "tenant": "-", "first_version": 5, "last_version": 8}
    lost |= {"last_type": "state_changed", "last_time": "2026-11-30T11:00:00+00:00", "events": 4}
    waits = {"service": "inventory", "waiting": True, "epoch": 2, "own_last": 10, "stream_last": 14, "lost_events": 4}
    waits |= {"detected_at": "2026-11-30T12:00:00+00:00", "open_sagas": 3, "set_aside_messages": 1}
    path = f"{OPERATOR}/services/inventory/restore"
    api.on(
        "GET",
        path,
        (200, {**waits, **page(lost, cursor="machine:m-1")}),
        (200, {**waits, **page({**lost, "id": "m-2"})}),
    )
    shown = slipway("restore", "show", "inventory")
    assert shown.exit_code == 1, "somebody must act"
    assert "5–8" in shown.stdout and "m-2" in shown.stdout and "--epoch 2" in shown.stdout
    api.on("GET", path, (200, {"service": "inventory", "waiting": False, "epoch": 2, **page()}))
    assert slipway("restore", "show", "inventory").exit_code == 0
    done = {"service": "inventory", "epoch": 2, "goes_on_after": 14, "parked_sagas": 3, "not_found": ["machine m-9"]}
    api.on("POST", f"{path}/accept", (200, {**done, "not_found_count": 1}))
    accepted = slipway("restore", "accept", "inventory", "--epoch", "2", "--reason", "INC-1", "--yes")
    assert accepted.exit_code == 0 and api.requests[-1].body == {"epoch": 2, "reason": "INC-1"}
    assert "after event 14" in accepted.stdout and "machine m-9" in accepted.stdout
    assert slipway("restore", "accept", "inventory", "--reason", "x", "--yes").exit_code == 2, "which epoch?"


REBUILT = {"projection": "pool", "state": "done", "swap": True, "progress": 1.0, "events": 9, "seconds": 1.0}
REBUILT |= {"digest_live": "aa", "digest_rebuilt": "bb", "equal": False, "error": None}
POOL = f"{OPERATOR}/projections/reservation/pool/rebuild"


def test_a_long_rebuild_is_followed_to_its_end_and_a_swap_says_what_it_changed(api: Api) -> None:
    api.on("POST", POOL, (202, {**REBUILT, "state": "running", "progress": 0.4, "equal": None, "changes": None}))
    swapped = {**REBUILT, "changes": {"pool": {"removed": 1, "added": 2}}}
    api.on("GET", POOL, (200, {**REBUILT, "state": "running", "progress": 0.8, "equal": None}), (200, swapped))
    done = slipway("projections", "rebuild", "reservation", "pool", "--swap", "--yes")
    assert done.exit_code == 0 and "swapped (3 row changes)" in done.stdout
    assert api.asked(POOL)[0].body == {"swap": True}
    api.on("GET", POOL, (200, {**REBUILT, "state": "failed", "equal": None, "error": "ValueError('x')"}))
    failed = slipway("projections", "rebuild", "reservation", "pool")
    assert failed.exit_code == 1 and "FAILED" in failed.stdout


def test_a_replay_goes_onto_a_subject_or_into_a_projection(api: Api) -> None:
    assert slipway("events", "replay").exit_code == 2
    assert slipway("events", "replay", "--to-subject", "a", "--out", "b").exit_code == 2
    assert slipway("events", "replay", "--to-projection", "reservation.pool", "--since", "2026-11-30").exit_code == 2
    path = f"{OPERATOR}/services/inventory/replays"
    begun = {"id": "rpl-1", "state": "running", "subject": "replay.x.>", "progress": 0.0, "published": 0}
    begun |= {"started_at": "2026-11-30T11:00:00+00:00", "position": 0, "last": 9}
    api.on("POST", path, (202, begun))
    api.on("GET", f"{path}/rpl-1", (200, begun), (200, {**begun, "state": "done", "progress": 1.0, "published": 4}))
    done = slipway(
        *("events", "replay", "--to-subject", "x", "--service", "inventory"),
        *("--entity", "m-1", "--from-sequence", "3", "--since", "2026-11-30T10:00Z"),
    )
    assert done.exit_code == 0 and "replay.x.>" in done.stdout
    wanted = {"name": "x", "entity": ["m-1"], "first": 3, "since": "2026-11-30T10:00:00+00:00"}
    assert api.requests[0].body == wanted
    api.on("GET", path, (200, page({**begun, "state": "done"})))
    assert "rpl-1" in slipway("events", "replays", "--service", "inventory").stdout
    api.on("POST", f"{path}/rpl-1/cancel", (200, {**begun, "state": "cancelled", "position": 4}))
    assert "4 of 9" in slipway("events", "replays", "--service", "inventory", "--cancel", "rpl-1").stdout
    api.on("POST", POOL, (200, {**REBUILT, "changes": None, "equal": True}))
    assert slipway("events", "replay", "--to-projection", "reservation.pool", "--yes").exit_code == 0
