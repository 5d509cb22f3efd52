"""What a BMC says of links, ports and its own firmware, read as facts; what it does not say stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from services.satellite.adapters.redfish_facts import gpu_entries, inspection, nics, pcie_links


@pytest.mark.parametrize(
    ("entries", "link"),
    [
        ([{"Id": "G1", "PCIeInterface": {"LanesInUse": 16, "PCIeType": "Gen5"}}], (16, "Gen5")),
        ([{"Id": "G1", "SystemInterface": {"PCIe": {"LanesInUse": 8, "PCIeType": "Gen4"}}}], (8, "Gen4")),
        ([{"Id": "G1"}, {"Id": "G1", "PCIeInterface": {"LanesInUse": "16"}}], (16, "")),
        ([{"Id": "G1", "PCIeInterface": {"LanesInUse": 0, "PCIeType": None}}], (None, "")),
        ([{"Id": "G1", "PCIeInterface": None}], (None, "")),
        ([{"Id": "G1", "PCIeInterface": "x16"}], (None, "")),
    ],
)
def test_a_link_is_read_from_either_view(entries: list[dict[str, Any]], link: tuple[int | None, str]) -> None:
    assert pcie_links(entries) == {"G1": link}


def test_a_ports_speed_is_a_number_or_unknown_and_the_bmcs_own_card_is_none() -> None:
    found = nics(
        [
            {"Id": "NIC.1", "MACAddress": "94:6D:AE:00:00:01", "SpeedMbps": 400000, "LinkStatus": "LinkUp"},
            {"Id": "NIC.2", "MACAddress": "94:6d:ae:00:00:02", "SpeedMbps": 0, "LinkStatus": ""},
            {"Id": "NIC.3", "MACAddress": "", "SpeedMbps": 1000},
            {"Id": "usb0", "Name": "Host Interface", "MACAddress": "f2:00:00:67:1e:cd"},
        ]
    )
    assert [(nic.slot, nic.gbps, nic.link) for nic in found] == [("NIC.1", 400.0, "LinkUp"), ("NIC.2", None, "unknown")]


def test_an_inspection_carries_them_and_a_silent_manager_is_no_version() -> None:
    gpu = {"Id": "G1", "ProcessorType": "GPU", "Model": "H100", "Status": {"State": "Enabled", "Health": "OK"}}
    device = {"Id": "G1", "Model": "H100", "PCIeInterface": {"LanesInUse": 16, "PCIeType": "Gen5"}}
    whole: dict[str, Any] = {"processors": [gpu], "gpus": gpu_entries([gpu], [device]), "drives": [], "interfaces": []}
    found = inspection({}, **whole, gaps=[], devices=[device], manager={"FirmwareVersion": "7.00"})
    assert (found.gpus[0].pcie_lanes, found.gpus[0].pcie_type, found.firmware) == (16, "Gen5", {"bmc": "7.00"})
    assert inspection({}, **whole, gaps=[], manager={"FirmwareVersion": None}).firmware == {}
