"""Tells the hub what the site's DHCP server gave and what is wrong there: on change, and again now and then.

A look that fails tells that it failed and nothing else: an unreachable server is not one without leases. What could not
be published is told at the next look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from libs.contracts.dhcp import DhcpObserved, LeaseObserved
from libs.contracts.envelope import now_utc
from libs.contracts.message import Message
from services.satellite.dhcp import Dhcp, Lease, Reservation, problems
from services.satellite.errors import SiteError

log = structlog.get_logger(__name__)
Say = Callable[[Message], Awaitable[None]]
OnLeases = Callable[[list[Lease], list[Reservation], datetime], Awaitable[None]]
# An observation has to fit into one message; whoever has more than these has one cause to look for.
MOST_PROBLEMS = 100
# Leases are renewed all the time; only what changed is news, the rest is repeated for a hub that lost its books.
REPEAT_LEASE_SECONDS = 3600.0


class DhcpWatch:
    """Watches one server. `say` publishes and raises when it could not."""

    def __init__(
        self,
        dhcp: Dhcp,
        site: str,
        say: Say,
        *,
        poll_seconds: float,
        repeat_seconds: float,
        on_leases: OnLeases | None = None,
    ) -> None:
        self._dhcp, self._site, self._say = dhcp, site, say
        self._poll_seconds, self._repeat_seconds = poll_seconds, repeat_seconds
        self._on_leases = on_leases
        self._told: dict[tuple[str, str], tuple[LeaseObserved, float]] = {}
        self._state: tuple[DhcpObserved, float] | None = None
        self._error = ""

    def problems(self) -> list[str]:
        """What keeps the server from being seen; empty when nothing does."""
        return [f"the site's DHCP server can't be read: {self._error}"] if self._error else []

    async def watch(self, may_speak: Callable[[], bool]) -> None:
        """Look and tell until cancelled; a satellite without the lease only waits."""
        while True:
            if may_speak():
                await self.look(now_utc())
            await asyncio.sleep(self._poll_seconds)

    async def look(self, now: datetime) -> None:
        """Look once; put back what the server lost."""
        try:
            await self._dhcp.put_back()
            reservations = await self._dhcp.reservations()
            leases = await self._dhcp.leases()
        except SiteError as error:
            if not self._error:
                log.warning("dhcp_not_seen", error=error.message)
            self._error = error.message
            await self._tell_state(DhcpObserved(site=self._site, observed_at=now, error=error.message[:1000]))
            return
        self._error = ""
        state = DhcpObserved(
            site=self._site,
            observed_at=now,
            problems=problems(reservations, leases, now)[:MOST_PROBLEMS],
            leases=len(leases),
            reservations=len(reservations),
        )
        if await self._tell_state(state):
            await self._tell_leases(reservations, leases, now)
        if self._on_leases is not None:
            await self._on_leases(leases, reservations, now)

    async def _tell_state(self, state: DhcpObserved) -> bool:
        """Tell it when it is news; False when it could not be told."""
        told = self._state
        if told is not None and time.monotonic() - told[1] < self._repeat_seconds:
            same = ("error", "problems")
            if all(getattr(told[0], name) == getattr(state, name) for name in same):
                return True
        if not await self._tell(state):
            return False
        self._state = state, time.monotonic()
        return True

    async def _tell_leases(self, reservations: list[Reservation], leases: list[Lease], now: datetime) -> None:
        ours = {entry.hw_address: entry.machine_id for entry in reservations if entry.machine_id}
        seen: set[tuple[str, str]] = set()
        for lease in leases:
            key = (lease.hw_address, lease.ip_address)
            seen.add(key)
            news = LeaseObserved(
                site=self._site,
                hw_address=lease.hw_address,
                ip_address=lease.ip_address,
                hostname=lease.hostname,
                state=lease.state.value,
                expires_at=lease.expires_at,
                machine_id=ours.get(lease.hw_address),
                observed_at=now,
            )
            if self._is_news(key, news):
                if not await self._tell(news):
                    return
                self._told[key] = news, time.monotonic()
        self._told = {key: told for key, told in self._told.items() if key in seen}

    def _is_news(self, key: tuple[str, str], news: LeaseObserved) -> bool:
        told = self._told.get(key)
        if told is None or time.monotonic() - told[1] >= REPEAT_LEASE_SECONDS:
            return True
        # A renewal moves the end and nothing else.
        renewed = {"observed_at": news.observed_at, "expires_at": news.expires_at}
        return told[0].model_copy(update=renewed) != news

    async def _tell(self, message: Message) -> bool:
        try:
            await self._say(message)
        except Exception as error:  # Whatever the bus raises: the next look tells it again.
            log.warning("dhcp_not_told", about=message.key(), error=str(error) or type(error).__name__)
            return False
        return True
