"""`slipway machines import | discovered | approve | …` and `slipway dhcp`: what is sent, what is shown, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slipway.cli import app
from typer.testing import CliRunner, Result

from tests.unit.sdk.conftest import Api

pytestmark = pytest.mark.usefixtures("configured")
OPERATOR = "/operator/v1"
IMPORTS = f"{OPERATOR}/machine-imports"
HEADING = "name,site,rack,device_type,serial,bmc_address"
BAD = {"row": 2, "column": "serial", "value": "0", "why": "it is what firmware says", "remedy": "Read the label."}


def slipway(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def report(**changes: Any) -> dict[str, Any]:
    counts = {"rows": 2, "new": 2, "changed": 0, "unchanged": 0, "known": 0, "bad": 0, "problems_left_out": 0}
    return {"dry_run": False, **counts, "problems": [], **changes}


def manifest(folder: Path, rows: int = 2, width: int = 1) -> Path:
    file = folder / "rack.csv"
    lines = [f'gpu-{n},fra1,r1,"dgx{"x" * width}",S-{n},10.0.0.1' for n in range(1, rows + 1)]
    file.write_text("\n".join([HEADING, *lines]) + "\n")
    return file


def test_a_manifest_is_sent_whole_and_its_report_shown(api: Api, tmp_path: Path) -> None:
    api.on("POST", IMPORTS, (200, report()))
    done = slipway("machines", "import", str(manifest(tmp_path)), "--dry-run")
    assert done.exit_code == 0 and "2 rows: 2 new, 0 bad" in done.stdout
    (request,) = api.asked(IMPORTS)
    assert request.body["format"] == "csv" and request.body["dry_run"] is True
    assert request.body["text"].startswith(HEADING)


def test_a_bad_row_is_shown_with_its_remedy_and_ends_with_1(api: Api, tmp_path: Path) -> None:
    api.on("POST", IMPORTS, (200, report(new=1, bad=1, problems=[BAD])))
    done = slipway("machines", "import", str(manifest(tmp_path)))
    assert done.exit_code == 1 and "firmware says" in done.stdout and "Read the label" in done.stdout


def test_a_large_manifest_is_sent_in_parts_whose_rows_keep_their_numbers(api: Api, tmp_path: Path) -> None:
    api.on("POST", IMPORTS, (200, report(rows=500, new=500)), (200, report(rows=100, new=99, bad=1, problems=[BAD])))
    done = slipway("machines", "import", str(manifest(tmp_path, rows=600, width=400)), "--json")
    told = json.loads(done.stdout)
    assert (told["rows"], told["new"], told["bad"], done.exit_code) == (600, 599, 1, 1)
    first, second = api.asked(IMPORTS)
    assert (first.body["first_row"], second.body["first_row"]) == (1, 501)
    assert second.body["text"].splitlines()[0] == HEADING and second.body["text"].splitlines()[1].startswith("gpu-501,")


def test_a_file_that_is_neither_csv_nor_yaml_is_not_sent(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "rack.xlsx"
    file.write_text("x")
    done = slipway("machines", "import", str(file))
    assert done.exit_code == 2 and not api.asked(IMPORTS)


def test_new_candidates_are_listed_and_one_is_approved_or_ignored(api: Api) -> None:
    one = {"id": "cnd-1", "site": "fra1", "address": "10.20.1.9", "bmc_mac": "48:b0:2d:00:00:01", "vendor": "Dell"}
    listed = {"items": [{**one, "state": "NEW", "note": "its address is that of gpu-1"}], "next_cursor": None}
    api.on("GET", f"{OPERATOR}/candidates", (200, listed))
    shown = slipway("machines", "discovered").stdout
    assert "10.20.1.9" in shown and "Dell" in shown and "gpu-1" in shown
    assert api.asked(f"{OPERATOR}/candidates")[0].query == {"state": ["NEW"]}
    api.on("POST", f"{OPERATOR}/candidates/cnd-1/approve", (201, {**one, "state": "APPROVED"}))
    words = ["--name", "gpu-7", "--rack", "r1", "-t", "nvidia-dgx-h100", "--serial", "S-7"]
    assert "machines enrol --machine gpu-7" in slipway("machines", "approve", "cnd-1", *words).stdout
    sent = api.asked(f"{OPERATOR}/candidates/cnd-1/approve")[0].body
    assert sent == {"name": "gpu-7", "rack": "r1", "device_type": "nvidia-dgx-h100", "serial": "S-7"}
    api.on("POST", f"{OPERATOR}/candidates/cnd-1/ignore", (200, {**one, "state": "IGNORED"}))
    assert slipway("machines", "ignore", "cnd-1", "--reason", "the UPS").exit_code == 0


def test_a_scan_names_site_and_networks(api: Api) -> None:
    api.on("POST", f"{OPERATOR}/bmc-scans", (202, {"operation_id": "op-inv-" + "0" * 32}))
    assert slipway("machines", "scan", "--site", "fra1", "-n", "10.20.1.0/24").exit_code == 0
    assert api.asked(f"{OPERATOR}/bmc-scans")[0].body == {"site": "fra1", "networks": ["10.20.1.0/24"]}


def test_dhcp_problems_are_told_with_what_to_do(api: Api) -> None:
    problem = {"kind": "declined", "message": "10.1.2.3 is declined", "next_step": "Find who answers ARP."}
    server = {"site": "fra1", "error": "", "problems": [problem], "leases": 3, "reservations": 2}
    api.on("GET", f"{OPERATOR}/dhcp", (200, {"items": [server], "next_cursor": None}))
    shown = slipway("dhcp", "problems").stdout
    assert "10.1.2.3 is declined" in shown and "ARP" in shown and "2 reservations, 3 leases" in shown


def test_what_is_not_as_promised_is_shown_by_slot(api: Api) -> None:
    one = {"where": "GPU slot Video.Slot.26-1", "expected": "H100", "found": "nothing (the slot is empty)"}
    reason = {"code": "machine.hardware", "message": "…", "details": {"mismatches": [one]}}
    machine = {"id": "m-4", "name": "gpu-4", "rack": "r1", "position": 25.0, "serial": "S-4", "state": "FAILED"}
    api.on("GET", f"{OPERATOR}/machines/gpu-4", (200, {**machine, "reason": reason}))
    shown = slipway("machines", "mismatches", "gpu-4").stdout
    assert "rack r1, unit 25" in shown and "Video.Slot.26-1" in shown and "slot is empty" in shown
    assert json.loads(slipway("machines", "mismatches", "gpu-4", "--json").stdout)["mismatches"] == [one]


def test_reservations_that_were_refused_are_listed_with_the_reason(api: Api) -> None:
    refused = {"hw_address": "48:b0:2d:00:00:01", "ip_address": "10.20.1.9", "problem": "reserved already for ntp"}
    row = {"name": "gpu-4", "site": "fra1", "state": "REFUSED", "reservations": [], "refused": [refused], "error": ""}
    api.on("GET", f"{OPERATOR}/dhcp/reservations", (200, {"items": [row], "next_cursor": None}))
    shown = slipway("dhcp", "reservations", "--state", "REFUSED").stdout
    assert "gpu-4" in shown and "10.20.1.9: reserved already for ntp" in shown
