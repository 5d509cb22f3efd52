"""A stand-in for NVIDIA's `nvidia-smi` on the lab's hosts: the same options, columns and words, made-up GPUs.

Run as `nvidia_smi.py GPUS.json FAULTS.json [options]` by a wrapper on the host's PATH. It answers `-L`,
`--query-gpu=… --format=csv[,noheader][,nounits]`, `-i N` and `--help-query-gpu`, from the fleet's data and
the injected faults: a missing GPU is not listed, an ECC error count is reported. Uses the standard library only.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

DRIVER_VERSION = "550.90.07"
CUDA_VERSION = "12.4"
VBIOS_VERSION = "96.00.89.00.01"
# Exit codes of the real program (nvidia-smi(1), RETURN VALUE).
INVALID_ARGUMENT = 2
NO_DEVICE = 6

_UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "power.draw": "W",
    "power.limit": "W",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "clocks.sm": "MHz",
    "clocks.mem": "MHz",
    "clocks.max.sm": "MHz",
}


@dataclass(frozen=True)
class Gpu:
    """A GPU the driver has found: `index` counts those that are present."""

    index: int
    slot: int
    name: str
    uuid: str
    serial: str
    pci_bus_id: str
    memory_mib: int
    ecc_uncorrected: int


class BadArgument(ValueError):
    """An option or field the program does not know; the message is the real program's."""


def present_gpus(facts: list[dict[str, object]], faults: dict[str, object]) -> list[Gpu]:
    """The GPUs that the driver finds, in bus order."""
    gpu_faults = faults.get("gpu")
    fault: dict[str, object] = gpu_faults if isinstance(gpu_faults, dict) else {}
    missing, ecc = fault.get("missing", []), fault.get("ecc_uncorrected", {})
    assert isinstance(missing, list) and isinstance(ecc, dict)
    present = [gpu for gpu in facts if gpu["installed"] and gpu["slot"] not in missing]
    return [
        Gpu(
            index=index,
            slot=int(str(gpu["slot"])),
            name=str(gpu["model"]),
            uuid=str(gpu["uuid"]),
            serial=str(gpu["serial"]),
            pci_bus_id=str(gpu["pci_bus_id"]),
            memory_mib=int(str(gpu["memory_mib"])),
            ecc_uncorrected=int(ecc.get(str(gpu["slot"]), 0)),
        )
        for index, gpu in enumerate(present)
    ]


def fields(gpu: Gpu, count: int) -> dict[str, str]:
    """Every field that can be queried, by its name, without units. An idle H100 in every value that varies."""
    return {
        "timestamp": datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3],
        "driver_version": DRIVER_VERSION,
        "count": str(count),
        "name": gpu.name,
        "gpu_name": gpu.name,
        "index": str(gpu.index),
        "serial": gpu.serial,
        "gpu_serial": gpu.serial,
        "uuid": gpu.uuid,
        "gpu_uuid": gpu.uuid,
        "pci.bus_id": gpu.pci_bus_id,
        "gpu_bus_id": gpu.pci_bus_id,
        "vbios_version": VBIOS_VERSION,
        "compute_mode": "Default",
        "mig.mode.current": "Disabled",
        "persistence_mode": "Enabled",
        "pstate": "P0",
        "pcie.link.gen.current": "5",
        "pcie.link.gen.max": "5",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "memory.total": str(gpu.memory_mib),
        "memory.used": "1",
        "memory.free": str(gpu.memory_mib - 1),
        "ecc.mode.current": "Enabled",
        "ecc.mode.pending": "Enabled",
        "ecc.errors.corrected.volatile.total": "0",
        "ecc.errors.uncorrected.volatile.total": str(gpu.ecc_uncorrected),
        "ecc.errors.corrected.aggregate.total": "0",
        "ecc.errors.uncorrected.aggregate.total": str(gpu.ecc_uncorrected),
        "remapped_rows.uncorrectable": "0",
        "remapped_rows.correctable": "0",
        "remapped_rows.pending": "No",
        "remapped_rows.failure": "No",
        "temperature.gpu": str(29 + gpu.slot % 4),
        "power.draw": f"{69 + gpu.slot % 5}.31",
        "power.limit": "700.00",
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "clocks.sm": "345",
        "clocks.mem": "2619",
        "clocks.max.sm": "1980",
        "clocks_throttle_reasons.active": "0x0000000000000001",
    }


def query(gpus: list[Gpu], names: list[str], style: list[str]) -> list[str]:
    """The lines of a CSV query. Raises BadArgument for an unknown field or format."""
    if "csv" not in style or set(style) - {"csv", "noheader", "nounits"}:
        raise BadArgument('"--format=" must contain "csv"; "noheader" and "nounits" may follow.')
    known = fields(Gpu(0, 0, "", "", "", "", 0, 0), 0)
    for name in names:
        if name not in known:
            raise BadArgument(f'Field "{name}" is not a valid field to query.')
    with_units = "nounits" not in style
    header = [f"{name} [{_UNITS[name]}]" if with_units and name in _UNITS else name for name in names]
    lines = [] if "noheader" in style else [", ".join(header)]
    for gpu in gpus:
        values = fields(gpu, len(gpus))
        cells = [f"{values[name]} {_UNITS[name]}" if with_units and name in _UNITS else values[name] for name in names]
        lines.append(", ".join(cells))
    return lines


def _summary(gpus: list[Gpu]) -> list[str]:
    rule = "+" + "-" * 77 + "+"
    title = f"| NVIDIA-SMI {DRIVER_VERSION}  Driver Version: {DRIVER_VERSION}  CUDA Version: {CUDA_VERSION}"
    rows = [
        f"| {gpu.index:>3}  {gpu.name:<28} {gpu.pci_bus_id}  1MiB / {gpu.memory_mib}MiB  ECC {gpu.ecc_uncorrected}"
        for gpu in gpus
    ]
    return [rule, *(f"{line:<78}|" for line in (title, *rows)), rule]


def _chosen(gpus: list[Gpu], wanted: str | None) -> list[Gpu]:
    if wanted is None:
        return gpus
    names = wanted.split(",")
    return [gpu for gpu in gpus if {str(gpu.index), gpu.uuid, gpu.serial, gpu.pci_bus_id} & set(names)]


def _options(arguments: list[str]) -> dict[str, str]:
    """Options as {name: value}; "-i 0", "--id=0" and "-L" are understood. Raises BadArgument."""
    found: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        name, equals, value = waiting.pop(0).partition("=")
        if name in ("-i", "--id"):
            found["id"] = value if equals else waiting.pop(0) if waiting else ""
        elif name in ("--query-gpu", "--format") and equals:
            found[name] = value
        elif name in ("-L", "--list-gpus", "-h", "--help", "--help-query-gpu", "--version"):
            found[name] = ""
        else:
            raise BadArgument(f"Invalid combination of input arguments. Option {name} is not recognized.")
    return found


def answer(gpus: list[Gpu], arguments: list[str]) -> tuple[int, list[str]]:
    """Exit code and output lines for the arguments."""
    try:
        options = _options(arguments)
        chosen = _chosen(gpus, options.get("id"))
        if {"-h", "--help", "--version", "--help-query-gpu"} & set(options):
            return 0, [
                f"NVIDIA-SMI stand-in of Slipway's lab, version {DRIVER_VERSION}",
                *fields(Gpu(0, 0, "", "", "", "", 0, 0), 0),
            ]
        if not chosen:
            return NO_DEVICE, ["No devices were found"]
        if "--query-gpu" in options:
            names = [name.strip() for name in options["--query-gpu"].split(",")]
            return 0, query(chosen, names, options.get("--format", "").split(","))
        if "-L" in options or "--list-gpus" in options:
            return 0, [f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})" for gpu in chosen]
        return 0, _summary(chosen)
    except BadArgument as error:
        return INVALID_ARGUMENT, [str(error)]


def main(arguments: list[str]) -> int:
    """Print the answer; returns the exit code."""
    facts = json.loads(Path(arguments[0]).read_text())
    fault_file = Path(arguments[1])
    faults = json.loads(fault_file.read_text()) if fault_file.exists() else {}
    code, lines = answer(present_gpus(facts, faults), arguments[2:])
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
