"""The lab's GPUs are the same at each start, and its nvidia-smi speaks the real program's format."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from deploy.lab.bmc.gpus import gpus_of
from deploy.lab.fleet import load_fleet
from deploy.lab.hosts.nvidia_smi import INVALID_ARGUMENT, NO_DEVICE, Gpu, answer, present_gpus


def of(name: str) -> list[dict[str, object]]:
    fleet = load_fleet()
    machine = fleet.machine(name)
    return [asdict(gpu) for gpu in gpus_of(machine, fleet.device_type(machine.device_type))]


def present(name: str, faults: dict[str, object] | None = None) -> list[Gpu]:
    return present_gpus(of(name), faults or {})


def test_every_gpu_of_the_fleet_has_a_serial_and_a_uuid_of_its_own() -> None:
    gpus = [gpu for machine in load_fleet().machines for gpu in of(machine.name)]
    assert len({gpu["serial"] for gpu in gpus}) == len({gpu["uuid"] for gpu in gpus}) == len(gpus) == 80


def test_as_many_gpus_are_present_as_the_fleet_says() -> None:
    for machine in load_fleet().machines:
        assert len(present(machine.name)) == machine.gpus_installed


def test_indexes_have_no_gap_where_a_slot_is_empty() -> None:
    gpus = present("fra1-r1-gpu-04")
    assert [gpu.index for gpu in gpus] == list(range(7))
    assert [gpu.slot for gpu in gpus] != list(range(7))


def test_a_csv_query_has_a_header_with_units() -> None:
    code, lines = answer(present("fra1-r1-gpu-01"), ["--query-gpu=index,memory.total", "--format=csv", "-i", "1"])
    assert (code, lines) == (0, ["index, memory.total [MiB]", "1, 81559 MiB"])


def test_units_and_header_can_be_left_out() -> None:
    arguments = ["--query-gpu=name,memory.total", "--format=csv,noheader,nounits", "--id=0"]
    assert answer(present("fra1-r1-gpu-01"), arguments) == (0, ["NVIDIA H100 80GB HBM3, 81559"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--query-gpu=nonsense", "--format=csv"],
        ["--query-gpu=index"],
        ["--query-gpu=index", "--format=xml"],
        ["--reset"],
    ],
)
def test_what_the_stand_in_does_not_know_is_an_error(arguments: list[str]) -> None:
    assert answer(present("fra1-r1-gpu-01"), arguments)[0] == INVALID_ARGUMENT


def test_a_machine_whose_gpus_are_all_gone_says_so_and_does_not_succeed() -> None:
    gone = present("fra1-r1-gpu-01", {"gpu": {"missing": list(range(8))}})
    assert answer(gone, ["-L"]) == (NO_DEVICE, ["No devices were found"])
