"""The port to a source of record, and what a walk over it gives.

A walk is whole or it is an error: `read` raises rather than return a part, so nothing is ever concluded from what
was not seen. One bad record is a `DeviceProblem`; the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from services.inventory.model.ownership import require_ours
from services.inventory.model.source import DeviceProblem, SourceDevice


class SourceUnavailable(Exception):
    """It could not be read or written now: away, slow, 5xx, or an answer that makes no sense."""


class SourceMisconfigured(SourceUnavailable):
    """It answers, but not with what we were told to look for (a role that is not there, a refused token)."""


@dataclass(frozen=True)
class SiteRecord:
    slug: str
    name: str
    netbox_id: int | None


@dataclass(frozen=True)
class RackRecord:
    id: str
    name: str
    site: str
    netbox_id: int | None


@dataclass(frozen=True)
class DeviceTypeRecord:
    slug: str
    manufacturer: str
    model: str
    netbox_id: int | None


@dataclass(frozen=True)
class Walk:
    """What was read. `full`: every machine there is, so what is missing is missing.

    `newest` is how far it saw, by the source's own clock, from which the next poll goes on; None when nothing says.
    `absent`: devices that were asked for by their number and are not there, or are no machines of ours.
    """

    full: bool
    sites: tuple[SiteRecord, ...] = ()
    racks: tuple[RackRecord, ...] = ()
    device_types: tuple[DeviceTypeRecord, ...] = ()
    devices: tuple[SourceDevice, ...] = ()
    problems: tuple[DeviceProblem, ...] = ()
    newest: datetime | None = None
    absent: tuple[int, ...] = ()


@dataclass(frozen=True)
class Write:
    """Our own fields of one device. `status` only completes an intent that people gave (staged → active).

    Raises ValueError for a field that NetBox owns: there is no way to write one.
    """

    netbox_id: int
    fields: dict[str, str | None]
    status: str | None = None

    def __post_init__(self) -> None:
        require_ours(self.fields, self.status)


class MachineSource(Protocol):
    """Where people say what machines there are."""

    async def read(self, since: datetime | None) -> Walk:
        """Everything (`since` None), or the devices changed since. Raises SourceUnavailable."""
        ...

    async def write(self, writes: Sequence[Write]) -> list[str]:
        """Write our own fields; one text per write, "" when it is done. Raises SourceUnavailable when none was."""
        ...


@runtime_checkable
class HintedSource(MachineSource, Protocol):
    """A source that tells by itself what changed, and can then be asked for just that."""

    async def look_at(self, netbox_ids: Sequence[int]) -> Walk:
        """These devices as they are now; what is not there is `absent`. Raises SourceUnavailable."""
        ...
