"""Faults that can be put into a lab machine while everything runs, and taken out again.

A fault file is read anew at every step, so a fault works from the next step on. One file per machine serves
Ironic's steps, the BMC and the host's `nvidia-smi`, because one broken machine shows in all three.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

from deploy.lab.fleet import load_fleet
from deploy.lab.ironic.whole_file import write_whole

# Every step that can be told to fail or to take longer; the names are Ironic's.
STEPS = frozenset(
    {
        "deploy",
        "write_image",
        "boot_instance",
        "tear_down",
        "erase_devices",
        "factory_reset",
        "apply_configuration",
    }
)


class GpuFault(TypedDict, total=False):
    """GPU slots count from 0. `missing`: gone from the bus; `ecc_uncorrected`: slot → volatile errors;
    `health`: slot → Redfish health ("Critical", "Warning", "")."""

    missing: list[int]
    ecc_uncorrected: dict[str, int]
    health: dict[str, str]


class BmcFault(TypedDict, total=False):
    """`status`: every Redfish answer about the machine has this HTTP status; `power_stuck`: orders are accepted
    and nothing happens."""

    status: int
    power_stuck: bool


class Fault(TypedDict, total=False):
    """`fail`: step → error message; `delay`: step → seconds (instead of the usual 0.3)."""

    fail: dict[str, str]
    delay: dict[str, float]
    gpu: GpuFault
    bmc: BmcFault


def fault_file(var: Path, machine_name: str) -> Path:
    """Where the machine's fault is kept."""
    return var / "lab" / "ironic" / "faults" / f"{machine_name}.json"


def inject_fault(var: Path, machine_name: str, fault: Fault) -> None:
    """Replace the machine's fault by `fault`.

    Raises KeyError for a machine that is not in the fleet and ValueError for a step that does not exist.
    """
    load_fleet().machine(machine_name)
    unknown = ({*fault.get("fail", {})} | {*fault.get("delay", {})}) - STEPS
    if unknown:
        raise ValueError(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(sorted(STEPS))}")
    write_whole(fault_file(var, machine_name), json.dumps(fault))


def clear_fault(var: Path, machine_name: str) -> None:
    """Take the machine's fault out. Harmless when it has none."""
    fault_file(var, machine_name).unlink(missing_ok=True)
