"""What a source's word changes, and what it only holds."""

from __future__ import annotations

import pytest

from libs.contracts.inventory import ProfileFacts
from services.inventory.model.source import Known, duplicates, profile_for, register, update
from tests.unit.services.inventory.machines import at, available, machine
from tests.unit.services.inventory.test_records import read


def known(number: str, **changes: object) -> Known:
    own = {
        "machine_id": f"id-{number}",
        "name": number,
        "site": "fra1",
        "serial": f"S-{number}",
        "bmc_address": f"10.0.0.{number}",
        "macs": (f"00:00:5e:00:53:0{number}",),
    }
    return Known(**{**own, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("same", "words"),
    [
        ({"serial": "S-1"}, "serial number S-1"),
        ({"name": "1"}, "name fra1/1"),
        ({"bmc_address": "10.0.0.1"}, "BMC address 10.0.0.1"),
        ({"macs": ("00:00:5E:00:53:01",)}, "MAC 00:00:5e:00:53:01"),
    ],
)
def test_what_two_share_is_told_about_both(same: dict[str, object], words: str) -> None:
    found = duplicates([known("1"), known("2", **same), known("3")])
    assert set(found) == {"id-1", "id-2"} and all(words in reasons[0] for reasons in found.values())


def test_blanks_are_not_shared_and_a_name_may_be_used_at_two_sites() -> None:
    blank = {"serial": "", "bmc_address": "", "macs": ()}
    assert (
        duplicates([known("1", **blank), known("2", **blank), known("1", machine_id="x", site="ams1", **blank)]) == {}
    )


@pytest.mark.parametrize("status", ["offline", "failed", "decommissioning", "planned", "something-new"])
def test_a_status_that_is_not_meant_for_use_holds_the_machine(status: str) -> None:
    device = read(status={"value": status})
    fresh = register("id", device, None, at(0)).machine  # type: ignore[arg-type]
    assert [hold.owner for hold in fresh.holds] == ["system:netbox"] and status in fresh.holds[0].reason


@pytest.mark.parametrize("field", ["serial", "site", "device_type"])
def test_identity_is_taken_before_the_enrolment_and_held_after_it(field: str) -> None:
    theirs = {"serial": "OTHER", "site": {"slug": "fra1"}, "device_type": {"slug": "other-type"}}
    device = read(**{field: theirs[field]})
    before = update(machine(site="ams1"), device, None, at(9))  # type: ignore[arg-type]
    assert getattr(before.machine, field) == device.identity()[field]  # type: ignore[union-attr]
    enrolled = available().with_(site="ams1")
    after = update(enrolled, device, None, at(9))  # type: ignore[arg-type]
    assert getattr(after.machine, field) == getattr(enrolled, field) and not after.machine.eligible


def test_a_device_type_in_two_profiles_is_in_none() -> None:
    one = ProfileFacts(name="a", description="", device_types=("x",))
    two = ProfileFacts(name="b", description="", device_types=("x", "y"))
    assert profile_for("x", [one, two]) is None and profile_for("y", [one, two]) == two


def test_boards_that_say_default_string_share_nothing_and_notations_hide_nothing() -> None:
    one, two = known("1", serial="Default string"), known("2", serial="default string", macs=("0000.5e00.5301",))
    assert {name: len(words) for name, words in duplicates([one, two]).items()} == {"id-1": 1, "id-2": 1}
    assert "MAC 00:00:5e:00:53:01" in duplicates([one, two])["id-1"][0]
