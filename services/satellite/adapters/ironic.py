"""The bare-metal port on a real site: Ironic for every change, direct Redfish for what it does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from libs.contracts.envelope import now_utc
from libs.contracts.site import (
    DeployNode,
    EnrolNode,
    Inspection,
    NodeObserved,
    PowerNode,
    ReleaseNode,
    SanitizeNode,
)
from services.satellite.adapters import (
    ironic_clean,
    ironic_deploy,
    ironic_enrol,
    ironic_inspect,
    ironic_power,
    ironic_release,
)
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_errors import IronicRefusal
from services.satellite.adapters.ironic_loop import IronicSite, for_good, patiently
from services.satellite.errors import Unanswered
from services.satellite.ports import Deployed, PowerOff, Sanitised

_POWER = {"power on": "on", "power off": "off"}


class _Locks:
    """Since when each node's lock has had its present holder, as far as this process saw: Ironic does not say it."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, datetime]] = {}

    def look(self, holders: Iterable[tuple[str, str]], now: datetime) -> None:
        before = self._since
        self._since = {
            node_id: before[node_id] if before.get(node_id, ("",))[0] == holder else (holder, now)
            for node_id, holder in holders
            if holder
        }

    def since(self, node_id: str) -> datetime | None:
        return self._since[node_id][1] if node_id in self._since else None


def _owner(node: Node) -> Literal["", "ironic", "other"]:
    if not node.maintenance:
        return ""
    return "ironic" if node.fault else "other"


class IronicBareMetal:
    """See `services.satellite.ports.BareMetal`."""

    def __init__(self, site: IronicSite) -> None:
        self._site = site
        self._locks = _Locks()

    async def enrol(self, order: EnrolNode) -> str:
        return await ironic_enrol.enrol(self._site, order)

    async def inspect(self, machine_id: str) -> Inspection:
        return await ironic_inspect.inspect(self._site, machine_id)

    async def sanitize(self, order: SanitizeNode, *, resumed: bool) -> Sanitised:
        return await ironic_clean.sanitize(self._site, order, resumed=resumed)

    async def deploy(self, order: DeployNode, *, extra_keys: Sequence[str], resumed: bool) -> Deployed:
        return await ironic_deploy.deploy(self._site, order, extra_keys=extra_keys, resumed=resumed)

    async def release(self, order: ReleaseNode) -> PowerOff:
        return await ironic_release.release(self._site, order)

    async def power(self, order: PowerNode) -> datetime:
        return await ironic_power.power(self._site, order)

    async def remove(self, machine_id: str) -> None:
        await ironic_release.remove(self._site, machine_id)

    async def nodes(self) -> list[NodeObserved]:
        """Power here is what Ironic last heard; whoever needs it for sure reads the BMC."""
        try:
            found = await self._site.client.nodes()
        except IronicRefusal as error:
            raise Unanswered("ironic_unreachable", f"Ironic does not list its nodes: {error.message}") from error
        now = now_utc()
        self._locks.look(((node.id, node.reservation) for node in found), now)
        return [
            NodeObserved(
                machine_id=node.id,
                name=node.name,
                provision_state=node.provision_state,
                target_provision_state=node.target_provision_state,
                power_state=_POWER.get(node.power_state, "unknown"),
                maintenance=node.maintenance,
                fault=node.fault,
                last_error=node.last_error,
                instance_uuid=node.instance_uuid,
                observed_at=now,
                target_power_state=_POWER.get(node.target_power_state, node.target_power_state),
                maintenance_reason=node.maintenance_reason[:500],
                maintenance_owner=_owner(node),
                protected=node.protected,
                retired=node.retired,
                retired_reason=node.retired_reason[:500],
                reservation=node.reservation,
                reserved_since=self._locks.since(node.id),
                resource_class=node.resource_class,
                traits=node.traits,
                conductor_group=node.conductor_group,
            )
            for node in found
        ]

    async def collect(self, machine_id: str, collector: str) -> dict[str, object]:
        try:
            node = await patiently(machine_id, lambda: self._site.client.node(machine_id))
        except IronicRefusal as error:
            raise for_good(machine_id, machine_id, error) from error
        return await self._site.reads.collect(node, collector)
