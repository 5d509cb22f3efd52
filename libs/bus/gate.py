"""A gate that several reasons may keep shut: writing while the outbox is full, acting after a restore."""

from __future__ import annotations

import asyncio


class Gate:
    """Open as long as nobody has closed it. Each closer has a name and says why, for people."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._open = asyncio.Event()
        self._open.set()

    def close(self, by: str, why: str) -> None:
        self._reasons[by] = why
        self._open.clear()

    def open(self, by: str) -> None:
        """`by` has nothing against it any more."""
        self._reasons.pop(by, None)
        if not self._reasons:
            self._open.set()

    @property
    def reasons(self) -> list[str]:
        """Why it is shut; empty when it is open."""
        return list(self._reasons.values())

    async def wait(self) -> None:
        """Return when it is open."""
        await self._open.wait()
