"""Evidence of a machine with nothing wrong, as the collectors answer it (docs/architecture/evidence.md)."""

from __future__ import annotations

import copy
from typing import Any

from libs.contracts.site import Evidence

MODEL = "NVIDIA H100 80GB HBM3"
EXPECTED: dict[str, object] = {
    "gpu_count": 8,
    "gpu_model": MODEL,
    "serial": "1660223969975",
    "memory_gib": 2048,
    "cpu_sockets": 2,
    "drives": 2,
    "hostname": "acme-train-1",
}
SMI_HEADER = (
    "index, uuid, serial, name, pci.bus_id, memory.total [MiB], driver_version, "
    "ecc.errors.uncorrected.volatile.total, ecc.errors.uncorrected.aggregate.total"
)


def smi_row(number: int, **changes: str) -> str:
    values = {
        "index": str(number),
        "uuid": f"GPU-5b6f0d0c-0000-4000-8000-00000000000{number}",
        "serial": f"165000000000{number}",
        "name": MODEL,
        "bus": f"00000000:{number + 1}B:00.0",
        "memory": "81559",
        "driver": "550.90.07",
        "volatile": "0",
        "aggregate": "0",
    }
    return ", ".join({**values, **changes}.values())


def smi(*rows: str, exit_code: int = 0) -> dict[str, Any]:
    return {"csv": "\n".join((SMI_HEADER, *rows)) + "\n", "stderr": "", "exit_code": exit_code}


def gpu(number: int, **changes: Any) -> dict[str, Any]:
    good = {
        "slot": f"GPU_SXM_{number}",
        "model": MODEL,
        "serial": f"165000000000{number}",
        "state": "Enabled",
        "health": "OK",
        "view": "processors",
    }
    return {**good, **changes}


def drive(number: int, **changes: Any) -> dict[str, Any]:
    good = {
        "id": f"nvme{number}",
        "model": "KCM6DRUL3T84",
        "serial": f"S6000{number}",
        "capacity_bytes": 3_840_000_000_000,
        "state": "Enabled",
        "health": "OK",
    }
    return {**good, **changes}


_GOOD: dict[str, Any] = {
    "redfish.power": {"power_state": "Off"},
    "redfish.system": {
        "serial": "1660223969975",
        "model": "DGX H100",
        "manufacturer": "NVIDIA",
        "health": "OK",
        "memory_gib": 2048,
        "cpu_count": 2,
        "power_state": "Off",
    },
    "redfish.gpus": {"gpus": [gpu(number) for number in range(1, 9)], "absent": []},
    "redfish.drives": {"drives": [drive(0), drive(1)], "absent": []},
    "ssh.hostname": {"hostname": "acme-train-1"},
    "ssh.nvidia_smi": smi(*(smi_row(index) for index in range(8))),
    "ssh.cpu_memory": {"cpus": 224, "memory_kib": 2_113_400_000},
    "ssh.disk": {"path": "/home/slipway", "free_bytes": 3_500_000_000_000, "write_ok": True},
    "ssh.time": {"epoch_seconds": 1_767_225_600, "collector_epoch_seconds": 1_767_225_600},
}


def good() -> dict[str, Any]:
    """Outputs by collector; a fresh copy."""
    return copy.deepcopy(_GOOD)


def as_evidence(outputs: dict[str, Any]) -> list[Evidence]:
    return [Evidence(check=how, status="ran", output=output) for how, output in outputs.items()]
