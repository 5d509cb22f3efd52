"""The simulated site's hardware: what each machine contains, from the same fleet file the lab uses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict


class _Kind(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    slug: str
    manufacturer: str
    model: str
    gpu_model: str | None
    gpu_count: int
    cpu_model: str
    cpu_sockets: int
    cpu_threads: int
    memory_gib: int
    drive_count: int
    drive_size_gb: int


class _Machine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    device_type: str
    serial: str
    bmc_ip: str
    nic_macs: tuple[str, ...]
    gpus_installed: int
    ssh_port_offset: int


@dataclass(frozen=True)
class Gpu:
    """One GPU slot of a machine, counted from 0; an empty one is not `installed`."""

    number: int
    slot: str
    model: str
    serial: str
    uuid: str
    pci_bus_id: str
    installed: bool


@dataclass(frozen=True)
class Hardware:
    """One machine as it really is."""

    machine: _Machine
    kind: _Kind

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def address(self) -> str:
        """Where the machine's host would answer; documentation addresses (RFC 5737), since nothing listens."""
        return f"192.0.2.{10 + self.machine.ssh_port_offset % 240}"

    def gpus(self) -> list[Gpu]:
        """All GPU slots. A machine that lacks GPUs has its last slots empty."""
        return [self._gpu(number) for number in range(self.kind.gpu_count)]

    def _gpu(self, number: int) -> Gpu:
        digest = hashlib.sha256(f"{self.machine.serial}/gpu/{number}".encode()).hexdigest()
        return Gpu(
            number=number,
            slot=f"GPU_SXM_{number + 1}",
            model=self.kind.gpu_model or "",
            serial=f"165{int(digest[:10], 16) % 10**10:010d}",
            uuid=f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}",
            pci_bus_id=f"00000000:{0x1B + 0x18 * number:02X}:00.0",
            installed=number < self.machine.gpus_installed,
        )

    def drives(self) -> list[dict[str, Any]]:
        """The drives as `redfish.drives` shows them."""
        return [
            {
                "id": f"nvme{number}",
                "model": "KCM6DRUL3T84",
                "serial": "S6" + hashlib.sha256(f"{self.machine.serial}/{number}".encode()).hexdigest()[:12].upper(),
                "capacity_bytes": self.kind.drive_size_gb * 1_000_000_000,
                "state": "Enabled",
                "health": "OK",
            }
            for number in range(self.kind.drive_count)
        ]


def load_hardware(path: Path) -> dict[str, Hardware]:
    """BMC address → machine. Raises OSError or pydantic.ValidationError for a file that is none."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    kinds = {kind.slug: kind for kind in map(_Kind.model_validate, document["device_types"])}
    machines = map(_Machine.model_validate, document["machines"])
    return {machine.bmc_ip: Hardware(machine, kinds[machine.device_type]) for machine in machines}
