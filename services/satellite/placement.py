"""What the satellite needs of a site's Placement: who is given what, and that Nova can't take what Slipway holds.

A machine is one resource provider under the machine's id, with one inventory of one. Slipway holds it by an allocation
of its own, whose consumer is the machine's id: no scheduler can take what is allocated, and Nova's compute service,
which writes the inventory's `reserved` anew every minute, leaves allocations of consumers that it does not know alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Provider:
    """`generation` rises with every change of it or its allocations. No `resource_class`: it offers nothing."""

    id: str
    name: str
    generation: int
    resource_class: str
    total: int
    reserved: int
    consumers: tuple[str, ...]

    @property
    def closed(self) -> bool:
        """Whether no scheduler can take it."""
        return self.total == 0 or self.reserved >= self.total or bool(self.consumers)


class Placement(Protocol):
    """One Placement. Raises SiteErrors alone: Unanswered when it is away, Refusal and Failure with what to do."""

    async def providers(self, ids: frozenset[str]) -> list[Provider]:
        """Those of `ids` that there are, with who has allocations on them."""
        ...

    async def reserve(self, provider_id: str, name: str, *, held: bool) -> Provider | None:
        """Hold the provider for Slipway, or let go; None when there is none (and so nobody can take it).

        One that somebody else has an allocation on stays theirs, and is shown as it is.
        """
        ...

    async def remove(self, provider_id: str, name: str) -> None:
        """Delete the provider; one that is not there is a success. Refusal while somebody has an allocation."""
        ...
