"""What each emulated BMC knows about its machine, as plain JSON for the emulator's own interpreter.

The emulator runs in Ironic's environment and cannot import the fleet; this module is the one place where
the fleet's words become the BMC's.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TypedDict

from deploy.lab.bmc.gpus import gpus_of
from deploy.lab.fleet import DeviceType, Fleet, Machine


class Firmware(TypedDict):
    """Versions in each vendor's own manner of writing them."""

    bios: str
    bmc: str
    bmc_model: str


# Releases of 2024 from each vendor's support pages.
_FIRMWARE: dict[str, Firmware] = {
    "NVIDIA": {"bios": "1.5.4", "bmc": "24.09.17", "bmc_model": "DGX H100 BMC"},
    "Dell": {"bios": "2.3.5", "bmc": "7.10.50.10", "bmc_model": "16G Monolithic"},
    "Supermicro": {"bios": "2.1.V1", "bmc": "01.03.15", "bmc_model": "ASPEED AST2600"},
}
_DRIVE_MODELS = {
    "NVIDIA": "KCM6DRUL3T84",
    "Dell": "Dell Ent NVMe PM1733a RI 3.84TB",
    "Supermicro": "MZQL21T9HCJR-00A07",
}


class SystemFacts(TypedDict):
    """One system. Sizes in the units of the names; `gpus` as `deploy.lab.bmc.gpus.Gpu`."""

    uuid: str
    name: str
    manufacturer: str
    model: str
    serial: str
    asset_tag: str
    bmc_ip: str
    bmc_mac: str
    nic_macs: list[str]
    cpu_model: str
    cpu_sockets: int
    cpu_cores: int
    cpu_threads: int
    memory_gib: int
    drives: list[dict[str, str | int]]
    gpus: list[dict[str, str | int | bool]]
    firmware: Firmware


def facts_of(machine: Machine, kind: DeviceType) -> SystemFacts:
    """What the BMC of `machine`, a `kind`, answers."""
    return {
        "uuid": str(machine.bmc_system_uuid),
        "name": machine.name,
        "manufacturer": kind.manufacturer,
        "model": kind.model,
        "serial": machine.serial,
        "asset_tag": machine.asset_tag,
        "bmc_ip": str(machine.bmc_ip),
        "bmc_mac": machine.bmc_mac,
        "nic_macs": list(machine.nic_macs),
        "cpu_model": kind.cpu_model,
        "cpu_sockets": kind.cpu_sockets,
        "cpu_cores": kind.cpu_cores,
        "cpu_threads": kind.cpu_threads,
        "memory_gib": kind.memory_gib,
        "drives": [_drive(machine, kind, number) for number in range(kind.drive_count)],
        "gpus": [asdict(gpu) for gpu in gpus_of(machine, kind)],
        "firmware": _FIRMWARE[kind.manufacturer],
    }


def fleet_facts(fleet: Fleet) -> list[SystemFacts]:
    """The facts of every machine, in the fleet's order."""
    return [facts_of(machine, fleet.device_type(machine.device_type)) for machine in fleet.machines]


def _drive(machine: Machine, kind: DeviceType, number: int) -> dict[str, str | int]:
    serial = hashlib.sha256(f"{machine.serial}/drive {number}".encode()).hexdigest()[:12].upper()
    return {
        "id": f"nvme{number}",
        "serial": f"S6{serial}",
        "model": _DRIVE_MODELS[kind.manufacturer],
        "capacity_bytes": kind.drive_size_gb * 1_000_000_000,
    }
