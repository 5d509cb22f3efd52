"""Inspection: Ironic's own through Redfish when the node may be inspected, then what it does not tell, directly.

Ironic's inspection failing is a gap, not the end: what the BMC does say is still worth having.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libs.contracts.site import Inspection
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_errors import IronicRefusal, Why
from services.satellite.adapters.ironic_loop import RESTING, IronicSite, converge, for_good, patiently

INSPECT_SECONDS = 900.0


async def inspect(site: IronicSite, machine_id: str) -> Inspection:
    """Read everything; a node that was manageable is manageable afterwards."""
    gaps: list[str] = []
    node = await _inspected(site, machine_id, gaps)
    inventory = await _inventory(site, node, gaps)
    return await site.reads.inspect(node, inventory, gaps)


async def _inspected(site: IronicSite, machine_id: str, gaps: list[str]) -> Node:
    ordered = False

    async def step(node: Node) -> Node | None:
        nonlocal ordered
        if node.provision_state == "inspect failed":
            if ordered:
                gaps.append(f"Ironic's inspection failed: {node.last_error}")
            ordered = True
            await site.client.provision(node.id, "manage")
            return None
        if node.provision_state == "manageable" and not ordered:
            await site.client.provision(node.id, "inspect")
            ordered = True
            return None
        if node.provision_state not in RESTING:
            return None
        if node.provision_state != "manageable":
            gaps.append(f"not inspected by Ironic, because the node is {node.provision_state!r}")
        return node

    return await converge(site, machine_id, machine_id, step, limit_seconds=INSPECT_SECONDS)


async def _inventory(site: IronicSite, node: Node, gaps: list[str]) -> Mapping[str, Any]:
    try:
        return await patiently(node.name, lambda: site.client.inventory(node.id))
    except IronicRefusal as error:
        if error.why is not Why.NOT_FOUND:
            raise for_good(node.name, node.id, error) from error
        gaps.append("Ironic holds no inventory of the machine")
        return {}
