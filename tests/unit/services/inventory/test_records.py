"""NetBox's documents as records: every shape that was seen in the field, and every way to be wrong."""

from __future__ import annotations

from typing import Any

import pytest

from services.inventory.adapters.netbox_twin import NetBoxTwin
from services.inventory.adapters.records import bmc_port, device_records, newest_change, site_records
from services.inventory.adapters.source import SourceUnavailable
from services.inventory.model.source import DeviceProblem, SourceDevice


def read(**changes: Any) -> SourceDevice | DeviceProblem:
    twin = NetBoxTwin()
    twin.add(1, **changes)
    good, bad = device_records(list(twin.devices.values()), twin.interfaces, (), {"fra1"})
    return good[0] if good else bad[0]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"name": None}, "name"),
        ({"name": "  "}, "blank"),
        ({"name": "a\u202eb"}, "invisible"),
        ({"name": "no spaces please"}, "host name"),
        ({"name": "x" * 200}, "characters"),
        ({"device_type": None}, "device_type"),
        ({"site": {"id": 9, "slug": "elsewhere"}}, "site"),
        ({"site": None}, "site"),
        ({"serial": 12345}, "serial"),
        ({"status": None}, "status"),
        ({"position": "top"}, "position"),
        ({"oob_ip": {"address": "not-an-ip"}}, "oob_ip"),
        ({"custom_fields": ["a"]}, "custom_fields"),
    ],
)
def test_a_bad_record_names_its_field(bad: dict[str, Any], words: str) -> None:
    problem = read(**bad)
    assert isinstance(problem, DeviceProblem) and words in problem.problem and problem.key == "netbox:1"


@pytest.mark.parametrize(
    "shape",
    [
        {"role": {"slug": "gpu-node"}},
        {"role": None, "device_role": {"slug": "gpu-node"}},
        {"role": {"slug": "gpu-node"}, "device_role": {"slug": "gpu-node"}},
    ],
)
def test_both_shapes_of_the_role_are_read(shape: dict[str, Any]) -> None:
    device = read(**shape)
    assert isinstance(device, SourceDevice) and device.role == "gpu-node"


@pytest.mark.parametrize("status", [{"value": "active", "label": "Active"}, "active"])
def test_a_status_is_an_object_or_a_word(status: object) -> None:
    device = read(status=status)
    assert isinstance(device, SourceDevice) and device.status == "active"


@pytest.mark.parametrize(
    "blank", [{"serial": None}, {"serial": ""}, {"rack": None}, {"position": None}, {"oob_ip": None}]
)
def test_what_is_blank_is_blank_and_no_error(blank: dict[str, Any]) -> None:
    assert isinstance(read(**blank), SourceDevice)


def port(name: str, *, mgmt_only: bool = True, number: int = 1) -> dict[str, Any]:
    return {"id": number, "name": name, "mgmt_only": mgmt_only}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["bmc", "bmc-bf3"], "bmc"),
        (["bmc-bf3", "bmc"], "bmc"),
        (["iDRAC"], "iDRAC"),
        (["IPMI"], "IPMI"),
        (["Management"], "Management"),
        (["bmc-bf3"], None),
        (["a", "b"], None),
        ([], None),
    ],
)
def test_the_hosts_own_bmc_is_not_the_first_management_port_that_comes(names: list[str], found: str | None) -> None:
    chosen = bmc_port([port(name) for name in names] + [port("eno1", mgmt_only=False)])
    assert (chosen["name"] if chosen else None) == found


def test_a_bmc_address_is_found_at_its_port_when_the_device_names_none() -> None:
    twin = NetBoxTwin()
    twin.add(1, oob_ip=None)
    addresses = [{"assigned_object_type": "dcim.interface", "assigned_object_id": 10, "address": "10.20.1.77/24"}]
    (device,), _ = device_records(list(twin.devices.values()), twin.interfaces, addresses, {"fra1"})
    assert device.bmc_address == "10.20.1.77"


def test_a_mac_is_read_from_the_port_or_from_its_own_object() -> None:
    twin = NetBoxTwin()
    twin.add(1)
    twin.interfaces[0] |= {"mac_address": None, "primary_mac_address": {"mac_address": "00:00:5E:00:53:FF"}}
    (device,), _ = device_records(list(twin.devices.values()), twin.interfaces, (), {"fra1"})
    assert device.bmc_mac == "00:00:5e:00:53:ff"


def test_a_site_whose_slug_can_t_be_part_of_a_subject_is_named() -> None:
    sites, problems = site_records([{"id": 1, "name": "A", "slug": "fra1"}, {"id": 2, "name": "B", "slug": "Fra.1 >"}])
    assert [site.slug for site in sites] == ["fra1"] and "B" in problems[0]


def test_a_list_with_a_device_without_an_id_is_no_list() -> None:
    with pytest.raises(SourceUnavailable):
        device_records([{"name": "x"}], (), (), {"fra1"})


def test_a_change_at_no_time_is_an_error_because_a_poll_could_miss_others() -> None:
    with pytest.raises(SourceUnavailable):
        newest_change([{"last_updated": "yesterday"}])
