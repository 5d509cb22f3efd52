"""A site's Placement as the hub sees it: who has allocations on which machine, and what Slipway wants held there."""

from __future__ import annotations

from datetime import datetime

from libs.contracts.message import Message, observation, site_command
from libs.contracts.site import SiteCommand


@site_command("placement", "reserve")
class ReserveProvider(SiteCommand):
    """Hold the machine's resource provider for Slipway by an allocation of its own, or let go.

    Reply data: managed (false: the site has no Placement, or none of it), closed, consumers.
    """

    held: bool


@observation("placement", "provider")
class ProviderObserved(Message):
    """A machine's resource provider, on change and every 60 s. A consumer that is the machine's own id is Slipway."""

    machine_id: str
    name: str
    resource_class: str
    total: int
    reserved: int
    consumers: tuple[str, ...]
    observed_at: datetime

    def key(self) -> str:
        return self.machine_id


@observation("placement", "provider_gone")
class ProviderGone(Message):
    """A provider that was there before is no more. Told once, so it may be lost."""

    machine_id: str
    observed_at: datetime

    def key(self) -> str:
        return self.machine_id
