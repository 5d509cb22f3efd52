"""A Kea configuration with a machine's reservations in it: pure, on the document that `config-get` gave.

Kea refuses the whole configuration, and at a start stays down, for one address or port that is reserved twice; so every
entry is judged before it is put in. Entries without our mark are never changed, moved or taken away.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from libs.contracts.hardware_ids import GUID_OCTETS, known_port
from services.satellite.dhcp import Refused, Reservation

Document = dict[str, Any]
MARK = "slipway"
# What Linux clients send as client identifier over InfiniBand, where no hardware address fits (RFC 4390): hardware type
# 255, an interface id of zeros and Mellanox's DUID prefix, then the port's GUID.
_IPOIB_CLIENT = "ff:00:00:00:00:00:02:00:00:02:c9:00:"


@dataclass(frozen=True)
class Wanted:
    """One machine's whole set."""

    machine_id: str
    name: str
    reservations: tuple[Reservation, ...]


@dataclass
class Planned:
    """The configuration to set, and per machine what is in it and what can't be."""

    config: Document
    applied: dict[str, list[Reservation]] = field(default_factory=dict)
    refused: dict[str, list[Refused]] = field(default_factory=dict)


def subnets(config: Document) -> Iterator[Document]:
    """The server's subnets, those of shared networks included."""
    inner = config.get("Dhcp4", {})
    yield from inner.get("subnet4") or []
    for network in inner.get("shared-networks") or []:
        yield from network.get("subnet4") or []


def owner(entry: Mapping[str, Any]) -> str:
    """The id of the machine that we made the entry for; "" when it is not ours."""
    mark = (entry.get("user-context") or {}).get(MARK)
    return str(mark.get("machine_id") or "") if isinstance(mark, dict) else ""


def _port(entry: Mapping[str, Any]) -> str:
    said = str(entry.get("hw-address") or entry.get("client-id") or "").lower()
    return known_port(said.removeprefix(_IPOIB_CLIENT)) or said


def read_entry(entry: Mapping[str, Any]) -> Reservation:
    return Reservation(_port(entry), str(entry.get("ip-address") or ""), str(entry.get("hostname") or ""), owner(entry))


def read_reservations(config: Document) -> list[Reservation]:
    """All reservations by port; entries by other identifiers (circuit, flex) have theirs in the port's place."""
    own = config.get("Dhcp4", {}).get("reservations") or []
    return [read_entry(entry) for entry in [*own, *(e for s in subnets(config) for e in s.get("reservations") or [])]]


def plan(config: Document, machines: Sequence[Wanted]) -> Planned:
    """`config` with exactly these reservations for these machines, as far as they are possible."""
    planned = Planned(copy.deepcopy(config))
    ids = {machine.machine_id for machine in machines}
    # First all away, then all in: two machines may have changed places.
    for subnet in subnets(planned.config):
        entries = subnet.get("reservations") or []
        if any(owner(entry) in ids for entry in entries):
            subnet["reservations"] = [entry for entry in entries if owner(entry) not in ids]
    table = _Table(planned.config)
    for machine in machines:
        planned.applied[machine.machine_id], planned.refused[machine.machine_id] = [], []
        for wanted in _named(machine):
            problem = table.put(machine, wanted)
            if problem:
                refused = Refused(wanted.hw_address, wanted.ip_address, problem)
                planned.refused[machine.machine_id].append(refused)
            else:
                planned.applied[machine.machine_id].append(wanted)
    _keep_unchanged(planned.config, config)
    return planned


def _named(machine: Wanted) -> list[Reservation]:
    """With the machine's id, those with an address first: the others go to their subnet."""
    found = [Reservation(w.hw_address, w.ip_address, w.hostname, machine.machine_id) for w in machine.reservations]
    return sorted(found, key=lambda wanted: not wanted.ip_address)


class _Table:
    """What is reserved already, for finding clashes and subnets quickly."""

    def __init__(self, config: Document) -> None:
        inner = config.get("Dhcp4", {})
        self._unique = inner.get("ip-reservations-unique", True) is not False
        self._subnets = [(network, subnet) for subnet in subnets(config) if (network := _network(subnet)) is not None]
        self._home: dict[str, Document] = {}
        self._by_ip: dict[str, list[Reservation]] = {}
        self._by_port: dict[tuple[int, str], Reservation] = {}
        self._ours: dict[str, Reservation] = {}
        self._routers = {address for _, subnet in self._subnets for address in _routers(subnet)}
        for subnet in subnets(config):
            for entry in subnet.get("reservations") or []:
                self._note(subnet, read_entry(entry))

    def _note(self, subnet: Document, found: Reservation) -> None:
        self._by_port[id(subnet), found.hw_address] = found
        if found.machine_id:
            self._ours[found.hw_address] = found
        if found.ip_address:
            self._by_ip.setdefault(found.ip_address, []).append(found)

    def put(self, machine: Wanted, wanted: Reservation) -> str:
        """Add the entry; returns why it can't be, "" when it is in."""
        if not known_port(wanted.hw_address):
            return f"{wanted.hw_address!r} is no hardware address"
        subnet = self._subnet(wanted) if wanted.ip_address else self._home.get(machine.machine_id)
        if isinstance(subnet, str):
            return subnet
        if subnet is None:
            return "it has no address in IPAM, and neither has another port of the machine"
        there = self._by_port.get((id(subnet), wanted.hw_address))
        if there is not None and not there.machine_id and there.ip_address == wanted.ip_address:
            return ""  # Somebody else made the same; theirs stays.
        there = there or self._elsewhere(wanted)
        if there is not None:
            return f"its port is reserved already for {_whose(there)}"
        address = "" if self._shared_in_bond(wanted) else wanted.ip_address
        other = next((e for e in self._by_ip.get(address, []) if e.machine_id != machine.machine_id), None)
        if other is not None:
            return f"{address} is reserved already for {_whose(other)}"
        if address:
            self._home.setdefault(machine.machine_id, subnet)
        subnet.setdefault("reservations", []).append(_entry(machine, wanted, address))
        self._note(subnet, Reservation(wanted.hw_address, address, wanted.hostname, machine.machine_id))
        return ""

    def _elsewhere(self, wanted: Reservation) -> Reservation | None:
        """Another machine of ours with the same port in another subnet: one card can't be in two machines."""
        same = self._ours.get(wanted.hw_address)
        return same if same is not None and same.machine_id != wanted.machine_id else None

    def _shared_in_bond(self, wanted: Reservation) -> bool:
        """Any member of a bond may ask. Where one address can't be reserved twice, the second is known by name only."""
        mine = [entry for entry in self._by_ip.get(wanted.ip_address, []) if entry.machine_id == wanted.machine_id]
        return self._unique and bool(mine)

    def _subnet(self, wanted: Reservation) -> Document | str:
        try:
            address = IPv4Address(wanted.ip_address)
        except ValueError:
            return f"{wanted.ip_address!r} is no IPv4 address"
        found = next(((network, subnet) for network, subnet in self._subnets if address in network), None)
        if found is None:
            return f"no subnet of the DHCP server contains {address}"
        network, subnet = found
        if network.prefixlen < 31 and address in (network.network_address, network.broadcast_address):
            return f"{address} is the network or broadcast address of {network}"
        if str(address) in self._routers:
            return f"{address} is the router of {network}"
        return subnet


def _network(subnet: Document) -> IPv4Network | None:
    try:
        return IPv4Network(str(subnet.get("subnet")), strict=False)
    except ValueError:
        return None


def _routers(subnet: Document) -> list[str]:
    options = [option for option in subnet.get("option-data") or [] if option.get("name") == "routers"]
    return [part.strip() for option in options for part in str(option.get("data") or "").split(",")]


def _whose(entry: Reservation) -> str:
    if entry.machine_id:
        return f"machine {entry.hostname or entry.machine_id} ({entry.machine_id})"
    return f"{entry.hostname or entry.hw_address} by a reservation that others made"


def _entry(machine: Wanted, wanted: Reservation, address: str) -> Document:
    infiniband = len(wanted.hw_address) == 3 * GUID_OCTETS - 1
    port = {"client-id": _IPOIB_CLIENT + wanted.hw_address} if infiniband else {"hw-address": wanted.hw_address}
    where = {"ip-address": address} if address else {}
    name = {"hostname": wanted.hostname} if wanted.hostname else {}
    mark = {MARK: {"machine_id": machine.machine_id, "machine": machine.name}}
    return {**port, **where, **name, "user-context": mark}


def _keep_unchanged(after: Document, before: Document) -> None:
    """Where a subnet's reservations came out the same, leave Kea's own wording and order."""
    for new, old in zip(subnets(after), subnets(before), strict=True):
        if _essence(new) == _essence(old):
            new["reservations"] = old.get("reservations") or []
            if "reservations" not in old:
                del new["reservations"]


def _essence(subnet: Document) -> list[tuple[str, ...]]:
    entries = [read_entry(entry) for entry in subnet.get("reservations") or []]
    return sorted((r.hw_address, r.ip_address, r.hostname, r.machine_id) for r in entries)
