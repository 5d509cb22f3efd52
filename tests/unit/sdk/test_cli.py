"""The command line: tables for people, the API's JSON for programs, exit codes and errors to act on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from slipway import resources, transport
from slipway.cli import app
from typer.testing import CliRunner, Result

from tests.unit.sdk.conftest import Api
from tests.unit.sdk.documents import CLUSTER, CLUSTER_ID, MACHINES, NODE, OPERATION_ID, operation

pytestmark = pytest.mark.usefixtures("configured")
TENANT, OPERATOR = "/v1", "/operator/v1"
KEY_LINE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJr2wq0yVbCkXl2jmS5wq1kq3n0c7b4v6T8u9yZaBcDe alice@desk"
STARTED = {"cluster_id": CLUSTER_ID, "operation_id": OPERATION_ID}


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": None, "as_of": None}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(resources, "WATCH_EVERY_SECONDS", 0.001)


def slipway(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def public_key(tmp_path: Path) -> Path:
    path = tmp_path / ".ssh" / "id_ed25519.pub"
    path.parent.mkdir()
    path.write_text(KEY_LINE + "\n")
    return path


def test_machines_are_a_table_with_the_reason_of_those_that_are_stuck(api: Api) -> None:
    api.on("GET", f"{OPERATOR}/machines", (200, page(*MACHINES)))
    result = slipway("machines", "list", "--rack", "r1", "--state", "FAILED", "--state", "AVAILABLE")
    assert result.exit_code == 0
    assert api.requests[0].query == {"rack": ["r1"], "state": ["FAILED", "AVAILABLE"]}
    head, *rows = [line for line in result.stdout.splitlines() if line.strip()]
    assert head.split()[:2] == ["NAME", "SITE"]
    assert "fra1-r1-u01" in rows[1]
    assert "GPU slot 5" in result.stdout
    assert all(len(line) <= 100 for line in result.stdout.splitlines())


def test_json_is_the_apis_own_document_and_nothing_else(api: Api) -> None:
    api.on("GET", f"{OPERATOR}/machines", (200, page(*MACHINES)))
    api.on("GET", f"{OPERATOR}/machines/m", (200, {**MACHINES[0], "later": [1, {"a": None}]}))
    assert json.loads(slipway("machines", "list", "--json").stdout) == page(*MACHINES)
    assert json.loads(slipway("machines", "show", "m", "--json").stdout) == {**MACHINES[0], "later": [1, {"a": None}]}


def test_a_list_is_cut_at_its_limit_and_says_so(api: Api) -> None:
    api.on("GET", f"{OPERATOR}/machines", (200, {**page(*MACHINES), "next_cursor": "more"}))
    result = slipway("machines", "list", "--limit", "1")
    assert "fra1-r1-u02" not in result.stdout
    assert "--limit shows more" in result.stderr


def test_a_machine_is_shown_with_what_to_do_next(api: Api) -> None:
    api.on("GET", f"{OPERATOR}/machines/fra1-r1-u02", (200, MACHINES[1]))
    result = slipway("machines", "show", "fra1-r1-u02")
    assert "Reseat or replace the GPU in slot 5" in result.stdout
    assert "May be claimed" in result.stdout


def test_enrolling_without_naming_anything_is_a_usage_error() -> None:
    result = slipway("machines", "enrol")
    assert result.exit_code == 2
    assert "--rack" in result.stderr


def test_enrolling_and_waiting_shows_the_steps_and_ends_with_the_outcome(api: Api) -> None:
    api.on("POST", f"{OPERATOR}/enrolments", (202, {"operation_id": OPERATION_ID, "machines": ["a", "b"]}))
    api.on(
        "GET",
        f"{OPERATOR}/operations/{OPERATION_ID}",
        (200, operation("RUNNING", ("inspect", "RUNNING", 1, 2))),
        (200, operation("RUNNING", ("inspect", "SUCCEEDED", 2, 2), ("sanitize", "RUNNING", 0, 2))),
        (200, operation("SUCCEEDED", ("inspect", "SUCCEEDED", 2, 2), ("sanitize", "SUCCEEDED", 2, 2))),
    )
    result = slipway("machines", "enrol", "--rack", "r1", "--rack", "r2", "--wait")
    assert result.exit_code == 0, result.output
    assert api.requests[0].body == {"racks": ["r1", "r2"]}
    assert "2 machines" in result.stdout
    assert "SUCCEEDED inspect 2/2 12s" in " ".join(result.stdout.split())
    assert "create cluster SUCCEEDED after 4m10s" in result.stdout


def test_creating_a_cluster_sends_the_persons_own_key(api: Api, public_key: Path) -> None:
    api.on("POST", f"{TENANT}/clusters", (202, STARTED))
    result = slipway("clusters", "create", "train-1", "--profile", "h100-sxm-8", "--nodes", "4")
    assert result.exit_code == 0
    assert f"slipway operations watch {OPERATION_ID}" in result.stdout
    assert api.requests[0].body == {
        "name": "train-1",
        "profile": "h100-sxm-8",
        "node_count": 4,
        "ssh_authorized_keys": [KEY_LINE],
    }


def test_a_private_key_never_leaves_the_machine(api: Api, tmp_path: Path) -> None:
    private = tmp_path / "id_ed25519"
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n")
    result = slipway("clusters", "create", "t", "--profile", "p", "-n", "1", "--key", str(private))
    assert result.exit_code == 2
    assert "was not sent" in result.stderr
    assert not api.requests


def test_a_cluster_that_fails_ends_with_1_and_says_why(api: Api, public_key: Path) -> None:
    problem = {"code": "reservation.too_few", "message": "2 of 4 machines are free.", "next_step": "Ask for 2."}
    api.on("POST", f"{TENANT}/clusters", (202, STARTED))
    api.on(
        "GET",
        f"{TENANT}/operations/{OPERATION_ID}",
        (200, operation("FAILED", ("hold_machines", "FAILED", 0, 0), problem=problem)),
    )
    result = slipway("clusters", "create", "t", "--profile", "p", "-n", "4", "--wait")
    assert result.exit_code == 1
    assert "2 of 4 machines are free. (reservation.too_few)" in result.stdout
    assert "Ask for 2." in result.stdout
    as_json = slipway("clusters", "create", "t", "--profile", "p", "-n", "4", "--wait", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["problem"] == problem
    assert "hold_machines" in as_json.stderr


def test_a_ready_cluster_is_shown_with_its_nodes(api: Api, public_key: Path) -> None:
    api.on("POST", f"{TENANT}/clusters", (202, STARTED))
    api.on("GET", f"{TENANT}/operations/{OPERATION_ID}", (200, operation("SUCCEEDED")))
    api.on("GET", f"{TENANT}/clusters/{CLUSTER_ID}/nodes", (200, page(NODE)))
    result = slipway("clusters", "create", "train-1", "--profile", "p", "-n", "1", "--wait")
    assert result.exit_code == 0, result.output
    assert "10.0.0.11:22" in result.stdout
    assert "slipway clusters ssh train-1" in result.stdout


def test_a_cluster_is_found_by_its_name(api: Api) -> None:
    other = {**CLUSTER, "id": "clu-" + "9" * 32, "name": "train-10"}
    gone = {**CLUSTER, "id": "clu-" + "8" * 32, "state": "DELETED"}
    api.on("GET", f"{TENANT}/clusters", (200, page(other, gone, CLUSTER)))
    result = slipway("clusters", "show", "train-1")
    assert result.exit_code == 0
    assert CLUSTER_ID in result.stdout
    assert "4m10s after asking" in result.stdout
    missing = slipway("clusters", "show", "train-2")
    assert missing.exit_code == 4
    assert "slipway clusters list" in missing.stderr


def test_deleting_shows_what_would_happen_and_does_nothing_without_a_yes(api: Api) -> None:
    api.on("GET", f"{TENANT}/clusters/{CLUSTER_ID}", (200, CLUSTER))
    api.on("DELETE", f"{TENANT}/clusters/{CLUSTER_ID}", (202, STARTED))
    looked = slipway("clusters", "delete", CLUSTER_ID, "--dry-run")
    assert looked.exit_code == 0
    assert "wipes 1 nodes: train-1-0" in looked.stdout
    unasked = slipway("clusters", "delete", CLUSTER_ID)
    assert unasked.exit_code == 2
    assert "--yes" in unasked.stderr
    assert all(request.method == "GET" for request in api.requests)
    done = slipway("clusters", "delete", CLUSTER_ID, "--yes", "--json")
    assert json.loads(done.stdout) == STARTED


def test_ssh_configuration_is_written_with_its_host_keys(api: Api, tmp_path: Path) -> None:
    api.on("GET", f"{TENANT}/clusters/{CLUSTER_ID}", (200, CLUSTER))
    texts = {"ssh_config": "Host train-1-0\n", "known_hosts": "train-1-0 ssh-ed25519 AAAA\n"}
    api.on("GET", f"{TENANT}/clusters/{CLUSTER_ID}/ssh-config", (200, texts))
    folder = tmp_path / "out"
    result = slipway("clusters", "ssh-config", CLUSTER_ID, "--write", str(folder))
    assert result.exit_code == 0, result.output
    assert (folder / "config").read_text() == "Host train-1-0\n"
    assert (folder / "known_hosts").read_text() == "train-1-0 ssh-ed25519 AAAA\n"
    [asked] = api.asked(f"{TENANT}/clusters/{CLUSTER_ID}/ssh-config")
    assert asked.query == {"known_hosts_file": [str(folder / "known_hosts")]}


def test_a_watched_operation_shows_notes_and_what_it_waits_for(api: Api) -> None:
    running = operation("RUNNING", ("deploy_image", "RUNNING", 1, 4), notes=["fra1-r1-u03 was swapped"])
    waiting = {**running, "waiting_for": "a human"}
    api.on("GET", f"{TENANT}/operations/{OPERATION_ID}", (200, running), (200, waiting), (200, operation("CANCELLED")))
    result = slipway("operations", "watch", OPERATION_ID)
    assert result.exit_code == 1
    assert "note      fra1-r1-u03 was swapped" in result.stdout
    assert "WAITING   a human" in result.stdout


@pytest.mark.parametrize(
    ("status", "exit_code"), [(403, 3), (409, 3), (422, 3), (404, 4), (500, 5), (503, 5), (401, 6)]
)
def test_every_kind_of_refusal_has_its_exit_code_and_words(api: Api, status: int, exit_code: int) -> None:
    problem = {
        "code": "some.code",
        "detail": "This happened.",
        "next_step": "Do that.",
        "correlation_id": "corr-9",
        "errors": [{"field": "node_count", "message": "is too many"}],
    }
    api.on("GET", f"{OPERATOR}/machines/m", (status, problem, {"Retry-After": "0"}))
    result = slipway("machines", "show", "m")
    assert result.exit_code == exit_code
    if status != 401:  # A given token that is refused is said in our own words.
        assert "This happened." in result.stderr
        assert "Do that." in result.stderr
        assert "corr-9" in result.stderr
    assert result.stdout == ""


def test_an_api_that_is_not_there_is_5(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_OPERATOR_URL", "http://127.0.0.1:1/operator/v1")
    result = slipway("machines", "list")
    assert result.exit_code == 5
    assert "http://127.0.0.1:1 does not answer" in result.stderr


def test_without_any_configuration_it_says_how_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_CONFIG", str(tmp_path / "none.json"))
    result = slipway("machines", "list")
    assert result.exit_code == 2
    assert "make up" in result.stderr


@pytest.mark.parametrize("content", ["", "{", "[]", '{"contexts": 7}', '{"contexts": {"a": {"urls": 1}}}'])
def test_a_broken_configuration_file_is_named(configured: Path, content: str) -> None:
    configured.write_text(content)
    result = slipway("machines", "list")
    assert result.exit_code == 2
    assert configured.name in result.stderr.replace("\n", "")
    assert "Traceback" not in result.stderr


def test_projections_are_rebuilt_and_a_difference_ends_with_1(api: Api) -> None:
    api.on("GET", f"{OPERATOR}/projections", (200, page({"projection": "pool"}, {"projection": "pool"})))
    equal = {
        "projection": "pool",
        "digest_live": "aa",
        "digest_rebuilt": "aa",
        "equal": True,
        "events": 9,
        "seconds": 1,
    }
    path = f"{OPERATOR}/projections/reservation/pool/rebuild"
    api.on("POST", path, (200, equal))
    one = slipway("projections", "rebuild", "reservation", "pool", "--json")
    assert (one.exit_code, json.loads(one.stdout)["equal"]) == (0, True)
    api.on("POST", path, (200, {**equal, "equal": False, "digest_rebuilt": "bb"}))
    every = slipway("projections", "rebuild", "reservation", "--all")
    assert every.exit_code == 1
    assert "DIFFERENT" in every.stdout


def test_events_are_exported_line_by_line_or_not_at_all(api: Api, tmp_path: Path) -> None:
    lines = [
        {"id": "e1", "type": "slipway.cost.usage.metered", "data": {"ä": 1}},
        {"id": "e2", "type": "t", "data": {}},
    ]
    path = f"{OPERATOR}/audit/export"
    api.on("GET", f"{OPERATOR}/audit/keys", (200, {"keys": []}))
    for proofs in ("checkpoints", "removals"):
        api.on("GET", f"{OPERATOR}/audit/{proofs}", (200, page()))
    first = {**page(lines[0]), "next_cursor": "cost:1"}
    api.on("GET", path, (200, first), (200, page(lines[1])))
    out = tmp_path / "events.jsonl"
    result = slipway("events", "export", "--door", "operator", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert [json.loads(line) for line in out.read_text().splitlines()] == lines
    api.on("GET", path, (200, first), (400, {"detail": "no"}))
    other = tmp_path / "other"
    failed = slipway("events", "export", "--door", "operator", "--out", str(other))
    assert failed.exit_code == 3
    assert not other.exists()
    api.on("GET", path, (200, page(lines[1])))
    resumed = slipway("events", "export", "--door", "operator", "--out", str(other))
    assert "Going on after 1 events" in resumed.stderr
    assert api.asked(path)[-1].query["cursor"] == ["cost:1"]
    assert other.read_bytes() == out.read_bytes()
    assert sorted(found.name for found in tmp_path.glob("*other*")) == ["other", "other.manifest.json"]


def test_gaps_end_with_1(api: Api) -> None:
    whole = {"items": [], "entities": [], "services": [{"service": "cost", "events": 3}], "events": 3}
    api.on("GET", f"{OPERATOR}/audit/gaps", (200, whole), (200, {**whole, "items": [{"service": "cost", "first": 2}]}))
    assert "3 events, no gap" in slipway("audit", "gaps").stdout
    assert slipway("audit", "gaps").exit_code == 1


def test_costs_show_time_without_a_price_as_such(api: Api) -> None:
    item = {"cluster_id": CLUSTER_ID, "tenant": "acme", "kind": "usage", "seconds": 90, "unpriced_seconds": 90}
    document = {"items": [{**item, "amount": None, "currency": None, "open": True}], "totals": []}
    api.on("GET", f"{TENANT}/costs", (200, document))
    result = slipway("costs", "show", "--by", "cluster", "--from", "2026-01-01")
    assert "no price for 90 s" in result.stdout
    assert api.requests[0].query == {"by": ["cluster"], "from": ["2026-01-01T00:00:00+00:00"]}


def test_a_grant_is_for_the_scope_that_was_named(api: Api) -> None:
    granted = {"id": "grt-1", "subject": "carol", "role": "member", "scope_kind": "tenant", "scope_id": "acme-ops"}
    api.on("POST", f"{OPERATOR}/grants", (201, granted))
    result = slipway("grants", "create", "carol", "--role", "member", "--tenant", "acme-ops")
    assert result.exit_code == 0
    assert "carol is member of tenant acme-ops" in result.stdout
    assert api.requests[0].body == {
        "subject": "carol",
        "role": "member",
        "scope_kind": "tenant",
        "scope_id": "acme-ops",
    }


def test_the_context_can_be_changed(configured: Path) -> None:
    content = json.loads(configured.read_text())
    content["contexts"]["other"] = {"tenant_url": "http://127.0.0.1:2/v1"}
    configured.write_text(json.dumps(content))
    assert slipway("context", "use", "other").exit_code == 0
    assert json.loads(configured.read_text())["current"] == "other"
    assert configured.stat().st_mode & 0o777 == 0o600
    unknown = slipway("context", "use", "third")
    assert unknown.exit_code == 2
    assert "other, test" in unknown.stderr


VERBS = {
    "machines": "list show enrol retry quarantine release decommission hold unhold",
    "clusters": "list create show delete nodes ssh-config ssh",
    "operations": "list show watch cancel resume",
    "profiles": "list show availability put",
    "images": "list show put",
    "templates": "list show put",
    "sites": "list",
    "racks": "list show",
    "reservations": "list show",
    "runs": "list show",
    "findings": "list",
    "usage": "list",
    "costs": "show",
    "prices": "list set",
    "organizations": "list create",
    "tenants": "list show create",
    "grants": "list create revoke",
    "events": "list export verify tail replay replays",
    "audit": "gaps checkpoint checkpoints keys",
    "audit retention": "show preview set run",
    "audit holds": "list place release",
    "projections": "list rebuild",
    "dead-letters": "list show redrive drop",
    "restore": "show accept",
    "sources": "list read",
    "context": "list use",
}
COMMANDS = [[*noun.split(), verb] for noun, verbs in VERBS.items() for verb in verbs.split()]
COMMANDS += [["timeline"], ["whoami"], ["login"], ["logout"], ["version"]]


@pytest.fixture(scope="module")
def built() -> Any:
    """The whole command line, built once: that takes longer than any of its commands."""
    return typer.main.get_command(app)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_within_100_columns(
    built: Any, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    built.main(args=[*command, "--help"], prog_name="slipway", standalone_mode=False)
    shown = capsys.readouterr().out
    assert f"Usage: slipway {' '.join(command)}" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_the_help_names_the_exit_codes() -> None:
    assert "6 not signed in" in " ".join(slipway("--help").stdout.split())


def test_a_reader_that_has_seen_enough_is_no_error(api: Api, configured: Path) -> None:
    api.on("GET", f"{OPERATOR}/machines", (200, page(*(MACHINES * 2000))))
    command = f"{sys.executable} -m slipway.cli machines list --limit 5000 --json | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], env=dict(os.environ), capture_output=True, text=True, check=False)
    assert ended.stdout == "{\n"
    assert ended.stderr == ""
    assert ended.returncode == 0
