"""Redfish documents read as facts: pure, and wrong about nothing it was not told.

Null, blank, a number written as text, an unlisted state: each is kept as what it is or left out as unknown. A
slot whose state is Absent is no GPU. Two views of one card are never added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from libs.contracts.hardware_ids import known_port
from libs.contracts.site import InspectedGpu, InspectedNic, Inspection

Document = Mapping[str, Any]
ABSENT = "Absent"
# How BMCs describe the network card they play to the operating system over USB: it has the same MAC everywhere.
_VIRTUAL_NIC = re.compile(r"usb|cdc|virtual|host\s*interface|rndis", re.IGNORECASE)
# The maker says nothing: network cards and switches are NVIDIA's too, and counting one would hide a missing GPU.
_GPU_MODEL = re.compile(r"\b([abhl]\d{2,3}[a-z]?|gb\d{3}|mi\d{3}[a-z]?)\b", re.IGNORECASE)


def text(value: object) -> str:
    """`value` when it is text, trimmed of blanks and NULs; "" otherwise."""
    return value.replace("\x00", "").strip() if isinstance(value, str) else ""


def number(value: object) -> float | None:
    """A number, also one written as text ("5500"); None for anything else, booleans included."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*", value):
        return float(value)
    return None


def whole(value: object) -> int | None:
    """A whole number, None when `value` is none."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def inner(document: Document, *names: str) -> object:
    """The value at a path of names; None when any of it is missing or null."""
    value: object = document
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def power(document: Document) -> str:
    """ "on" or "off"; everything else, PoweringOff and blanks included, is "unknown"."""
    return {"On": "on", "Off": "off"}.get(text(document.get("PowerState")), "unknown")


def health(document: Document) -> str:
    """Status.HealthRollup, else Status.Health, as the BMC wrote it; "" when it wrote none."""
    return text(inner(document, "Status", "HealthRollup")) or text(inner(document, "Status", "Health"))


def system_evidence(document: Document) -> dict[str, object]:
    """The output of `redfish.system`."""
    return {
        "serial": text(document.get("SerialNumber")),
        "model": text(document.get("Model")),
        "manufacturer": text(document.get("Manufacturer")),
        "health": health(document),
        "memory_gib": number(inner(document, "MemorySummary", "TotalSystemMemoryGiB")),
        "cpu_count": whole(inner(document, "ProcessorSummary", "Count")),
        "power_state": text(document.get("PowerState")),
    }


def gpu_entries(processors: Sequence[Document], pcie_devices: Sequence[Document]) -> list[dict[str, str]]:
    """Every GPU entry of both views, absent ones included: {slot, model, serial, state, health, view}."""
    found = [_gpu(entry, "processors") for entry in processors if text(entry.get("ProcessorType")).upper() == "GPU"]
    slots = {entry["slot"] for entry in found}
    found += [
        _gpu(entry, "pcie_devices")
        for entry in pcie_devices
        if text(entry.get("Id")) in slots or _GPU_MODEL.search(text(entry.get("Model")))
    ]
    return found


def _gpu(entry: Document, view: str) -> dict[str, str]:
    return {
        "slot": text(entry.get("Id")) or text(entry.get("Name")),
        "model": text(entry.get("Model")),
        "serial": text(entry.get("SerialNumber")),
        "state": text(inner(entry, "Status", "State")),
        "health": text(inner(entry, "Status", "Health")),
        "view": view,
    }


def _pcie(entry: Document) -> tuple[int | None, str]:
    """(lanes in use, "Gen5") of a Processor or a PCIeDevice; None and "" where it does not say."""
    link = inner(entry, "PCIeInterface") or inner(entry, "SystemInterface", "PCIe")
    found = link if isinstance(link, Mapping) else {}
    return whole(found.get("LanesInUse")) or None, text(found.get("PCIeType"))


def pcie_links(entries: Sequence[Document]) -> dict[str, tuple[int | None, str]]:
    """Slot → (lanes in use, generation), from every view that tells either."""
    links: dict[str, tuple[int | None, str]] = {}
    for entry in entries:
        slot, (lanes, kind) = text(entry.get("Id")) or text(entry.get("Name")), _pcie(entry)
        known = links.get(slot, (None, ""))
        links[slot] = (known[0] or lanes, known[1] or kind)
    return links


def nics(interfaces: Sequence[Document]) -> tuple[InspectedNic, ...]:
    """The real network ports with what they say of their speed; blank and 0 are no speed."""
    found = []
    for entry in interfaces:
        mac = known_port(text(entry.get("MACAddress")) or text(entry.get("PermanentMACAddress")))
        words = " ".join(text(entry.get(name)) for name in ("Id", "Name", "Description"))
        if mac and not _VIRTUAL_NIC.search(words):
            speed = number(entry.get("SpeedMbps"))
            link = text(entry.get("LinkStatus")) or "unknown"
            slot = text(entry.get("Id")) or text(entry.get("Name"))
            found.append(InspectedNic(slot=slot, mac=mac, gbps=speed / 1000 if speed else None, link=link))
    return tuple(found)


def gpu_evidence(entries: Sequence[Mapping[str, str]]) -> dict[str, object]:
    """The output of `redfish.gpus`."""
    return {
        "gpus": [dict(entry) for entry in entries if entry["state"] != ABSENT],
        "absent": sorted({entry["slot"] for entry in entries if entry["state"] == ABSENT}),
    }


def larger_view(entries: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The present GPUs of the view that shows more of them; the processors' when both show as many."""
    present = [entry for entry in entries if entry["state"] != ABSENT]
    views = {view: [entry for entry in present if entry["view"] == view] for view in ("processors", "pcie_devices")}
    return max(views.values(), key=len)


def drive_evidence(drives: Sequence[Document]) -> dict[str, object]:
    """The output of `redfish.drives`."""
    found = [
        {
            "id": text(drive.get("Id")) or text(drive.get("Name")),
            "model": text(drive.get("Model")),
            "serial": text(drive.get("SerialNumber")),
            "capacity_bytes": whole(drive.get("CapacityBytes")),
            "state": text(inner(drive, "Status", "State")),
            "health": text(inner(drive, "Status", "Health")),
        }
        for drive in drives
    ]
    return {
        "drives": [drive for drive in found if drive["state"] != ABSENT],
        "absent": [drive["id"] for drive in found if drive["state"] == ABSENT],
    }


def nic_macs(interfaces: Sequence[Document]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The MACs of real network cards, and gaps that name the BMC's own virtual card."""
    macs: list[str] = []
    gaps: list[str] = []
    for entry in interfaces:
        said = text(entry.get("MACAddress")) or text(entry.get("PermanentMACAddress"))
        mac = known_port(said)
        if not mac:
            if said:
                gaps.append(f"network interface {text(entry.get('Id'))}: {said!r} is no hardware address; ignored")
            continue
        words = " ".join(text(entry.get(name)) for name in ("Id", "Name", "Description"))
        if _VIRTUAL_NIC.search(words):
            gaps.append(
                f"network interface {text(entry.get('Id'))} is the BMC's own ({mac}); ignored, disable it there"
            )
        elif mac not in macs:
            macs.append(mac)
    return tuple(macs), tuple(gaps)


def inspection(
    system: Document,
    *,
    processors: Sequence[Document],
    gpus: Sequence[Mapping[str, str]],
    drives: Sequence[Document] | None,
    interfaces: Sequence[Document],
    gaps: Sequence[str],
    devices: Sequence[Document] = (),
    manager: Document | None = None,
) -> Inspection:
    """One Inspection from all that was read; what is blank in it is added to `gaps`."""
    cpus = [entry for entry in processors if text(entry.get("ProcessorType")).upper() == "CPU"]
    macs, mac_gaps = nic_macs(interfaces)
    memory = number(inner(system, "MemorySummary", "TotalSystemMemoryGiB"))
    present = larger_view(gpus)
    links = pcie_links([*devices, *processors])
    bmc = text((manager or {}).get("FirmwareVersion"))
    found = Inspection(
        manufacturer=text(system.get("Manufacturer")),
        model=text(system.get("Model")),
        serial=text(system.get("SerialNumber")),
        bios_version=text(system.get("BiosVersion")),
        cpu_count=whole(inner(system, "ProcessorSummary", "Count")) or (len(cpus) or None),
        cpu_model=text(inner(system, "ProcessorSummary", "Model"))
        or next((text(cpu.get("Model")) for cpu in cpus), ""),
        memory_gib=round(memory) if memory is not None else None,
        gpus=tuple(
            InspectedGpu(
                slot=gpu["slot"],
                model=gpu["model"],
                serial=gpu["serial"],
                state=gpu["state"] or "unknown",
                health=gpu["health"] or "unknown",
                pcie_lanes=links.get(gpu["slot"], (None, ""))[0],
                pcie_type=links.get(gpu["slot"], (None, ""))[1],
            )
            for gpu in present
        ),
        gpu_slots_absent=tuple(sorted({gpu["slot"] for gpu in gpus if gpu["state"] == ABSENT})),
        nic_macs=macs,
        nics=nics(interfaces),
        firmware={"bmc": bmc} if bmc else {},
        drives=len(drive_present) if (drive_present := _present(drives)) is not None else None,
        power_state=power(system),
        health=health(system) or "unknown",
    )
    return found.model_copy(update={"gaps": (*gaps, *mac_gaps, *_blanks(found))})


def _present(drives: Sequence[Document] | None) -> list[Document] | None:
    if drives is None:
        return None
    return [drive for drive in drives if text(inner(drive, "Status", "State")) != ABSENT]


def _blanks(found: Inspection) -> list[str]:
    names = ("manufacturer", "model", "serial", "bios_version", "cpu_count", "cpu_model", "memory_gib", "drives")
    blank = [f"{name} is not given" for name in names if getattr(found, name) in ("", None)]
    unknown = [f"{name} is unknown" for name in ("power_state", "health") if getattr(found, name) == "unknown"]
    gpus = [f"GPU {gpu.slot}: health is unknown" for gpu in found.gpus if gpu.health == "unknown"]
    return [*blank, *unknown, *gpus]
