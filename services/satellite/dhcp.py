"""The port to a site's DHCP server, and what of its leases contradicts its reservations.

A machine's reservations are set as a whole: the same order twice does the work once, an empty one takes them away. Only
entries that carry our mark are ever changed. A lease says that somebody was given an address, never that a machine is
up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from libs.contracts.dhcp import DhcpProblem


class LeaseState(StrEnum):
    ACTIVE = "active"
    DECLINED = "declined"  # A client found somebody else at the address; nobody gets it until it expires.
    EXPIRED = "expired"


@dataclass(frozen=True)
class Reservation:
    """`hw_address` is canonical (a MAC, or the GUID of an InfiniBand port). Without an `ip_address` it gives a name.

    `machine_id` is blank when the entry is not ours.
    """

    hw_address: str
    ip_address: str
    hostname: str = ""
    machine_id: str = ""


@dataclass(frozen=True)
class Lease:
    """`expires_at` is None for one without end."""

    hw_address: str
    ip_address: str
    state: LeaseState
    expires_at: datetime | None
    hostname: str = ""


@dataclass(frozen=True)
class Refused:
    """A reservation that can't be made, and why; the others were."""

    hw_address: str
    ip_address: str
    problem: str


@dataclass(frozen=True)
class Reserved:
    """What one machine has now. `lasting`: the server wrote it where its next start reads it."""

    applied: tuple[Reservation, ...]
    refused: tuple[Refused, ...] = ()
    lasting: bool = True


class Dhcp(Protocol):
    """One site's DHCP server. Raises SiteError: dhcp_unreachable, dhcp_invalid_answer, dhcp_refused, dhcp_read_only."""

    async def reserve(self, machine_id: str, machine_name: str, wanted: Sequence[Reservation]) -> Reserved:
        """Make these the machine's only reservations of ours; `machine_id` of `wanted` is not read."""
        ...

    async def reservations(self) -> list[Reservation]:
        """All there are, ours and others'."""
        ...

    async def leases(self) -> list[Lease]:
        """All there are, the declined and expired ones that the server still shows included."""
        ...

    async def put_back(self) -> int:
        """Make again what was ours and is gone (the server was started with an older file); how many machines."""
        ...


def problems(reservations: Iterable[Reservation], leases: Iterable[Lease], now: datetime) -> tuple[DhcpProblem, ...]:
    """What a person has to look at, in a fixed order; () when the leases are as they should be."""
    leases = [lease for lease in leases if lease.state is not LeaseState.EXPIRED]
    by_ip: dict[str, list[Reservation]] = defaultdict(list)
    by_port: dict[str, list[Reservation]] = defaultdict(list)
    for entry in reservations:
        by_port[entry.hw_address].append(entry)
        if entry.ip_address:
            by_ip[entry.ip_address].append(entry)
    found = [
        *_declined(leases, by_ip, now),
        *_taken(leases, by_ip, by_port, now),
        *_given_twice(leases, now),
        *_one_port_two_machines(by_port),
    ]
    return tuple(sorted(found, key=lambda problem: (problem.kind, problem.ip_address, problem.hw_addresses)))


def _owners(entries: Iterable[Reservation]) -> tuple[str, ...]:
    return tuple(sorted({entry.machine_id for entry in entries if entry.machine_id}))


def _named(entries: Iterable[Reservation]) -> str:
    return ", ".join(sorted({entry.hostname or entry.hw_address for entry in entries}))


def _running(lease: Lease, now: datetime) -> bool:
    return lease.state is LeaseState.ACTIVE and (lease.expires_at is None or lease.expires_at > now)


def _until(lease: Lease) -> str:
    return f"until {lease.expires_at.isoformat()}" if lease.expires_at else "without end"


def _declined(leases: list[Lease], by_ip: dict[str, list[Reservation]], now: datetime) -> Iterable[DhcpProblem]:
    for lease in leases:
        if lease.state is not LeaseState.DECLINED or (lease.expires_at is not None and lease.expires_at <= now):
            continue
        wanted = by_ip.get(lease.ip_address, [])
        whose = f"which is reserved for {_named(wanted)}, " if wanted else ""
        yield DhcpProblem(
            kind="declined",
            ip_address=lease.ip_address,
            hw_addresses=tuple(sorted({lease.hw_address, *(entry.hw_address for entry in wanted)} - {""})),
            machine_ids=_owners(wanted),
            message=f"{lease.ip_address}, {whose}is declined {_until(lease)}: a client found it in use already.",
            next_step="Find who answers ARP at the address and take it off, then delete the declined lease.",
        )


def _taken(
    leases: list[Lease], by_ip: dict[str, list[Reservation]], by_port: dict[str, list[Reservation]], now: datetime
) -> Iterable[DhcpProblem]:
    """A reserved address that somebody else has. Another port of the same machine is not somebody else (a bond)."""
    for lease in leases:
        wanted = by_ip.get(lease.ip_address, [])
        if not wanted or not _running(lease, now) or lease.hw_address in {entry.hw_address for entry in wanted}:
            continue
        holders = by_port.get(lease.hw_address, [])
        if set(_owners(holders)) & set(_owners(wanted)):
            continue
        yield DhcpProblem(
            kind="taken",
            ip_address=lease.ip_address,
            hw_addresses=tuple(sorted({lease.hw_address, *(entry.hw_address for entry in wanted)})),
            machine_ids=_owners([*wanted, *holders]),
            message=f"{lease.ip_address} is reserved for {_named(wanted)}; {lease.hw_address} has it {_until(lease)}.",
            next_step="Let that client take another address, or correct the reservation.",
        )


def _given_twice(leases: list[Lease], now: datetime) -> Iterable[DhcpProblem]:
    holders: dict[str, set[str]] = defaultdict(set)
    for lease in leases:
        if _running(lease, now):
            holders[lease.ip_address].add(lease.hw_address)
    for address, ports in holders.items():
        if len(ports) > 1:
            yield DhcpProblem(
                kind="given_twice",
                ip_address=address,
                hw_addresses=tuple(sorted(ports)),
                message=f"{address} is leased to {len(ports)} clients at once: {', '.join(sorted(ports))}.",
                next_step="Give each of them a reservation, so that a rack powered on at once can't collide.",
            )


def _one_port_two_machines(by_port: dict[str, list[Reservation]]) -> Iterable[DhcpProblem]:
    for port, entries in by_port.items():
        if len({entry.machine_id for entry in entries}) > 1:
            yield DhcpProblem(
                kind="duplicate_port",
                ip_address="",
                hw_addresses=(port,),
                machine_ids=_owners(entries),
                message=f"{port} is reserved for more than one machine: {_named(entries)}.",
                next_step="Find out which machine has this card and remove the other reservation.",
            )
