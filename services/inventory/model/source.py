"""What a source of record (NetBox, a manifest) says about a machine, and what that changes.

Level-based: only the difference between its word and ours counts, never how often it was said. People own place,
name, addresses and intent, so those are taken. What identifies the hardware is taken only before it was first
enrolled; afterwards a difference is drift, held for a human, and ours stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from libs.contracts.hardware_ids import known_port, serial_number
from libs.contracts.inventory import Drift, Hold, MachineRegistered, MachineState, ProfileFacts
from libs.contracts.replies import Problem
from services.inventory.model.drift import NETBOX_SOURCE, lasting, netbox_drift, news, told
from services.inventory.model.holds import IDENTITY_CHANGED, NETBOX, automatic_hold
from services.inventory.model.intent import contradiction, status_reason, wants_quarantine
from services.inventory.model.machine import Change, Machine
from services.inventory.model.ownership import IDENTITY, Owner, ownership
from services.inventory.states import QUARANTINE

MISSING = "missing"
PRESENCE = "presence"
STATUS = "status"
DUPLICATE = "duplicate"


@dataclass(frozen=True)
class SourceDevice:
    """One machine as the source has it, checked. `key` names it for ever; `machine_id` is our id if the source kept it.

    `owned` is what the source holds of our own fields, as it wrote them. `nic_addresses`: MAC → the port's address.
    """

    key: str
    netbox_id: int | None
    name: str
    site: str
    rack: str
    rack_id: str
    position: float | None
    device_type: str
    role: str
    serial: str
    asset_tag: str
    status: str
    bmc_address: str
    bmc_mac: str
    nic_macs: tuple[str, ...]
    machine_id: str | None = None
    owned: Mapping[str, str | None] | None = None
    nic_addresses: Mapping[str, str] = field(default_factory=dict)

    def identity(self) -> dict[str, str]:
        return {"serial": self.serial, "site": self.site, "device_type": self.device_type}


@dataclass(frozen=True)
class DeviceProblem:
    """A record that can't be used. The others go on."""

    key: str
    netbox_id: int | None
    name: str
    problem: str


def profile_for(device_type: str, profiles: Iterable[ProfileFacts]) -> ProfileFacts | None:
    """The profile that lists the device type; None when none does, or when two do (nobody could tell which)."""
    found = [profile for profile in profiles if device_type in profile.device_types]
    return found[0] if len(found) == 1 else None


def _plain_fields(device: SourceDevice, profile: ProfileFacts | None) -> dict[str, object]:
    return {
        "name": device.name,
        "rack": device.rack,
        "rack_id": device.rack_id,
        "position": device.position,
        "role": device.role,
        "netbox_id": device.netbox_id,
        "asset_tag": device.asset_tag,
        "bmc_address": device.bmc_address,
        "bmc_mac": device.bmc_mac,
        "nic_macs": device.nic_macs,
        "nic_addresses": dict(device.nic_addresses),
        "netbox_status": device.status,
        "source_problem": "",
        "origin": "",  # Once a source of record has it, it is the source's.
        **profile_fields(profile),
    }


def profile_fields(profile: ProfileFacts | None) -> dict[str, object]:
    """What a machine has from its profile."""
    if profile is None:
        return {"profile": None, "gpu_model": "", "gpu_count": 0}
    return {"profile": profile.name, "gpu_model": profile.gpu_model, "gpu_count": profile.gpu_count}


def register(machine_id: str, device: SourceDevice, profile: ProfileFacts | None, now: datetime) -> Change:
    """A machine that was not known: EXPECTED."""
    machine = Machine.model_validate(
        {
            **_plain_fields(device, profile),
            **device.identity(),
            "theirs": device.identity(),
            "id": machine_id,
            "state": MachineState.EXPECTED,
            "state_since": now,
            "proof_after": now,
            "version": 1,
        }
    )
    machine = machine.with_(holds=_holds(machine, _status_reasons(machine, device.status), (STATUS,), now))
    return Change(machine, (MachineRegistered(machine=machine.facts()),))


def update(machine: Machine, device: SourceDevice, profile: ProfileFacts | None, now: datetime) -> Change:
    """Take what people own; hold and tell what contradicts the hardware we enrolled or where it is in its life."""
    fields = _plain_fields(device, profile)
    theirs = device.identity()
    different = [name for name in IDENTITY if theirs[name] != getattr(machine, name)]
    enrolled = machine.state is not MachineState.EXPECTED
    taken = [name for name in different if ownership(name).owner_of(enrolled=enrolled) is Owner.NETBOX]
    fields |= {name: theirs[name] for name in taken}
    different = [name for name in different if name not in taken]
    if "device_type" in different:
        fields |= {name: getattr(machine, name) for name in ("profile", "gpu_model", "gpu_count")}
    reasons = {**_status_reasons(machine, device.status), **_identity_reasons(machine, theirs, different)}
    holds = _holds(machine, reasons, (STATUS, IDENTITY_CHANGED, MISSING), now)
    found = [netbox_drift(machine, name, str(getattr(machine, name)), theirs[name], now) for name in different]
    found += _status_drift(machine, device.status, now)
    drifts = lasting(machine, found)
    return told(Change(machine).noted(**fields, theirs=theirs, holds=holds, drifts=drifts), news(machine, found))


def follow_status(machine: Machine, now: datetime) -> Change:
    """The same wish seen again from where the machine is now: what it waits for, whether it still contradicts.

    A machine that people call failed leaves the pool; taking it back is a human's word, as after any quarantine. One
    that NetBox does not have has no status there to be followed.
    """
    if machine.netbox_id is None:
        return Change(machine)
    holds = _holds(machine, _status_reasons(machine, machine.netbox_status), (STATUS,), now)
    others = [drift for drift in machine.drifts if drift.source == NETBOX_SOURCE and drift.field != STATUS]
    found = _status_drift(machine, machine.netbox_status, now)
    change = Change(machine).noted(holds=holds, drifts=lasting(machine, (*others, *found)))
    change = told(change, news(machine, found))
    if not wants_quarantine(machine):
        return change
    reason = Problem(
        code="machine.failed_in_netbox",
        message=f"{machine.name} was set to failed in NetBox",
        next_step="When it is repaired, set it to active in NetBox, then release the quarantine.",
        details={"owner": NETBOX},
    )
    return change.moved(QUARANTINE, now, reason=reason, operation_id=None)


def _status_drift(machine: Machine, status: str, now: datetime) -> list[Drift]:
    conflict = contradiction(machine, status)
    return [netbox_drift(machine, STATUS, conflict.ours, status, now, conflict.repair)] if conflict else []


def _status_reasons(machine: Machine, status: str) -> dict[str, str]:
    reason = status_reason(machine, status)
    return {STATUS: reason} if reason else {}


def _identity_reasons(machine: Machine, theirs: Mapping[str, str], different: Sequence[str]) -> dict[str, str]:
    if not different:
        return {}
    words = ", ".join(f"{name} {theirs[name] or '(blank)'} instead of {getattr(machine, name)}" for name in different)
    return {IDENTITY_CHANGED: f"NetBox now says {words}; if the hardware was replaced, remove this hold"}


def _holds(machine: Machine, wanted: Mapping[str, str], kinds: Sequence[str], now: datetime) -> tuple[Hold, ...]:
    """The machine's holds with NetBox's own holds of these `kinds` being exactly `wanted` (kind → reason)."""
    return _replaced(machine, [automatic_hold(machine.id, NETBOX, k, r, now) for k, r in wanted.items()], kinds, now)


def _replaced(machine: Machine, wanted: Sequence[Hold], kinds: Sequence[str], now: datetime) -> tuple[Hold, ...]:
    mine = {automatic_hold(machine.id, NETBOX, kind, "", now).id for kind in kinds}
    kept = [hold for hold in machine.holds if hold.id not in mine]
    for hold in wanted:
        before = machine.hold(hold.id)
        kept.append(hold if before is None else before.model_copy(update={"reason": hold.reason}))
    return tuple(kept)


def missing(machine: Machine, now: datetime) -> Change:
    """A complete walk did not see it. That is no reason to forget it, only to keep it out of use.

    One that people told of is not expected there.
    """
    if machine.origin:
        return Change(machine)
    hold = automatic_hold(machine.id, NETBOX, MISSING, "it is no longer in NetBox", now)
    if machine.hold(hold.id) is not None or machine.state is MachineState.RETIRED:
        return Change(machine)
    drift = netbox_drift(machine, PRESENCE, "known", "not in NetBox", now)
    drifts = (*machine.drifts, drift)
    return told(Change(machine).noted(holds=(*machine.holds, hold), drifts=drifts), [drift])


def bad_record(machine: Machine, problem: str) -> Change:
    """Its record can't be read: nothing is taken from it, and the machine says so."""
    return Change(machine).quietly(source_problem=problem)


@dataclass(frozen=True)
class Known:
    """What may occur only once in the world: serial number, MACs, BMC address; and a name within a site."""

    machine_id: str
    name: str
    site: str
    serial: str
    bmc_address: str
    macs: tuple[str, ...]


def duplicates(known: Iterable[Known]) -> dict[str, list[str]]:
    """machine id → what it shares with which other, in words. Reported on every one that shares, overwriting none."""
    owners: dict[tuple[str, str], list[Known]] = defaultdict(list)
    for one in known:
        values = {("name", one.name and f"{one.site}/{one.name}"), ("serial number", serial_number(one.serial))}
        values |= {("BMC address", one.bmc_address), *(("MAC", known_port(mac)) for mac in one.macs)}
        for what, value in values:
            if value:
                owners[what, value].append(one)
    found: dict[str, list[str]] = defaultdict(list)
    for (what, value), sharers in sorted(owners.items()):
        for one in sharers:
            others = sorted(other.name for other in sharers if other.machine_id != one.machine_id)
            if others:
                found[one.machine_id].append(f"its {what} {value} is also that of {', '.join(others)}")
    return dict(found)


def set_duplicates(machine: Machine, shared: Sequence[str], now: datetime) -> Change:
    """Hold a machine that shares what must be its own; let go once it no longer does."""
    wanted = {DUPLICATE: "; ".join(shared)} if shared else {}
    holds = _holds(machine, wanted, (DUPLICATE,), now)
    change = Change(machine).noted(holds=holds)
    hold_id = automatic_hold(machine.id, NETBOX, DUPLICATE, "", now).id
    if shared and machine.hold(hold_id) is None:
        change = change.drifted("identity", "its own", wanted[DUPLICATE], NETBOX)
    return change


def written_fields(machine: Machine) -> dict[str, str | None]:
    """Our own fields as the source should show them."""
    state = machine.state.value + (f"({machine.failed_step})" if machine.failed_step else "")
    validated = machine.validated_at.strftime("%Y-%m-%dT%H:%M:%SZ") if machine.validated_at else None
    return {
        "slipway_machine_id": machine.id,
        "slipway_state": state,
        "slipway_health": machine.health.value,
        "slipway_validated_at": validated,
    }
