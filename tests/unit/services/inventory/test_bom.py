"""The bill of materials: every promised line is seen, named with its slot when not, and unknown when nobody says."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.inventory import BillOfMaterials
from libs.contracts.site import InspectedGpu, InspectedNic, Inspection
from services.inventory.model.bom import compare_bom, differences, older
from services.inventory.model.hardware import NOT_REPORTED, Expectation

GPU = InspectedGpu(slot="GPU_SXM_1", model="H100", pcie_lanes=16, pcie_type="Gen5")
NICS = tuple(InspectedNic(slot=f"NIC.{n}", mac=f"94:6d:ae:00:00:0{n}", gbps=400.0, link="LinkUp") for n in (1, 2))


def seen(**changes: Any) -> Inspection:
    whole = {"gpus": (GPU,), "nics": NICS, "drives": 8, "bios_version": "2.10.1", "firmware": {"bmc": "7.00.60.00"}}
    return Inspection(serial="S-1", **{**whole, **changes})


def judged(bom: dict[str, Any], **changes: Any) -> list[tuple[str, str, str, bool]]:
    return [(m.where, m.expected, m.found, m.unknown) for m in compare_bom(BillOfMaterials(**bom), seen(**changes))]


WHOLE = {
    "gpu_pcie_lanes": 16,
    "gpu_pcie_generation": 5,
    "nic_count": 2,
    "nic_gbps": 400,
    "drive_count": 8,
    "firmware": {"bios": "2.9", "bmc": "7.00.60.00"},
}


def test_the_right_machine_has_no_difference_and_nothing_promised_is_nothing_judged() -> None:
    assert judged(WHOLE) == [] and compare_bom(BillOfMaterials(), Inspection()) == ()


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (
            {"gpus": (GPU.model_copy(update={"pcie_lanes": 8}),)},
            ("GPU slot GPU_SXM_1 PCIe width", "x16", "x8", False),
        ),
        (
            {"gpus": (GPU.model_copy(update={"pcie_lanes": None}),)},
            ("GPU slot GPU_SXM_1 PCIe width", "x16", NOT_REPORTED, True),
        ),
        (
            {"gpus": (GPU.model_copy(update={"pcie_type": "Gen4"}),)},
            ("GPU slot GPU_SXM_1 PCIe generation", "Gen5", "Gen4", False),
        ),
        (
            {"gpus": (GPU.model_copy(update={"pcie_type": "?"}),)},
            ("GPU slot GPU_SXM_1 PCIe generation", "Gen5", NOT_REPORTED, True),
        ),
        (
            {"nics": (NICS[0], NICS[1].model_copy(update={"gbps": 100.0}))},
            ("network port NIC.2", "400 Gbit/s", "100 Gbit/s", False),
        ),
        (
            {"nics": (NICS[0], NICS[1].model_copy(update={"gbps": None, "link": "LinkDown"}))},
            ("network port NIC.2", "400 Gbit/s", f"speed {NOT_REPORTED}, link LinkDown", True),
        ),
        ({"nics": NICS[:1]}, ("network ports at 400 Gbit/s", "2", "1", False)),
        ({"nics": ()}, ("network ports", "2", NOT_REPORTED, True)),
        ({"drives": 7}, ("number of drives", "8", "7", False)),
        ({"drives": None}, ("number of drives", "8", NOT_REPORTED, True)),
        ({"bios_version": "2.8.9"}, ("bios firmware", "2.9 or newer", "2.8.9", False)),
        ({"firmware": {}}, ("bmc firmware", "7.00.60.00 or newer", NOT_REPORTED, True)),
    ],
)
def test_a_difference_names_slot_expected_and_found(
    changes: dict[str, Any], difference: tuple[str, str, str, bool]
) -> None:
    assert judged(WHOLE, **changes) == [difference]


def test_an_absent_gpu_has_no_link_to_judge_and_spare_ports_do_no_harm() -> None:
    absent = InspectedGpu(slot="GPU_SXM_2", state="Absent")
    slow = InspectedNic(slot="NIC.OCP.1", mac="94:6d:ae:00:00:09", gbps=1.0)
    assert judged(WHOLE, gpus=(GPU, absent), nics=(*NICS, slow)) == []


@pytest.mark.parametrize(
    ("one", "other", "is_older"),
    [
        ("2.9", "2.10", True),
        ("2.10", "2.9", False),
        ("2.10", "2.10", False),
        ("v1.4.4", "1.4.4a", True),
        ("1.4.4a", "1.4.4", False),
        ("7.00.60.00", "7.00.60.00", False),
        ("7.00.30.00", "7.00.60.00", True),
        ("96.00.68.00.01", "96.00.74.00.01", True),
        ("U30 v3.34", "U30 v3.40", True),
        ("1.0", "1.0.1", True),
    ],
)
def test_versions_are_compared_part_by_part(one: str, other: str, is_older: bool) -> None:
    assert older(one, other) is is_older


def test_a_profile_may_accept_more_or_less_missing_memory() -> None:
    expected = {"serial": "S-1", "memory_gib": 2048}
    found = seen(memory_gib=2000, gpus=())
    assert differences(Expectation(**expected), found) == ()  # type: ignore[arg-type]
    strict = Expectation(**expected, bom=BillOfMaterials(memory_tolerance=0.01))  # type: ignore[arg-type]
    assert [m.where for m in differences(strict, found)] == ["memory"]
