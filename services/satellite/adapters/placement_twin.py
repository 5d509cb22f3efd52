"""Placement's twin for the simulated site and tests: the same rules without a server.

`race`: how many of our writes meet a conflict, as with a busy Nova.
"""

from __future__ import annotations

from dataclasses import replace

from services.satellite.errors import Refusal, Unanswered
from services.satellite.placement import Provider

_TRIES = 6


class PlacementTwin:
    """See `services.satellite.placement.Placement`."""

    def __init__(self) -> None:
        self._rows: dict[str, Provider] = {}
        self.race = 0

    def put(self, provider: Provider) -> None:
        """As Nova's compute service makes and changes it."""
        before = self._rows.get(provider.id)
        self._rows[provider.id] = replace(provider, generation=before.generation + 1 if before else 1)

    async def providers(self, ids: frozenset[str]) -> list[Provider]:
        return [row for row in self._rows.values() if row.id in ids]

    async def reserve(self, provider_id: str, name: str, *, held: bool) -> Provider | None:
        for _ in range(_TRIES):
            found = self._rows.get(provider_id)
            if found is None or found.total == 0:
                return found
            if (provider_id in found.consumers) is held or (held and found.consumers):
                return found
            if self.race > 0:
                self.race -= 1
                continue
            self.put(replace(found, consumers=(provider_id,) if held else ()))
        raise Unanswered(
            "placement_busy",
            f"{name}: somebody else changed its allocations at each of {_TRIES} tries.",
            "Look at who writes to Placement; it is tried again.",
        )

    async def remove(self, provider_id: str, name: str) -> None:
        found = self._rows.get(provider_id)
        if found is not None and found.consumers:
            raise Refusal(
                "placement_in_use",
                f"{name}: somebody has an allocation on its resource provider.",
                "Look for the consumer in Nova: delete its instance, or the allocation when the instance is gone.",
            )
        self._rows.pop(provider_id, None)
