"""A site's DHCP server as the hub sees it: which addresses it is to give, which it gave, and what is wrong there.

Hardware addresses are canonical (libs/contracts/hardware_ids.py). A lease says that somebody was given an address,
never that a machine is up there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from libs.contracts.message import Message, command, observation, site_command
from libs.contracts.site import SiteCommand


class AddressReservation(Message):
    """Without an `ip_address` the port is known by name only and gets an address from the pool."""

    hw_address: str
    ip_address: str = ""
    hostname: str = ""


@site_command("dhcp", "reserve")
class ReserveAddresses(SiteCommand):
    """Make these the machine's only reservations of ours; none takes them all away. What others made is not touched.

    Reply data: managed (false: the site has no DHCP server that we write), applied: [AddressReservation],
    refused: [{hw_address, ip_address, problem}], lasting (the server's next start has them).
    """

    reservations: tuple[AddressReservation, ...] = ()


class DhcpProblem(Message):
    """One thing a person has to look at. `machine_ids` are those whose reservations are concerned."""

    kind: Literal["declined", "taken", "given_twice", "duplicate_port"]
    ip_address: str
    hw_addresses: tuple[str, ...]
    machine_ids: tuple[str, ...] = ()
    message: str
    next_step: str


@observation("dhcp", "lease")
class LeaseObserved(Message):
    """A lease, on change and now and then. `machine_id` is that of our reservation for the port, null without one."""

    site: str
    hw_address: str
    ip_address: str
    hostname: str = ""
    state: Literal["active", "declined", "expired"]
    expires_at: datetime | None = None
    machine_id: str | None = None
    observed_at: datetime

    def key(self) -> str:
        return self.hw_address or self.ip_address


@observation("dhcp", "state")
class DhcpObserved(Message):
    """How the site's DHCP server does, on change and every minute. All its problems, so one that is gone is over.

    `error` says why it could not be looked at; then nothing is known and `problems` is null.
    """

    site: str
    observed_at: datetime
    error: str = ""
    problems: tuple[DhcpProblem, ...] | None = None
    leases: int | None = None
    reservations: int | None = None

    def key(self) -> str:
        return self.site


@command("inventory", "record_reservations")
class RecordReservations(Message):
    """What a site made of a machine's reservations. Nothing is kept when something newer was asked for meanwhile."""

    machine_id: str
    operation_id: str
    managed: bool = False
    lasting: bool = False
    refused: tuple[dict[str, object], ...] = ()
    error: str = ""

    def key(self) -> str:
        return self.machine_id
