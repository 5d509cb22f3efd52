"""What was inspected against what was promised."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.site import InspectedGpu
from services.inventory.model.hardware import NOT_REPORTED, Expectation, compare
from tests.unit.services.inventory.machines import H100, inspection

DGX = Expectation(serial="1660223969975", model="DGX H100", gpu_model=H100, gpu_count=8, cpu_sockets=2, memory_gib=2048)


def gpu(number: int, **changes: Any) -> InspectedGpu:
    return InspectedGpu.model_validate({"slot": f"GPU_SXM_{number}", "model": H100, **changes})


EIGHT = tuple(gpu(number) for number in range(1, 9))


def test_the_right_hardware_has_no_mismatch() -> None:
    assert compare(DGX, inspection(gpus=EIGHT)) == ()


def test_an_empty_slot_is_named_with_what_belongs_there() -> None:
    found = inspection(gpus=EIGHT[:3] + EIGHT[4:], gpu_slots_absent=("GPU_SXM_4",))
    (mismatch,) = compare(DGX, found)
    assert mismatch.where == "GPU slot GPU_SXM_4" and mismatch.expected == H100 and not mismatch.unknown


def test_a_missing_gpu_without_a_named_slot_is_a_number() -> None:
    (mismatch,) = compare(DGX, inspection(gpus=EIGHT[:7]))
    assert (mismatch.where, mismatch.expected, mismatch.found) == ("number of GPUs", "8", "7")


def test_a_slot_that_says_absent_is_no_gpu() -> None:
    found = inspection(gpus=(*EIGHT[:7], gpu(8, state="Absent")), gpu_slots_absent=("GPU_SXM_8",))
    assert [item.where for item in compare(DGX, found)] == ["GPU slot GPU_SXM_8"]


def test_a_silent_bmc_is_unknown_and_does_not_pass() -> None:
    found = inspection(gpus=(), serial="", model="", memory_gib=None, cpu_count=None)
    mismatches = compare(DGX, found)
    assert {item.where for item in mismatches} == {"serial number", "model", "number of GPUs", "processors", "memory"}
    assert all(item.unknown and item.found == NOT_REPORTED for item in mismatches)


@pytest.mark.parametrize(
    ("found", "where"),
    [
        ({"serial": "OTHER"}, "serial number"),
        ({"model": "PowerEdge XE9680"}, "model"),
        ({"memory_gib": 1536}, "memory"),
        ({"cpu_count": 1}, "processors"),
        ({"gpus": (*EIGHT, gpu(9))}, "number of GPUs"),
        ({"gpus": (*EIGHT[:7], gpu(8, model="NVIDIA A100-SXM4-80GB"))}, "GPU slot GPU_SXM_8"),
        ({"gpus": (*EIGHT[:7], gpu(8, model=""))}, "GPU slot GPU_SXM_8"),
        ({"gpus": (*EIGHT[:7], gpu(8, health="Critical"))}, "GPU slot GPU_SXM_8"),
        ({"gpus": (*EIGHT[:7], gpu(8, state="Disabled"))}, "GPU slot GPU_SXM_8"),
    ],
)
def test_each_difference_is_named(found: dict[str, Any], where: str) -> None:
    assert [item.where for item in compare(DGX, inspection(**{"gpus": EIGHT, **found}))] == [where]


def test_a_little_memory_kept_by_firmware_is_no_difference() -> None:
    assert compare(DGX, inspection(gpus=EIGHT, memory_gib=2015)) == ()


def test_two_gpus_in_slots_of_one_name_are_two_gpus() -> None:
    assert compare(DGX, inspection(gpus=tuple(gpu(1) for _ in range(8)))) == ()


def test_a_network_port_is_judged_only_when_the_bmc_lists_ports() -> None:
    expected = Expectation(serial="1660223969975", gpu_model=H100, gpu_count=8, nic_macs=("AA:BB:CC:00:11:22",))
    assert compare(expected, inspection(gpus=EIGHT)) == ()
    assert compare(expected, inspection(gpus=EIGHT, nic_macs=("aa:bb:cc:00:11:22",))) == ()
    (mismatch,) = compare(expected, inspection(gpus=EIGHT, nic_macs=("aa:bb:cc:00:11:33",)))
    assert mismatch.where == "network port"


def test_a_cpu_machine_has_no_gpu() -> None:
    cpu = Expectation(serial="1660223969975")
    assert compare(cpu, inspection(gpus=())) == ()
    assert [item.where for item in compare(cpu, inspection(gpus=EIGHT[:1]))] == ["number of GPUs"]


def test_two_boards_without_a_serial_number_do_not_pass_because_both_say_default_string() -> None:
    promised = Expectation(serial="Default string", model="DGX H100", gpu_model=H100, gpu_count=8)
    (mismatch,) = compare(promised, inspection(gpus=EIGHT, serial="Default string"))
    assert mismatch.where == "serial number" and mismatch.unknown and "Default string" in mismatch.found


def test_a_port_is_found_whatever_notation_its_address_is_written_in() -> None:
    promised = Expectation(serial="1660223969975", nic_macs=("94:6d:ae:aa:4b:62",))
    assert compare(promised, inspection(gpus=(), nic_macs=("946D.AEAA.4B62",))) == ()
