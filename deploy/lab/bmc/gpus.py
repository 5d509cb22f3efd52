"""The GPUs of a lab machine, slot by slot, as its BMC and its `nvidia-smi` both tell them.

Serials, UUIDs and addresses follow from the machine's own serial, so every start describes the same
hardware. A machine with fewer GPUs than its type has an empty slot, always the same one.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

from deploy.lab.fleet import DeviceType, Machine

# PCI bus addresses of the eight SXM modules as the operating system of each vendor's machine shows them.
_BUS_ADDRESSES = {
    "NVIDIA": ("1B", "43", "52", "61", "9D", "C3", "D1", "DF"),
    "Dell": ("19", "3B", "4C", "5D", "9B", "BB", "CB", "DB"),
}
# Dell's Redfish names GPUs by slot; NVIDIA's HGX firmware by module.
_DELL_SLOTS = (21, 22, 23, 24, 25, 26, 27, 28)
# Total as nvidia-smi reports an 80 GB H100: less than 80 GiB (81,920 MiB), because the driver keeps some.
_H100_80GB_MEMORY_MIB = 81559
_NAMESPACE = uuid.UUID("0f6f1c1c-6f0e-5d0b-9a62-6d2b8d9c7a11")


@dataclass(frozen=True)
class Gpu:
    """One GPU slot: `slot` counts from 0; `installed` is False for an empty one."""

    slot: int
    redfish_id: str
    model: str
    serial: str
    uuid: str
    pci_bus_id: str
    memory_mib: int
    installed: bool


def gpus_of(machine: Machine, kind: DeviceType) -> tuple[Gpu, ...]:
    """All GPU slots of `machine`, () for a machine whose type has none."""
    empty = _empty_slots(machine, kind)
    return tuple(_gpu(machine, kind, slot, slot not in empty) for slot in range(kind.gpu_count))


def _digest(machine: Machine, what: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{machine.serial}/{what}".encode()).digest()[:8])


def _empty_slots(machine: Machine, kind: DeviceType) -> frozenset[int]:
    slots = sorted(range(kind.gpu_count), key=lambda slot: _digest(machine, f"slot {slot}"))
    return frozenset(slots[: kind.gpu_count - machine.gpus_installed])


def _gpu(machine: Machine, kind: DeviceType, slot: int, installed: bool) -> Gpu:
    buses = _BUS_ADDRESSES.get(kind.manufacturer, _BUS_ADDRESSES["NVIDIA"])
    return Gpu(
        slot=slot,
        redfish_id=f"Video.Slot.{_DELL_SLOTS[slot]}-1" if kind.manufacturer == "Dell" else f"GPU_SXM_{slot + 1}",
        model=kind.gpu_model or "",
        serial=f"165{_digest(machine, f'serial {slot}') % 10**10:010d}",
        uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{machine.serial}/{slot}')}",
        pci_bus_id=f"00000000:{buses[slot]}:00.0",
        memory_mib=_H100_80GB_MEMORY_MIB if kind.gpu_memory_gib == 80 else kind.gpu_memory_gib * 1024,
        installed=installed,
    )
