"""What was inspected against what was promised: every difference, in words a technician can act on.

A value that is not known matches nothing: it is listed as a difference too, marked `unknown`, so that nothing
passes because a BMC was silent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from libs.contracts.hardware_ids import known_port, serial_number
from libs.contracts.inventory import BillOfMaterials
from libs.contracts.site import InspectedGpu, Inspection

# Firmware keeps some memory for itself, so a BMC may report a little less than the DIMMs add up to.
MEMORY_TOLERANCE = 0.05
NOT_REPORTED = "not reported by the BMC"
_BAD_STATES = ("disabled", "unavailableoffline", "standbyoffline", "inttest", "quiesced")
_BAD_HEALTH = ("critical", "warning")


@dataclass(frozen=True)
class Expectation:
    """What a machine must have: from its profile and its NetBox record. None and "" are not judged."""

    serial: str
    device_type: str = ""
    model: str = ""
    gpu_model: str = ""
    gpu_count: int = 0
    cpu_sockets: int | None = None
    memory_gib: int | None = None
    nic_macs: tuple[str, ...] = ()
    bom: BillOfMaterials | None = None


@dataclass(frozen=True)
class Mismatch:
    """One difference at `where` (a slot or a property). `unknown`: not known, rather than known to differ."""

    where: str
    expected: str
    found: str
    unknown: bool = False

    def text(self) -> str:
        return f"{self.where}: expected {self.expected}, found {self.found}"

    def as_dict(self) -> dict[str, str | bool]:
        return {"where": self.where, "expected": self.expected, "found": self.found, "unknown": self.unknown}


def compare(expected: Expectation, found: Inspection) -> tuple[Mismatch, ...]:
    """All differences; () only when everything that is promised was seen."""
    return (
        *_identity(expected, found),
        *_gpus(expected, found),
        *_amounts(expected, found),
        *_nics(expected, found),
    )


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _identity(expected: Expectation, found: Inspection) -> list[Mismatch]:
    differences = []
    if not serial_number(found.serial):
        said = (
            f"{found.serial.strip()!r}, which firmware says when it has none" if found.serial.strip() else NOT_REPORTED
        )
        differences.append(Mismatch("serial number", expected.serial, said, unknown=True))
    elif serial_number(found.serial) != serial_number(expected.serial):
        differences.append(Mismatch("serial number", expected.serial, found.serial))
    if expected.model:
        if not found.model.strip():
            differences.append(Mismatch("model", expected.model, NOT_REPORTED, unknown=True))
        elif not _same_model(expected.model, found.model):
            differences.append(Mismatch("model", expected.model, found.model))
    return differences


def _same_model(one: str, other: str) -> bool:
    """Vendors write a model with and without spaces and their own name: "DGX H100", "NVIDIA DGXH100"."""
    a, b = _plain(one), _plain(other)
    return a in b or b in a


def _same_gpu(expected: str, found: str) -> bool:
    def name(text: str) -> str:
        return _plain(text).removeprefix("nvidia")

    return name(expected) == name(found)


def _gpus(expected: Expectation, found: Inspection) -> list[Mismatch]:
    present = [gpu for gpu in found.gpus if gpu.state.lower() != "absent"]
    differences = [problem for gpu in present if (problem := _gpu(expected, gpu)) is not None]
    short = expected.gpu_count - len(present)
    if short > 0:
        silent = not present and not found.gpu_slots_absent
        absent = found.gpu_slots_absent[:short] if not silent else ()
        differences += [
            Mismatch(f"GPU slot {slot}", expected.gpu_model, "nothing (the slot is empty)") for slot in absent
        ]
        if len(absent) < short:
            number = NOT_REPORTED if silent else str(len(present))
            differences.append(Mismatch("number of GPUs", str(expected.gpu_count), number, unknown=silent))
    elif short < 0:
        differences.append(Mismatch("number of GPUs", str(expected.gpu_count), str(len(present))))
    return differences


def _gpu(expected: Expectation, gpu: InspectedGpu) -> Mismatch | None:
    where = f"GPU slot {gpu.slot}"
    if gpu.state.lower() in _BAD_STATES:
        return Mismatch(where, f"{expected.gpu_model}, enabled", f"{gpu.model or 'a GPU'} that is {gpu.state}")
    if gpu.health.lower() in _BAD_HEALTH:
        return Mismatch(where, f"{expected.gpu_model}, health OK", f"{gpu.model or 'a GPU'} with health {gpu.health}")
    if not expected.gpu_count:
        return None
    if not gpu.model.strip():
        return Mismatch(where, expected.gpu_model, f"a GPU whose model is {NOT_REPORTED}", unknown=True)
    if expected.gpu_model and not _same_gpu(expected.gpu_model, gpu.model):
        return Mismatch(where, expected.gpu_model, gpu.model)
    return None


def _amounts(expected: Expectation, found: Inspection) -> list[Mismatch]:
    differences = []
    if expected.cpu_sockets is not None and found.cpu_count != expected.cpu_sockets:
        differences.append(_amount("processors", expected.cpu_sockets, found.cpu_count, ""))
    if expected.memory_gib is not None:
        told = expected.bom.memory_tolerance if expected.bom else None
        least = expected.memory_gib * (1 - (MEMORY_TOLERANCE if told is None else told))
        if found.memory_gib is None or found.memory_gib < least:
            differences.append(_amount("memory", expected.memory_gib, found.memory_gib, " GiB"))
    return differences


def _amount(where: str, expected: int, found: int | None, unit: str) -> Mismatch:
    text = NOT_REPORTED if found is None else f"{found}{unit}"
    return Mismatch(where, f"{expected}{unit}", text, unknown=found is None)


def _nics(expected: Expectation, found: Inspection) -> list[Mismatch]:
    """A MAC is judged only when the BMC lists any: many list none while the machine is off."""
    seen = {port for mac in found.nic_macs if (port := known_port(mac))}
    if not seen:
        return []
    return [
        Mismatch("network port", mac, "no port with that MAC")
        for mac in expected.nic_macs
        if known_port(mac) not in seen
    ]
