"""A manifest's rows: what is right goes in, what is wrong is named with column, value, why and remedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.inventory import MachineState
from services.inventory.adapters.manifest_text import BadManifest, read_manifest
from services.inventory.model.expected import (
    MANIFEST,
    ExpectedMachine,
    Known,
    Outcome,
    RowProblem,
    clashes,
    place,
    read_row,
)
from services.inventory.model.machine import Machine
from services.inventory.model.source import register
from tests.unit.services.inventory.machines import at

KNOWN = Known(frozenset({"fra1"}), frozenset({"nvidia-dgx-h100", "dell-poweredge-xe9680"}), frozenset({"gpu-node"}))
CSV = """Name;Site;Rack;Unit;Type;Serial;BMC MAC;BMC IP;NIC-MACs
gpu-1;fra1;r1;3;nvidia-dgx-h100;1660223969975;48B0.2DF1.EFC0;10.20.1.11;94:6d:ae:aa:4b:63 94-6D-AE-AA-4B-62

gpu-2;fra1;r1;U11;nvidia-dgx-h100;0016;;10.20.1.12;
"""


def row(number: int = 1, **changes: Any) -> ExpectedMachine:
    given = {
        "name": f"gpu-{number}",
        "site": "fra1",
        "rack": "r1",
        "device_type": "nvidia-dgx-h100",
        "serial": f"S-{number:04}",
        "bmc_address": f"10.20.1.{number}",
        "bmc_mac": f"48:b0:2d:00:00:{number:02x}",
        "nic_macs": f"94:6d:ae:00:00:{number:02x}",
    }
    read = read_row(number, {**given, **changes}, KNOWN)
    assert isinstance(read, ExpectedMachine), read
    return read


def wrong(**changes: Any) -> list[RowProblem]:
    given = {"name": "gpu-1", "site": "fra1", "rack": "r1", "device_type": "nvidia-dgx-h100", "serial": "S-1"}
    read = read_row(7, {**given, "bmc_address": "10.20.1.1", **changes}, KNOWN)
    return [] if isinstance(read, ExpectedMachine) else read


def machine(of: ExpectedMachine, **changes: Any) -> Machine:
    made = register(f"id-{of.name}", of.device("rack"), None, at(0)).machine
    return made.with_(**{"origin": MANIFEST, **changes})


def test_a_spreadsheet_is_read_whatever_its_delimiter_heading_and_notation() -> None:
    rows = read_manifest("\ufeff" + CSV, "csv")
    first, second = (read_row(number, raw, KNOWN) for number, raw in rows)
    assert isinstance(first, ExpectedMachine) and isinstance(second, ExpectedMachine)
    assert (first.row, second.row) == (1, 3)
    assert first.bmc_mac == "48:b0:2d:f1:ef:c0" and first.nic_macs == ("94:6d:ae:aa:4b:62", "94:6d:ae:aa:4b:63")
    assert (first.position, second.position, second.serial) == (3.0, 11.0, "0016")


def test_yaml_says_the_same_and_its_scalars_stay_text() -> None:
    text = """
site: fra1
machines:
  - {name: gpu-1, rack: r1, device_type: nvidia-dgx-h100, serial: 0016, bmc_ip: 10.20.1.11, bmc_mac: 48:10:20:30:40:50,
     nic_macs: ["94:6d:ae:aa:4b:62"]}
"""
    ((number, raw),) = read_manifest(text, "yaml")
    read = read_row(number, raw, KNOWN)
    assert isinstance(read, ExpectedMachine)
    assert (read.serial, read.bmc_mac, read.nic_macs) == ("0016", "48:10:20:30:40:50", ("94:6d:ae:aa:4b:62",))


@pytest.mark.parametrize(
    ("text", "form", "words"),
    [
        ("", "csv", "heading lacks"),
        ("name,site\n", "csv", "heading lacks rack, device_type, serial, bmc_address"),
        (CSV.splitlines()[0], "csv", "no row"),
        ("name,name,site,rack,device_type,serial,bmc_address\n", "csv", "name twice"),
        (CSV + '"gpu-3', "csv", "line 5"),
        ("machines: {", "yaml", "line 1"),
        ("a: &a [1]\nb: *a\n", "yaml", "aliases"),
        ("hello", "yaml", "no list of machines"),
        ("machines: []", "yaml", "no row"),
        ("[" * 3000, "yaml", "nested too deeply|no YAML"),
        ("\n".join(["name,site,rack,device_type,serial,bmc_address", *["a,b,c,d,e,f"] * 2001]), "csv", "2001 rows"),
    ],
)
def test_a_text_that_is_broken_as_a_whole_is_refused_with_the_place(text: str, form: str, words: str) -> None:
    with pytest.raises(BadManifest, match=words):
        read_manifest(text, form)


@pytest.mark.parametrize(
    ("changes", "column", "why", "remedy"),
    [
        ({"name": " "}, "name", "blank", "Fill it in"),
        ({"name": "gpu 1"}, "name", "host name", "dashes"),
        ({"site": "fra"}, "site", "no site 'fra'", "Did you mean 'fra1'?"),
        ({"device_type": "dgx"}, "device_type", "no device type", "Known: dell-poweredge-xe9680"),
        ({"role": "switch"}, "role", "no role", "gpu-node"),
        ({"position": "top"}, "position", "no number", "lowest unit"),
        ({"position": "-3"}, "position", "not between", "lowest unit"),
        ({"position": "nan"}, "position", "not between", "lowest unit"),
        ({"serial": "Default string"}, "serial", "firmware says", "label"),
        ({"serial": "1.66022E+12"}, "serial", "spreadsheet", "as text"),
        ({"bmc_mac": "48:b0:2d:f1:ef"}, "bmc_mac", "5 octets", "label"),
        ({"bmc_address": "10.20.1.300"}, "bmc_address", "no IP address", "10.20.1.11"),
        ({"nic_macs": "94:6d:ae:aa:4b:62, x"}, "nic_macs", "'x' is no hardware address", "blanks"),
        ({"colour": "red"}, "colour", "no such column", "Columns: name"),
        ({"rack": ["r1"]}, "rack", "no single value", "one value"),
        ({"asset_tag": "a\x00b"}, "asset_tag", "control characters", "one line"),
    ],
)
def test_what_is_wrong_is_named_with_column_value_why_and_remedy(
    changes: dict[str, Any], column: str, why: str, remedy: str
) -> None:
    (problem,) = wrong(**changes)
    assert (problem.row, problem.column) == (7, column)
    assert why in problem.why and remedy in problem.remedy


def test_everything_wrong_in_a_row_is_told_at_once() -> None:
    assert {problem.column for problem in wrong(site="x", serial="0", bmc_address="")} == {
        "site",
        "serial",
        "bmc_address",
    }


@given(
    st.dictionaries(
        st.text(max_size=12), st.one_of(st.none(), st.text(max_size=30), st.integers(), st.lists(st.text()))
    )
)
def test_whatever_a_row_holds_it_is_read_or_explained(raw: dict[str, Any]) -> None:
    read = read_row(1, raw, KNOWN)
    assert isinstance(read, ExpectedMachine) or all(problem.why and problem.remedy for problem in read)


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"name": "gpu-1"}, "name"),
        ({"serial": "s-0001"}, "serial"),
        ({"bmc_address": "10.20.1.1"}, "bmc_address"),
        ({"bmc_mac": "48b02d000001"}, "bmc_mac"),
        ({"nic_macs": "94:6D:AE:00:00:01"}, "nic_macs"),
    ],
)
def test_two_rows_that_share_what_is_one_machines_own_are_both_named(changes: dict[str, Any], column: str) -> None:
    found = clashes([row(1), row(2, **changes), row(3)])
    assert [(problem.row, problem.column) for problem in found] == [(1, column), (2, column)]
    assert "row 2" in found[0].why and "row 1" in found[1].why


def test_two_machines_in_one_unit_are_named() -> None:
    assert [p.column for p in clashes([row(1, position="3"), row(2, position="3"), row(3, position="4")])] == [
        "position"
    ] * 2


# -- beside what is known ---------------------------------------------------------------------------


def test_a_row_nobody_knows_is_new_and_the_same_again_changes_nothing() -> None:
    assert place(row(1), []).outcome is Outcome.NEW
    assert place(row(1), [machine(row(1))]).outcome is Outcome.UNCHANGED


def test_a_correction_is_taken_before_the_enrolment_and_not_after_it() -> None:
    there = machine(row(1))
    assert place(row(1, rack="r2"), [there]).outcome is Outcome.CHANGED
    enrolled = there.with_(state=MachineState.AVAILABLE)
    assert place(row(1, rack="r2"), [enrolled]).outcome is Outcome.UNCHANGED


def test_what_a_source_of_record_has_is_left_to_it() -> None:
    placed = place(row(1, rack="r9"), [machine(row(1), origin="", netbox_id=7)])
    assert placed.outcome is Outcome.KNOWN and placed.machine is not None and not placed.problems


@pytest.mark.parametrize(
    ("other", "column", "why"),
    [
        (row(2, name="gpu-1"), "name", "has it"),
        (row(2, bmc_address="10.20.1.1"), "bmc_address", "has it"),
        (row(2, serial="S-0001"), "serial", "new mainboard or a copied serial"),
        (row(2, nic_macs="94:6d:ae:00:00:01"), "serial", "card was moved"),
    ],
)
def test_a_row_that_clashes_with_a_machine_names_it(other: ExpectedMachine, column: str, why: str) -> None:
    placed = place(row(1), [machine(other)])
    (problem,) = placed.problems
    assert problem.column == column and why in problem.why and f"slipway machines show {other.name}" in problem.remedy


def test_a_machine_that_another_site_has_is_not_taken_from_it() -> None:
    placed = place(row(1), [machine(row(1), site="ams1")])
    assert placed.problems[0].column == "site" and "ams1" in placed.problems[0].why
