"""A DHCP server in memory, for simulated sites and tests; it passes the contract that Kea passes.

`give` and `decline` play what clients do. One /8 of subnets: whatever is private can be reserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from services.satellite.adapters.kea_config import Wanted, plan, read_reservations
from services.satellite.dhcp import Lease, LeaseState, Reservation, Reserved

LEASE_SECONDS = 600


class DhcpTwin:
    """`subnets` as Kea's configuration would list them."""

    def __init__(self, subnets: Sequence[str] = ("10.0.0.0/8",)) -> None:
        found = [{"id": number, "subnet": subnet} for number, subnet in enumerate(subnets, 1)]
        self._config: dict[str, object] = {"Dhcp4": {"subnet4": found}}
        self._leases: dict[str, Lease] = {}

    async def reserve(self, machine_id: str, machine_name: str, wanted: Sequence[Reservation]) -> Reserved:
        planned = plan(self._config, [Wanted(machine_id, machine_name, tuple(wanted))])
        self._config = planned.config
        return Reserved(tuple(planned.applied[machine_id]), tuple(planned.refused[machine_id]))

    async def reservations(self) -> list[Reservation]:
        return read_reservations(self._config)

    async def leases(self) -> list[Lease]:
        return list(self._leases.values())

    async def put_back(self) -> int:
        return 0

    def give(self, hw_address: str, ip_address: str, hostname: str = "") -> None:
        """A client was given the address."""
        end = datetime.now(UTC) + timedelta(seconds=LEASE_SECONDS)
        self._leases[ip_address] = Lease(hw_address, ip_address, LeaseState.ACTIVE, end, hostname)

    def decline(self, hw_address: str, ip_address: str) -> None:
        """A client found the address in use."""
        end = datetime.now(UTC) + timedelta(days=1)
        self._leases[ip_address] = Lease(hw_address, ip_address, LeaseState.DECLINED, end)
