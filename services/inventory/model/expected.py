"""Machines that a person expects: rows of a manifest read one by one, and what each means beside what is known already.

A row is right, wrong by itself (column, value, why, remedy), or clashes with another row or machine. Nothing is
guessed, and no row keeps another from being taken. The same file a second time changes nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

from libs.contracts.hardware_ids import (
    BadHardwareId,
    HardwareIdentity,
    Sameness,
    hardware_identity,
    mac_address,
    port_address,
    same_hardware,
    serial_number,
)
from libs.contracts.inventory import MachineState
from services.inventory.model.machine import Machine
from services.inventory.model.source import SourceDevice

COLUMNS = (
    "name",
    "site",
    "rack",
    "position",
    "device_type",
    "role",
    "serial",
    "asset_tag",
    "bmc_mac",
    "bmc_address",
    "nic_macs",
)
NEEDED = ("name", "site", "rack", "device_type", "serial", "bmc_address")
# Other words for the same, as spreadsheets and the manifest file have them.
ALIASES = {"bmc_ip": "bmc_address", "bmc": "bmc_address", "macs": "nic_macs", "type": "device_type", "unit": "position"}
DEFAULT_ROLE = "gpu-node"
# `origin` of machines that a person told of; blank: a source of record has them.
MANIFEST = "manifest"
MOST_NICS = 32
HIGHEST_UNIT = 100
# Ironic takes node names that are host names.
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?\Z")


@dataclass(frozen=True)
class RowProblem:
    """What is wrong in one row, for the person who wrote it. Rows count from 1, without the heading."""

    row: int
    column: str
    value: str
    why: str
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ExpectedMachine:
    """One row, checked, in canonical form."""

    row: int
    name: str
    site: str
    rack: str
    position: float | None
    device_type: str
    role: str
    serial: str
    asset_tag: str
    bmc_mac: str
    bmc_address: str
    nic_macs: tuple[str, ...]

    def identity(self) -> HardwareIdentity:
        return hardware_identity(serial=self.serial, bmc_mac=self.bmc_mac, ports=self.nic_macs)

    def device(self, rack_id: str) -> SourceDevice:
        """As a source of record would have it."""
        return SourceDevice(
            key=f"manifest:{self.site}/{self.name}",
            netbox_id=None,
            name=self.name,
            site=self.site,
            rack=self.rack,
            rack_id=rack_id,
            position=self.position,
            device_type=self.device_type,
            role=self.role,
            serial=self.serial,
            asset_tag=self.asset_tag,
            status="staged",
            bmc_address=self.bmc_address,
            bmc_mac=self.bmc_mac,
            nic_macs=self.nic_macs,
        )


@dataclass(frozen=True)
class Known:
    """What rows may name: anything else is a misspelling."""

    sites: frozenset[str]
    device_types: frozenset[str]
    roles: frozenset[str]


class _Wrong(ValueError):
    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


def read_row(number: int, raw: Mapping[str, Any], known: Known) -> ExpectedMachine | list[RowProblem]:
    """One row as it was written; or everything that is wrong with it."""
    given = {ALIASES.get(name, name): value for name, value in raw.items()}
    problems = [
        RowProblem(number, name, _shown(given[name]), "there is no such column", f"Columns: {', '.join(COLUMNS)}.")
        for name in given
        if name not in COLUMNS and _shown(given[name])
    ]
    values: dict[str, Any] = {}
    for name in COLUMNS:
        value = given.get(name)
        try:
            values[name] = _READERS[name](value, known)
        except _Wrong as wrong:
            problems.append(RowProblem(number, name, _shown(value), wrong.why, wrong.remedy))
    return problems or ExpectedMachine(row=number, **values)


def _shown(value: object) -> str:
    return "" if value is None else str(value).strip()[:100]


def _text(value: object) -> str:
    if isinstance(value, Mapping | list | tuple):
        raise _Wrong("it is no single value", "Write one value.")
    text = "" if value is None else str(value).strip()
    if not text.isprintable() or len(text) > 200:
        raise _Wrong("it has control characters or more than 200 characters", "Write it on one line.")
    return text


def _needed(value: object) -> str:
    text = _text(value)
    if not text:
        raise _Wrong("it is blank", "Fill it in.")
    return text


def _name(value: object, known: Known) -> str:
    text = _needed(value)
    if not _HOST_NAME.match(text):
        raise _Wrong("it can't be a host name", "Use letters, digits, dots and dashes, at most 63.")
    return text


def _listed(text: str, allowed: frozenset[str], what: str) -> str:
    if text in allowed:
        return text
    close = get_close_matches(text, allowed, 1)
    some = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(allowed)[:10]) or 'none'}."
    raise _Wrong(f"there is no {what} {text!r}", some)


def _site(value: object, known: Known) -> str:
    return _listed(_needed(value), known.sites, "site")


def _kind(value: object, known: Known) -> str:
    return _listed(_needed(value), known.device_types, "device type")


def _role(value: object, known: Known) -> str:
    return _listed(_text(value) or DEFAULT_ROLE, known.roles, "role")


def _position(value: object, known: Known) -> float | None:
    text = _text(value)
    if not text:
        return None
    try:
        number = float(text.removeprefix("U").removeprefix("u"))
    except ValueError:
        raise _Wrong("it is no number of rack units", "Write the lowest unit it fills, like 3.") from None
    if not 0 < number <= HIGHEST_UNIT:
        raise _Wrong(f"it is not between 1 and {HIGHEST_UNIT}", "Write the lowest unit it fills, like 3.")
    return number


def _serial(value: object, known: Known) -> str:
    text = _needed(value)
    if "E+" in text.upper() and re.fullmatch(r"\d(\.\d+)?E\+\d+", text.upper()):
        raise _Wrong("a spreadsheet made a number of it", "Format the column as text and copy the serial number again.")
    if not serial_number(text):
        raise _Wrong("it is what firmware says when it has none", "Read the serial number from the machine's label.")
    return text


def _mac(value: object, known: Known) -> str:
    text = _text(value)
    try:
        return mac_address(text) if text else ""
    except BadHardwareId as error:
        raise _Wrong(str(error), "Copy it from the BMC's label, like 94:6d:ae:aa:4b:62.") from None


def _macs(value: object, known: Known) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else re.split(r"[\s,;|]+", _text_list(value))
    try:
        found = sorted({port_address(str(part)) for part in parts if str(part).strip()})
    except BadHardwareId as error:
        raise _Wrong(str(error), "Separate several by blanks; each like 94:6d:ae:aa:4b:62.") from None
    if len(found) > MOST_NICS:
        raise _Wrong(f"there are {len(found)}; at most {MOST_NICS}", "Leave out what is no network port.")
    return tuple(found)


def _text_list(value: object) -> str:
    return "" if value is None else str(value)


def _address(value: object, known: Known) -> str:
    text = _needed(value)
    try:
        return str(ip_address(text.split("/")[0]))
    except ValueError:
        raise _Wrong("it is no IP address", "Write it like 10.20.1.11.") from None


_READERS: Mapping[str, Any] = {
    "name": _name,
    "site": _site,
    "rack": lambda value, known: _needed(value),
    "position": _position,
    "device_type": _kind,
    "role": _role,
    "serial": _serial,
    "asset_tag": lambda value, known: _text(value),
    "bmc_mac": _mac,
    "bmc_address": _address,
    "nic_macs": _macs,
}


# -- rows beside one another and beside what is known -----------------------------------------------


def _own(row: ExpectedMachine) -> Iterable[tuple[str, str]]:
    """(column, value) of everything that one machine alone may have."""
    yield "name", f"{row.site}/{row.name}"
    yield "serial", serial_number(row.serial)
    yield "bmc_address", f"{row.site}/{row.bmc_address}"
    if row.bmc_mac:
        yield "bmc_mac", row.bmc_mac
    for mac in row.nic_macs:
        yield "nic_macs", mac
    if row.position is not None:
        yield "position", f"{row.site}/{row.rack}/{row.position:g}"


def clashes(rows: Sequence[ExpectedMachine]) -> list[RowProblem]:
    """Rows that share what must be its own. All of them: nobody can tell which one is right."""
    having: dict[tuple[str, str], list[ExpectedMachine]] = defaultdict(list)
    for row in rows:
        for key in set(_own(row)):
            having[key].append(row)
    found = []
    for (column, value), sharers in having.items():
        for row in sharers if len(sharers) > 1 else ():
            others = ", ".join(str(other.row) for other in sharers if other is not row)
            plain = value.split("/")[-1] if column in ("name", "bmc_address", "position") else value
            found.append(RowProblem(row.row, column, plain, f"row {others} has it, too", "Correct the wrong one."))
    return sorted(found, key=lambda problem: (problem.row, problem.column))


class Outcome(StrEnum):
    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    KNOWN = "known"  # Its source of record owns it; nothing is taken from the manifest.


@dataclass(frozen=True)
class Placed:
    """What becomes of a row. `machine` is the one it is, None when it is new."""

    row: ExpectedMachine
    outcome: Outcome
    machine: Machine | None = None
    problems: tuple[RowProblem, ...] = field(default=())


def place(row: ExpectedMachine, machines: Sequence[Machine]) -> Placed:
    """`row` beside the machines that share a key with it."""
    same: list[Machine] = []
    problems: list[RowProblem] = []
    for machine in machines:
        problem = _clash(row, machine)
        if problem is not None:
            problems.append(problem)
        elif _is(row, machine):
            same.append(machine)
    if problems or not same:
        return Placed(row, Outcome.NEW, None, tuple(problems))
    (machine, *_) = same
    if machine.origin != MANIFEST:
        return Placed(row, Outcome.KNOWN, machine)
    if machine.state is MachineState.EXPECTED and _differs(row, machine):
        return Placed(row, Outcome.CHANGED, machine)
    return Placed(row, Outcome.UNCHANGED, machine)


def identity_of(machine: Machine) -> HardwareIdentity:
    return hardware_identity(serial=machine.serial, bmc_mac=machine.bmc_mac, ports=machine.nic_macs)


def adoptions(
    devices: Iterable[SourceDevice], by_netbox_id: Mapping[int, str], told_of: Sequence[Machine]
) -> dict[int, str]:
    """NetBox device id → our machine, for devices that are machines which people told of before NetBox did."""
    if not told_of:
        return {}
    by_key: dict[str, list[Machine]] = defaultdict(list)
    for machine in told_of:
        for key in {serial_number(machine.serial), machine.bmc_mac, *machine.nic_macs} - {""}:
            by_key[key].append(machine)
    found: dict[int, str] = {}
    for device in devices:
        if device.netbox_id is None or device.netbox_id in by_netbox_id:
            continue
        keys = hardware_identity(serial=device.serial, bmc_mac=device.bmc_mac, ports=device.nic_macs)
        near = {m.id: m for key in (keys.serial, keys.bmc_mac, *keys.ports) if key for m in by_key.get(key, ())}
        same = [m for m in near.values() if same_hardware(keys, identity_of(m))[0] is Sameness.SAME]
        # Two devices that are one machine are NetBox's duplicate: the first keeps it, the other is held as usual.
        if len(same) == 1 and same[0].id not in found.values() and same[0].site == device.site:
            found[device.netbox_id] = same[0].id
    return found


def _is(row: ExpectedMachine, machine: Machine) -> bool:
    return same_hardware(row.identity(), identity_of(machine))[0] is Sameness.SAME


def _clash(row: ExpectedMachine, machine: Machine) -> RowProblem | None:
    """Why the row can't stand beside the machine; None when they are one, or strangers."""
    sameness, why = same_hardware(row.identity(), identity_of(machine))
    who = f"machine {machine.name} ({machine.state}, {machine.site}/{machine.rack})"
    look = f"Look at it: slipway machines show {machine.name}."
    if sameness is Sameness.AMBIGUOUS:
        return RowProblem(row.row, "serial", row.serial, f"it may be {who}: {why}", look)
    if sameness is Sameness.SAME and machine.site != row.site:
        return RowProblem(row.row, "site", row.site, f"it is {who} already", look)
    if sameness is Sameness.OTHER and machine.site == row.site:
        for column, ours, theirs in (
            ("name", row.name, machine.name),
            ("bmc_address", row.bmc_address, machine.bmc_address),
        ):
            if ours == theirs:
                return RowProblem(row.row, column, ours, f"{who} has it", f"Correct one of them. {look}")
    return None


_COMPARED = ("name", "rack", "position", "device_type", "role", "asset_tag", "bmc_mac", "bmc_address", "nic_macs")


def _differs(row: ExpectedMachine, machine: Machine) -> bool:
    same = all(getattr(row, name) == getattr(machine, name) for name in _COMPARED)
    return not same or serial_number(row.serial) != serial_number(machine.serial)
