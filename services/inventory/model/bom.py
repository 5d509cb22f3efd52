"""The bill of materials: what a profile promises beyond the number of parts, against what was inspected.

Each promise is one line with its own tolerance; what is not promised is not judged. A promised value that the BMC does
not tell is a difference marked unknown: silence proves nothing. Every difference names the slot, so that a technician
can walk up to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from libs.contracts.inventory import BillOfMaterials
from libs.contracts.site import Inspection
from services.inventory.model.hardware import NOT_REPORTED, Expectation, Mismatch, compare

_GENERATION = re.compile(r"gen\s*(\d+)", re.IGNORECASE)


def differences(expected: Expectation, found: Inspection) -> tuple[Mismatch, ...]:
    """Everything in which the machine is not what was promised: identity, parts, and the bill of materials."""
    more = compare_bom(expected.bom, found) if expected.bom is not None else ()
    return (*compare(expected, found), *more)


def compare_bom(bom: BillOfMaterials, found: Inspection) -> tuple[Mismatch, ...]:
    """All differences; () only when everything that is promised was seen."""
    return (*_pcie(bom, found), *_network(bom, found), *_drives(bom, found), *_firmware(bom, found))


def _pcie(bom: BillOfMaterials, found: Inspection) -> Iterator[Mismatch]:
    """A card that is not seated well, or a riser that is broken, comes up with fewer lanes or an older generation."""
    for gpu in found.gpus:
        if gpu.state.lower() == "absent":
            continue
        where = f"GPU slot {gpu.slot}"
        if bom.gpu_pcie_lanes is not None:
            yield from _least(f"{where} PCIe width", bom.gpu_pcie_lanes, gpu.pcie_lanes, "x{}")
        if bom.gpu_pcie_generation is not None:
            said = _GENERATION.search(gpu.pcie_type)
            number = int(said.group(1)) if said else None
            yield from _least(f"{where} PCIe generation", bom.gpu_pcie_generation, number, "Gen{}")


def _least(where: str, least: float, value: float | None, form: str) -> Iterator[Mismatch]:
    if value is None:
        yield Mismatch(where, form.format(f"{least:g}"), NOT_REPORTED, unknown=True)
    elif value < least:
        yield Mismatch(where, form.format(f"{least:g}"), form.format(f"{value:g}"))


def _network(bom: BillOfMaterials, found: Inspection) -> Iterator[Mismatch]:
    """`nic_count` ports at `nic_gbps` or more; which ones they are is the machine's own affair."""
    if bom.nic_count is None:
        return
    if not found.nics:
        yield Mismatch("network ports", str(bom.nic_count), NOT_REPORTED, unknown=True)
        return
    if bom.nic_gbps is None:
        if len(found.nics) < bom.nic_count:
            yield Mismatch("network ports", str(bom.nic_count), str(len(found.nics)))
        return
    wanted = f"{bom.nic_gbps:g} Gbit/s"
    fast = [nic for nic in found.nics if nic.gbps is not None and nic.gbps >= bom.nic_gbps]
    short = bom.nic_count - len(fast)
    # The rest, those that say least first: what is unknown may be what is missing.
    others = sorted((nic for nic in found.nics if nic not in fast), key=lambda nic: (nic.gbps is not None, nic.slot))
    for nic in others[: max(short, 0)]:
        where = f"network port {nic.slot or nic.mac}"
        if nic.gbps is None:
            link = f", link {nic.link}" if nic.link not in ("", "unknown") else ""
            yield Mismatch(where, wanted, f"speed {NOT_REPORTED}{link}", unknown=True)
        else:
            yield Mismatch(where, wanted, f"{nic.gbps:g} Gbit/s")
    if short > len(others):
        yield Mismatch(f"network ports at {wanted}", str(bom.nic_count), str(len(found.nics)))


def _drives(bom: BillOfMaterials, found: Inspection) -> Iterator[Mismatch]:
    if bom.drive_count is None or found.drives == bom.drive_count:
        return
    told = NOT_REPORTED if found.drives is None else str(found.drives)
    yield Mismatch("number of drives", str(bom.drive_count), told, unknown=found.drives is None)


def _firmware(bom: BillOfMaterials, found: Inspection) -> Iterator[Mismatch]:
    """A baseline is the least version; newer is fine."""
    seen = {"bios": found.bios_version, **found.firmware}
    for component, least in sorted(bom.firmware.items()):
        version = seen.get(component, "")
        where = f"{component} firmware"
        if not version:
            yield Mismatch(where, f"{least} or newer", NOT_REPORTED, unknown=True)
        elif older(version, least):
            yield Mismatch(where, f"{least} or newer", version)


def older(version: str, than: str) -> bool:
    """Whether a version is below another: numbers as numbers, letters as letters, part by part.

    2.9 is older than 2.10, and 1.4.4 older than 1.4.4a. Vendors do not agree on more than that.
    """
    for one, other in zip_longest(_parts(version), _parts(than), fillvalue=(-1, "")):
        if one != other:
            return one < other
    return False


def _parts(version: str) -> list[tuple[int, str]]:
    """Numbers before letters: each part compares with each."""
    found = re.findall(r"\d+|[a-z]+", version.lower().removeprefix("v"))
    return [(int(part), "") if part.isdigit() else (0, part) for part in found]
