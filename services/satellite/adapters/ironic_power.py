"""Switching a machine on and off by Ironic, for an operator, and seeing it by the BMC's own word."""

from __future__ import annotations

from datetime import datetime

from libs.contracts.envelope import now_utc
from libs.contracts.site import PowerNode
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_errors import IronicRefusal
from services.satellite.adapters.ironic_loop import (
    IronicSite,
    for_good,
    patiently,
    refuse_foreign_maintenance,
    see_off,
    see_power,
)
from services.satellite.errors import Refusal


async def power(site: IronicSite, order: PowerNode) -> datetime:
    """On only for the claim that it is deployed for; off always, but never under another claim's hands."""
    try:
        node = await patiently(order.machine_name, lambda: site.client.node(order.machine_id))
    except IronicRefusal as error:
        raise for_good(order.machine_name, order.machine_id, error) from error
    _refuse_other_claim(node, order)
    refuse_foreign_maintenance(node)
    if order.power == "off":
        await see_off(site, node)
        return now_utc()
    if node.provision_state != "active":
        raise Refusal(
            "node_not_deployed",
            f"{node.name} is {node.provision_state!r} in Ironic; only a deployed machine is switched on.",
            "What is on its disks may be a former tenant's: have it deployed, or sanitised.",
        )
    await see_power(site, node, "on", lambda: site.client.power_on(node.id))
    return now_utc()


def _refuse_other_claim(node: Node, order: PowerNode) -> None:
    if node.instance_uuid == order.claim_id or (order.power == "off" and node.instance_uuid is None):
        return
    carried, asked = node.instance_uuid or "none", order.claim_id or "none"
    raise Refusal(
        "node_held_by_other",
        f"{node.name} carries instance {carried}, not {asked}; it is left alone.",
        "Look at the machine again: it was handed to somebody else in between.",
        held_by=node.instance_uuid or "",
    )
