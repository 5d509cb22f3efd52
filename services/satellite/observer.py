"""Tells the hub what the site looks like: each node on change and every minute, and a heartbeat.

An observation that could not be published is made again at the next look, never kept: only the newest state of
a node is worth telling. A look that fails tells nothing about any node; the heartbeat says that it failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from libs.contracts.envelope import now_utc
from libs.contracts.message import Message
from libs.contracts.site import NodeGone, NodeObserved, SatelliteHeartbeat
from services.satellite.errors import SiteError
from services.satellite.ports import BareMetal

log = structlog.get_logger(__name__)
VERSION = "0.1.0"

Say = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class _Told:
    state: NodeObserved
    at: float


class Observer:
    """Watches one site's nodes. `say` publishes and raises when it could not."""

    def __init__(self, bare_metal: BareMetal, say: Say, *, poll_seconds: float, repeat_seconds: float) -> None:
        self._bare_metal = bare_metal
        self._say = say
        self._poll_seconds = poll_seconds
        self._repeat_seconds = repeat_seconds
        self._told: dict[str, _Told] = {}
        self._problem = ""
        self.nodes_known = 0
        self.node_ids: frozenset[str] = frozenset()

    def problems(self) -> list[str]:
        """What keeps the site from being seen; empty when nothing does."""
        return [self._problem] if self._problem else []

    async def watch(self, may_speak: Callable[[], bool]) -> None:
        """Look and tell until cancelled; a satellite without the lease only waits."""
        while True:
            if may_speak():
                await self.look()
            await asyncio.sleep(self._poll_seconds)

    async def look(self) -> None:
        """Look once, and tell what is new or was last told too long ago."""
        try:
            seen = await self._bare_metal.nodes()
        except SiteError as error:
            if not self._problem:
                log.warning("site_not_seen", error=error.message)
            self._problem = f"the site's nodes can't be listed: {error.message}"
            return
        self._problem = ""
        self.nodes_known = len(seen)
        self.node_ids = frozenset(node.machine_id for node in seen)
        for node in seen:
            if self._is_news(node):
                if not await self._tell(node, node.name):
                    return
                self._told[node.machine_id] = _Told(node, time.monotonic())
        for machine_id in self._told.keys() - {node.machine_id for node in seen}:
            name = self._told[machine_id].state.name
            if not await self._tell(NodeGone(machine_id=machine_id, name=name, observed_at=now_utc()), name):
                return
            del self._told[machine_id]

    async def _tell(self, news: NodeObserved | NodeGone, name: str) -> bool:
        try:
            await self._say(news)
        except Exception as error:  # Whatever the bus raises: the next look tells it again.
            log.warning("observation_not_told", machine=name, error=str(error) or type(error).__name__)
            return False
        return True

    def _is_news(self, node: NodeObserved) -> bool:
        told = self._told.get(node.machine_id)
        if told is None or time.monotonic() - told.at >= self._repeat_seconds:
            return True
        return node != told.state.model_copy(update={"observed_at": node.observed_at})


async def heartbeat(
    site: str,
    say: Say,
    *,
    every_seconds: float,
    running: Callable[[], int],
    nodes_known: Callable[[], int],
    problems: Callable[[], list[str]],
    parts: Callable[[], dict[str, str]] = dict,
) -> None:
    """Say that the satellite lives, and what is wrong, until cancelled."""
    while True:
        beat = SatelliteHeartbeat(
            site=site,
            version=VERSION,
            at=now_utc(),
            commands_running=running(),
            nodes_known=nodes_known(),
            problems=tuple(problems()),
            parts=parts(),
        )
        try:
            await say(beat)
        except Exception as error:  # Whatever the bus raises: the next beat comes anyway.
            log.warning("heartbeat_not_told", error=str(error) or type(error).__name__)
        await asyncio.sleep(every_seconds)
