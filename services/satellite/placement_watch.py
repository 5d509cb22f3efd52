"""Tells the hub who has allocations on the site's machines: each provider on change, and again now and then.

A look that fails tells nothing about any provider; the heartbeat says that it failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from libs.contracts.envelope import now_utc
from libs.contracts.message import Message
from libs.contracts.placement import ProviderGone, ProviderObserved
from services.satellite.errors import SiteError
from services.satellite.placement import Placement, Provider

log = structlog.get_logger(__name__)
Say = Callable[[Message], Awaitable[None]]
OK = "ok"


class PlacementWatch:
    """Watches one Placement. `nodes`: ids of the nodes that the site has; `say` raises when it could not publish."""

    def __init__(
        self,
        placement: Placement,
        nodes: Callable[[], frozenset[str]],
        say: Say,
        *,
        poll_seconds: float,
        repeat_seconds: float,
    ) -> None:
        self._placement, self._nodes, self._say = placement, nodes, say
        self._poll_seconds, self._repeat_seconds = poll_seconds, repeat_seconds
        self._told: dict[str, tuple[Provider, float]] = {}
        self.state = "not looked at yet"

    async def watch(self, may_speak: Callable[[], bool]) -> None:
        """Look and tell until cancelled; a satellite without the lease only waits."""
        while True:
            if may_speak():
                await self.look()
            await asyncio.sleep(self._poll_seconds)

    async def look(self) -> None:
        """Look once, and tell what is new or was last told too long ago."""
        nodes = self._nodes()
        try:
            found = await self._placement.providers(nodes)
        except SiteError as error:
            if self.state == OK:
                log.warning("placement_not_seen", error=error.message)
            self.state = error.message
            return
        self.state = OK
        for provider in found:
            told = self._told.get(provider.id)
            if told is not None and told[0] == provider and time.monotonic() - told[1] < self._repeat_seconds:
                continue
            if not await self._tell(_observed(provider)):
                return
            self._told[provider.id] = (provider, time.monotonic())
        for key in self._told.keys() - {provider.id for provider in found}:
            if not await self._tell(ProviderGone(machine_id=key, observed_at=now_utc())):
                return
            del self._told[key]

    async def _tell(self, news: Message) -> bool:
        try:
            await self._say(news)
        except Exception as error:  # Whatever the bus raises: the next look tells it again.
            log.warning("observation_not_told", error=str(error) or type(error).__name__)
            return False
        return True


def _observed(provider: Provider) -> ProviderObserved:
    return ProviderObserved(
        machine_id=provider.id,
        name=provider.name,
        resource_class=provider.resource_class,
        total=provider.total,
        reserved=provider.reserved,
        consumers=provider.consumers,
        observed_at=now_utc(),
    )
