"""Finds BMCs that nobody told us of: by leases in the site's BMC ranges, and by asking those ranges address by address.

Invariants: only addresses inside the configured ranges are asked; nobody is signed in to; every address has its own
time limit, a few are asked at once, and no more than so many a second: BMCs are small and share a small network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network
from typing import Literal, Protocol

import structlog

from libs.contracts.discovery import BmcObserved
from libs.contracts.envelope import now_utc
from libs.contracts.message import Message
from services.satellite.dhcp import Lease, LeaseState, Reservation
from services.satellite.errors import Refusal

log = structlog.get_logger(__name__)
Say = Callable[[Message], Awaitable[None]]

AT_ONCE = 32
PER_SECOND = 100.0
HOST_SECONDS = 5.0
# A /20. More takes minutes and is better asked for in parts, whose progress can be seen.
MOST_ADDRESSES = 4096
# A lease that did not change is asked again after this long.
ASK_AGAIN_SECONDS = 3600.0


@dataclass(frozen=True)
class ServiceRoot:
    """What a BMC tells everybody. Blank values were not told."""

    uuid: str = ""
    vendor: str = ""
    product: str = ""
    redfish_version: str = ""


class NotRedfish(Exception):
    """Something answers there, but not as a Redfish service; the message says what."""


class BmcScan(Protocol):
    """Reads the one Redfish resource that needs no sign-in."""

    async def service_root(self, address: str) -> ServiceRoot | None:
        """The service root; None when nothing answers. Raises NotRedfish. May take for ever: the caller limits it."""
        ...


@dataclass(frozen=True)
class Scanned:
    addresses: int
    found: int
    seconds: float


class Pace:
    """Lets callers through at `per_second`, evenly."""

    def __init__(self, per_second: float) -> None:
        self._gap, self._next = 1.0 / per_second, 0.0

    async def wait(self) -> None:
        now = time.monotonic()
        self._next = max(now, self._next + self._gap)
        await asyncio.sleep(self._next - now)


class BmcFinder:
    """`ranges` are the site's networks of BMCs; without any nothing is ever asked."""

    def __init__(
        self,
        site: str,
        scan: BmcScan,
        ranges: Iterable[str],
        say: Say,
        *,
        host_seconds: float = HOST_SECONDS,
        per_second: float = PER_SECOND,
        at_once: int = AT_ONCE,
    ) -> None:
        self._site, self._bmcs, self._say = site, scan, say
        self._ranges = tuple(IPv4Network(text) for text in ranges)
        self._host_seconds, self._pace = host_seconds, Pace(per_second)
        self._gate = asyncio.Semaphore(at_once)
        self._asked: dict[tuple[str, str], float] = {}

    async def scan(self, networks: Sequence[str]) -> Scanned:
        """Ask all addresses of `networks`, or of all ranges; what answers is told. Raises Refusal for others."""
        started = time.monotonic()
        addresses = list(self._addresses(networks))
        found = await asyncio.gather(*(self._look(str(address), "scan") for address in addresses))
        seconds = round(time.monotonic() - started, 3)
        log.info("bmc_scan_ended", addresses=len(addresses), found=sum(found), seconds=seconds)
        return Scanned(len(addresses), sum(found), seconds)

    async def look_at_leases(self, leases: Iterable[Lease], reservations: Iterable[Reservation], now: datetime) -> None:
        """Ask the holders of leases in a BMC range that no reservation of ours explains."""
        ours = {entry.hw_address for entry in reservations if entry.machine_id}
        strangers = [lease for lease in leases if lease.hw_address not in ours and self._is_bmc(lease, now)]
        current = {(lease.hw_address, lease.ip_address) for lease in strangers}
        self._asked = {key: at for key, at in self._asked.items() if key in current}
        due = [lease for lease in strangers if self._due(lease)]
        await asyncio.gather(*(self._ask_holder(lease) for lease in due))

    def _is_bmc(self, lease: Lease, now: datetime) -> bool:
        active = lease.state is LeaseState.ACTIVE and (lease.expires_at is None or lease.expires_at > now)
        return active and any(IPv4Address(lease.ip_address) in network for network in self._ranges)

    def _due(self, lease: Lease) -> bool:
        asked = self._asked.get((lease.hw_address, lease.ip_address))
        return asked is None or time.monotonic() - asked >= ASK_AGAIN_SECONDS

    async def _ask_holder(self, lease: Lease) -> None:
        if await self._look(lease.ip_address, "lease", lease.hw_address, lease.hostname, silent=True):
            self._asked[lease.hw_address, lease.ip_address] = time.monotonic()

    async def _look(
        self, address: str, via: Literal["lease", "scan"], port: str = "", hostname: str = "", *, silent: bool = False
    ) -> bool:
        """Ask one address and tell what it said; whether it was told. `silent`: also when nothing answers."""
        root, problem = await self._ask(address)
        if root is None and not silent:
            return False
        seen = BmcObserved(
            site=self._site,
            address=address,
            hw_address=port,
            hostname=hostname,
            via=via,
            redfish=root is not None,
            **(vars(root) if root is not None else {}),
            problem=problem,
            observed_at=now_utc(),
        )
        try:
            await self._say(seen)
        except Exception as error:  # Whatever the bus raises: the next look tells it again.
            log.warning("bmc_not_told", address=address, error=str(error) or type(error).__name__)
            return False
        return True

    async def _ask(self, address: str) -> tuple[ServiceRoot | None, str]:
        async with self._gate:
            await self._pace.wait()
            try:
                async with asyncio.timeout(self._host_seconds):
                    root = await self._bmcs.service_root(address)
            except TimeoutError:
                return None, f"no answer within {self._host_seconds:g} s"
            except NotRedfish as error:
                return None, str(error)
        return root, "" if root is not None else "nothing answers"

    def _addresses(self, networks: Sequence[str]) -> Iterator[IPv4Address]:
        wanted = [_network(text) for text in networks] or list(self._ranges)
        if not wanted:
            raise Refusal(
                "no_bmc_ranges", "This site has no BMC ranges.", "Set SLIPWAY_BMC_RANGES at the site's satellite."
            )
        for network in wanted:
            if not any(network.subnet_of(allowed) for allowed in self._ranges):
                raise Refusal(
                    "network_not_allowed",
                    f"{network} is not inside the site's BMC ranges ({', '.join(map(str, self._ranges)) or 'none'}).",
                    "Name a network inside them, or widen SLIPWAY_BMC_RANGES at the site's satellite.",
                )
        number = sum(network.num_addresses for network in wanted)
        if number > MOST_ADDRESSES:
            words = f"{number} addresses are too many for one scan; at most {MOST_ADDRESSES}."
            raise Refusal("scan_too_large", words, "Name smaller networks, one after the other.")
        for network in wanted:
            yield from network.hosts()


def _network(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise Refusal("network_invalid", f"{text!r} is no network: {error}", "Write it like 10.20.1.0/24.") from error
