"""Parse nvidia-smi's CSV, which mixes data with error sentences, all with exit code 0.

Invariant: an error sentence never becomes a GPU, and one unreadable value never costs the other columns. Shapes:
NVIDIA's `nvidia-smi --help-query-gpu`; error wordings as drivers 450 to 580 print them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.validation.evidence import fields, text

COLUMNS = (
    "index",
    "uuid",
    "serial",
    "name",
    "pci.bus_id",
    "memory.total",
    "driver_version",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
)
# With or without a blank before the address, depending on the driver.
_LOST = re.compile(r"Unable to determine the device handle for GPU\s*([0-9A-Fa-f:.]+)\s*:?(.*)")
_NO_DEVICES = "no devices were found"


@dataclass(frozen=True)
class Smi:
    """`gpus` by column name as text; `lost` are PCI addresses; `problem` set: nothing can be said at all."""

    gpus: tuple[Mapping[str, str], ...] = ()
    lost: tuple[str, ...] = ()
    none_found: bool = False
    problem: str = ""


def parse(output: Any) -> Smi:
    """What nvidia-smi said. Anything that is neither a row, a known sentence nor empty is a problem."""
    document = fields(output) or {}
    code, said = document.get("exit_code"), document.get("csv")
    if isinstance(code, bool) or not isinstance(code, int) or not isinstance(said, str):
        return Smi(problem="the exit code or the output of nvidia-smi is missing")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    lost = tuple(match.group(1).rstrip(":") for line in lines if (match := _LOST.search(line)))
    rest = [line for line in lines if not _LOST.search(line)]
    if code == 0 and rest and rest[0].casefold().startswith(_NO_DEVICES):
        return Smi(lost=lost, none_found=True)
    if code != 0:
        shown = next(iter(lines), "") or text(document.get("stderr")) or "no output"
        return Smi(lost=lost, problem=f"nvidia-smi ended with {code}: {shown[:200]}")
    return _rows(rest, lost)


def _rows(lines: list[str], lost: tuple[str, ...]) -> Smi:
    parsed = list(csv.reader(lines, skipinitialspace=True))
    header = [re.sub(r"\s*\[.*\]$", "", name).strip() for name in parsed[0]] if parsed else []
    if sorted(header) != sorted(COLUMNS):
        if lost:
            return Smi(lost=lost)
        return Smi(problem=f"this is not the table that was asked for: {(lines or ['nothing'])[0][:200]}")
    gpus = []
    for row, line in zip(parsed[1:], lines[1:], strict=True):
        values = dict(zip(header, (value.strip() for value in row), strict=False))
        if len(row) != len(header) or not values["index"].isdigit():
            return Smi(lost=lost, problem=f"a line that is no GPU: {line[:200]}")
        gpus.append(values)
    for column in ("index", "uuid", "pci.bus_id"):
        told = [
            gpu[column] for gpu in gpus if (text(gpu[column]) is not None and column != "index") or column == "index"
        ]
        if len(set(told)) != len(told):
            return Smi(lost=lost, problem=f"two GPUs have one {column}")
    return Smi(gpus=tuple(gpus), lost=lost)
