"""A dnsmasq that somebody else runs, read only: its lease file and its folder of hosts (--dhcp-hostsdir).

dnsmasq has no interface for changes, and its files belong to whoever runs it (Ironic's own, usually): so reservations
are refused here, and leases, conflicts and unknown machines are seen all the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from libs.contracts.hardware_ids import known_port
from services.satellite.dhcp import Lease, LeaseState, Reservation, Reserved
from services.satellite.errors import Failure, Refusal

_NO_NAME = "*"
# The hardware type in front of an address that is not Ethernet's, e.g. 20-… for InfiniBand.
_TYPED = re.compile(r"[0-9a-f]{2}-(?=[0-9a-f]{2}:)", re.IGNORECASE)
# What may stand in a hosts line besides ports, address and name.
_TAGS = ("set:", "tag:", "id:", "net:")


class DnsmasqDhcp:
    """Leases from `leases_file`, reservations from the files in `hosts_dir`."""

    def __init__(self, leases_file: Path, hosts_dir: Path | None = None) -> None:
        self._leases_file, self._hosts_dir = leases_file, hosts_dir

    async def reserve(self, machine_id: str, machine_name: str, wanted: Sequence[Reservation]) -> Reserved:
        if not wanted:
            return Reserved(())  # We never made any here, so there is nothing to take away.
        raise Refusal(
            "dhcp_read_only",
            f"{machine_name}: this site's DHCP server is a dnsmasq, which Slipway only reads.",
            "Add the reservation where dnsmasq's hosts are kept, or run Kea at this site.",
        )

    async def reservations(self) -> list[Reservation]:
        return await asyncio.to_thread(self._reservations)

    async def leases(self) -> list[Lease]:
        return await asyncio.to_thread(self._leases)

    async def put_back(self) -> int:
        return 0

    def _leases(self) -> list[Lease]:
        lines = _lines(self._leases_file)
        return [lease for line in lines if (lease := read_lease(line)) is not None]

    def _reservations(self) -> list[Reservation]:
        if self._hosts_dir is None:
            return []
        try:
            # dnsmasq leaves out what editors leave behind.
            files = [f for f in sorted(self._hosts_dir.iterdir()) if f.is_file() and not f.name.startswith((".", "#"))]
        except OSError as error:
            raise _unreadable(self._hosts_dir, error) from error
        return [found for file in files for line in _lines(file) for found in read_host(line)]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> Failure:
    words = f"{path} can't be read: {error.strerror or error}"
    return Failure("dhcp_unreachable", words, "Correct SLIPWAY_DNSMASQ_LEASES_FILE or SLIPWAY_DNSMASQ_HOSTS_DIR.")


def read_lease(line: str) -> Lease | None:
    """`expiry port address name client-id`; None for IPv6 leases, the server's own id, and half-written lines."""
    parts = line.split()
    if len(parts) < 4 or not parts[0].isdigit() or not _is_ipv4(parts[2]):
        return None
    ends, said, address, name = parts[:4]
    port = known_port(_TYPED.sub("", said, count=1)) or known_port((parts[4] if len(parts) > 4 else "")[-23:])
    # An expiry of 0 is a lease without end. dnsmasq takes declined addresses out of the file at once.
    until = datetime.fromtimestamp(int(ends), UTC) if ends != "0" else None
    return Lease(port, address, LeaseState.ACTIVE, until, "" if name == _NO_NAME else name)


def read_host(line: str) -> list[Reservation]:
    """`port[,port…],address,name,…`: one reservation for each port; [] for comments and lines without a port."""
    if not line.strip() or line.lstrip().startswith("#"):
        return []
    ports, address, name = [], "", ""
    for part in (part.strip() for part in line.split(",")):
        if port := known_port(_TYPED.sub("", part, count=1)):
            ports.append(port)
        elif _is_ipv4(part):
            address = part
        elif (
            part and not name and not part.startswith(_TAGS) and not re.fullmatch(r"\d+[smhdw]?|infinite|ignore", part)
        ):
            name = part
    return [Reservation(port, address, name) for port in ports]


def _is_ipv4(text: str) -> bool:
    try:
        return ip_address(text).version == 4
    except ValueError:
        return False
