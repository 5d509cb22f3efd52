"""`slipway audit`, `events verify`, `events export` and `--at` against a stand-in of the API."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from slipway import exports, transport
from slipway.cli import app
from slipway.proof import without_digest
from typer.testing import CliRunner, Result

from tests.unit.sdk.conftest import Api, Request
from tests.unit.sdk.documents import CLUSTER, CLUSTER_ID, MACHINES
from tests.unit.sdk.test_verification import PUBLIC, Export, checkpoints

pytestmark = pytest.mark.usefixtures("configured")
TENANT, OPERATOR = "/v1", "/operator/v1"
POLICY = {
    "version": 1,
    "keep_days": 365,
    "reason": "books",
    "set_by": "user:ada",
    "set_at": "2026-03-01T00:00:00Z",
    "in_force_at": "2026-03-02T00:00:00Z",
}
HOLD = {"id": "hld-1", "kind": "entity", "value": "m1", "reason": "case", "placed_by": "user:ada", "matches_now": False}
EVENT_OF = {
    "at": "2026-03-01T10:00:00+00:00",
    "id": "e7",
    "service": "inventory",
    "sequence": 7,
    "time": "2026-03-01T09:00:00+00:00",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT_SECONDS", 0.001)


def slipway(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": None}


@pytest.mark.parametrize("when", ["2026-03-01T10:00Z", "2026-03-01T10:00", "2026-03-01T12:00+02:00"])
def test_the_past_is_asked_for_in_utc_and_says_which_event_it_is_from(api: Api, when: str) -> None:
    api.on("GET", f"{OPERATOR}/machines/fra1-r1-u01", (200, {**MACHINES[0], "as_of_event": EVENT_OF}))
    api.on("GET", f"{TENANT}/clusters/train", (200, {**CLUSTER, "as_of_event": EVENT_OF}))
    shown = slipway("machines", "show", "fra1-r1-u01", "--at", when)
    assert "event inventory 7 of 2026-03-01T09:00:00" in " ".join(shown.stdout.split())
    assert slipway("--context", "test", "clusters", "show", "train", "--at", when, "--json").exit_code == 0
    asked = [request.query["at"] for request in api.requests]
    assert [each[0][-6:] in ("+00:00", "+02:00") for each in asked] == [True, True]


def test_an_instant_that_is_none_is_a_usage_error_with_an_example() -> None:
    result = slipway("machines", "show", "m", "--at", "noon")
    assert (result.exit_code, "2026-11-30T10:00Z" in result.stderr) == (2, True)


def test_a_cluster_without_an_instant_is_found_as_before(api: Api) -> None:
    api.on("GET", f"{TENANT}/clusters/{CLUSTER_ID}", (200, CLUSTER))
    assert slipway("clusters", "show", CLUSTER_ID).exit_code == 0
    assert "at" not in api.requests[-1].query


# -- verify online ----------------------------------------------------------------------------------


def store(api: Api, export: Export, pages: dict[int, dict[str, Any]]) -> None:
    """A store of twelve events whose walks, by where they begin, are answered with `pages`."""
    last = {"service": "inventory", "last_sequence": 12, "digest": "", "checkpoint": 2, "signed_up_to": 10}
    for door in (OPERATOR, TENANT):
        api.on("GET", f"{door}/audit/keys", (200, {"keys": [PUBLIC]}))
    api.on("GET", f"{OPERATOR}/audit/checkpoints", (200, page(*checkpoints(export.honest))))
    api.on("GET", f"{OPERATOR}/audit/removals", (200, page()))

    def walk(request: Request) -> tuple[int, Any]:
        if "service" not in request.query:
            return 200, page(last)
        return 200, pages[int(request.query["after"][0])]

    api.on("GET", f"{OPERATOR}/audit/chain", walk)


def stretch(export: Export, sequence: int, checked: int, *problems: Any) -> dict[str, Any]:
    digest = without_digest(export.honest[sequence - 1])[1]
    document = {"service": "inventory", "checked": checked, "sequence": sequence, "digest": digest}
    return {**document, "problems": list(problems), "more": False}


def test_the_store_is_walked_from_checkpoint_to_checkpoint(api: Api, tmp_path: Path) -> None:
    export = Export(tmp_path)
    store(api, export, {0: stretch(export, 5, 5), 5: stretch(export, 10, 5), 10: stretch(export, 12, 2)})
    result = slipway("events", "verify", "--service", "inventory", "--json")
    assert result.exit_code == 0, result.output
    [line] = json.loads(result.stdout)["services"]
    assert (line["checked"], line["signed_up_to"], line["problems"]) == (12, 10, 0)
    walks = [request.query for request in api.asked(f"{OPERATOR}/audit/chain") if "after" in request.query]
    assert [(walk["after"], walk.get("until")) for walk in walks] == [(["0"], ["5"]), (["5"], ["10"]), (["10"], None)]


def test_what_the_walk_finds_ends_with_1(api: Api, tmp_path: Path) -> None:
    export = Export(tmp_path)
    found = {"kind": "altered", "service": "inventory", "sequence": 7, "expected": "a", "found": "b", "message": "It."}
    pages = {0: stretch(export, 5, 5), 5: stretch(export, 10, 5, found), 10: stretch(export, 12, 2)}
    store(api, export, pages)
    result = slipway("events", "verify")
    assert result.exit_code == 1
    assert "altered  inventory 7  It." in result.stdout


def test_a_store_that_lies_about_its_digests_or_its_end_is_found_by_its_checkpoints(api: Api, tmp_path: Path) -> None:
    export = Export(tmp_path)
    lie = {**stretch(export, 10, 5), "digest": "0" * 64}
    store(api, export, {0: stretch(export, 5, 5), 5: lie, 10: stretch(export, 12, 2)})
    assert "rewritten  inventory 10" in slipway("events", "verify").stdout
    store(api, export, {0: stretch(export, 5, 5), 5: {**stretch(export, 5, 0), "sequence": 5}})
    assert "truncated  inventory 10" in slipway("events", "verify").stdout


def test_an_unknown_service_is_refused_by_name(api: Api, tmp_path: Path) -> None:
    export = Export(tmp_path)
    store(api, export, {})
    result = slipway("events", "verify", "--service", "inventroy")
    assert (result.exit_code, "There is no chain of inventroy" in result.stderr) == (2, True)


# -- audit ------------------------------------------------------------------------------------------


def test_setting_retention_shows_what_would_go_and_wants_a_yes(api: Api) -> None:
    preview = {"keep_days": 365, "items": [], "removed": 9, "held": 1}
    api.on("GET", f"{OPERATOR}/audit/retention/preview", (200, preview))
    api.on("GET", f"{OPERATOR}/audit/retention", (200, {"in_force": None, "pending": None, "history": [POLICY]}))
    api.on("PUT", f"{OPERATOR}/audit/retention", (200, {**POLICY, "version": 2}))
    arguments = ("audit", "retention", "set", "--keep-days", "365", "--reason", "books")
    asked = slipway(*arguments)
    assert (asked.exit_code, api.asked(f"{OPERATOR}/audit/retention")) == (2, [])
    dry = slipway(*arguments, "--dry-run")
    assert "9 events would go, 1 are kept by holds" in dry.stdout
    assert all(request.method == "GET" for request in api.requests)
    done = slipway(*arguments, "--yes")
    assert "Events are kept 365 days from 2026-03-02" in done.stdout
    sent = api.requests[-1]
    assert (sent.method, sent.body, sent.headers["If-Match"]) == ("PUT", {"keep_days": 365, "reason": "books"}, '"1"')
    assert slipway("audit", "retention", "set", "--for-ever", "--reason", "case").exit_code == 0
    assert api.requests[-1].body == {"keep_days": None, "reason": "case"}
    for wrong in ((), ("--for-ever", "--keep-days", "90")):
        assert slipway("audit", "retention", "set", "--reason", "x", *wrong).exit_code == 2


def test_a_round_of_retention_goes_on_until_it_is_over(api: Api) -> None:
    api.on(
        "POST",
        f"{OPERATOR}/audit/retention/run",
        (200, {"removed": 5, "held": 1, "next_cursor": "cost:0"}),
        (200, {"removed": 2, "held": 0, "next_cursor": None}),
    )
    result = slipway("audit", "retention", "run", "--yes")
    assert "7 events removed, 1 kept by holds" in result.stdout
    assert [request.body for request in api.requests] == [{}, {"cursor": "cost:0"}]


def test_a_hold_that_matches_nothing_is_pointed_out(api: Api) -> None:
    api.on("POST", f"{OPERATOR}/audit/holds", (201, HOLD))
    result = slipway("audit", "holds", "place", "--entity", "m1", "--reason", "case")
    assert "Held: entity m1 (hld-1)" in result.stdout
    assert "is it spelt right?" in result.stderr
    assert api.requests[0].body == {"entity_id": "m1", "reason": "case"}
    assert slipway("audit", "holds", "place", "--reason", "case").exit_code == 2
    api.on("POST", f"{OPERATOR}/audit/holds/hld-1/release", (200, HOLD))
    assert slipway("audit", "holds", "release", "hld-1", "--reason", "settled").exit_code == 2
    assert slipway("audit", "holds", "release", "hld-1", "--reason", "settled", "--yes").exit_code == 0


def test_checkpoints_and_keys_are_kept_as_files_that_verify_reads(api: Api, tmp_path: Path) -> None:
    export = Export(tmp_path)
    store(api, export, {0: stretch(export, 5, 5), 5: stretch(export, 10, 5), 10: stretch(export, 12, 2)})
    signed, keys = tmp_path / "checkpoints.json", tmp_path / "keys.json"
    assert slipway("audit", "checkpoints", "--out", str(signed)).exit_code == 0
    assert slipway("audit", "keys", "--out", str(keys)).exit_code == 0
    export.check()
    offline = ("events", "verify", "--file", str(export.path), "--key", str(keys), "--checkpoints", str(signed))
    assert slipway(*offline).exit_code == 0
    assert slipway("events", "verify", "--key", str(keys), "--checkpoints", str(signed)).exit_code == 0
    api.on("GET", f"{OPERATOR}/audit/checkpoints", (200, page()))
    lost = slipway("events", "verify", "--key", str(keys), "--checkpoints", str(signed))
    assert (lost.exit_code, "missing checkpoint" in lost.stdout) == (1, True)


def test_an_export_says_early_what_it_can_not_do(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no format" in slipway("events", "export", "--out", str(tmp_path / "x"), "--format", "csv").stderr
    assert "Only JSON Lines" in slipway("events", "export", "--format", "parquet").stderr
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = slipway("events", "export", "--out", str(tmp_path / "x.parquet"))
    assert (result.exit_code, "slipway-fleet[parquet]" in result.stderr) == (2, True)
    assert not api.requests


def test_a_full_disk_is_told_with_what_is_kept_and_how_to_go_on(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.on("GET", f"{OPERATOR}/audit/keys", (200, {"keys": []}))
    for proofs in ("checkpoints", "removals"):
        api.on("GET", f"{OPERATOR}/audit/{proofs}", (200, page()))
    event = {"id": "e1", "type": "slipway.cost.usage.metered", "sequence": "1", "data": {}}
    api.on("GET", f"{OPERATOR}/audit/export", (200, {**page(event), "next_cursor": "cost:1"}), (200, page(event)))
    real, calls = exports._replace, []

    def full(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, content)

    monkeypatch.setattr(exports, "_replace", full)
    out = tmp_path / "events.jsonl"
    failed = slipway("events", "export", "--door", "operator", "--out", str(out))
    assert failed.exit_code == 2
    assert "No space left on device" in failed.stderr and "goes on from there" in failed.stderr
    assert not out.exists()
    monkeypatch.setattr(exports, "_replace", real)
    api.on("GET", f"{OPERATOR}/audit/export", (200, page(event)))
    again = slipway("events", "export", "--door", "operator", "--out", str(out))
    assert again.exit_code == 0, again.output
    assert len(out.read_text().splitlines()) == 2
