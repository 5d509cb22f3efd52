"""Releasing by Ironic: undeploy, give the claim up, and see the power off by the BMC's own word."""

from __future__ import annotations

from libs.contracts.envelope import now_utc
from libs.contracts.provision_states import PROVISION_STATES, Next
from libs.contracts.site import ReleaseNode
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_loop import (
    IN_USE,
    RESTING,
    TO_MANAGEABLE,
    IronicSite,
    converge,
    refuse_held,
    see_off,
)
from services.satellite.errors import Failure, Refusal
from services.satellite.ports import PowerOff

RELEASE_SECONDS = 1800.0
# States from which Ironic deletes a node without ado.
_REMOVABLE = frozenset({"enroll", "manageable", "available", "adopt failed"})


async def release(site: IronicSite, order: ReleaseNode) -> PowerOff:
    """End without an instance and observed off; an already released node only needs the observation."""
    ordered = False

    async def step(node: Node) -> Node | None:
        nonlocal ordered
        _refuse_other_claim(node, order)
        if node.provision_state == "error" and ordered:
            raise Failure(
                "undeploy_failed",
                f"{node.name}: {node.last_error or 'the undeploy failed without a reason'}",
                "Look at the machine; cut its power by hand if it may still run its tenant's system.",
            )
        way = PROVISION_STATES[node.provision_state].to_free
        if way in (Next.DELETED, Next.ABORT):
            await site.client.provision(node.id, way.value)
            ordered = ordered or way is Next.DELETED
            return None
        if node.provision_state not in RESTING:
            return None
        if node.instance_uuid is not None:
            await site.client.patch(node.id, {"/instance_uuid": None})
            return None
        return node

    node = await converge(site, order.machine_id, order.machine_name, step, limit_seconds=RELEASE_SECONDS)
    await see_off(site, node)
    return PowerOff(now_utc())


def _refuse_other_claim(node: Node, order: ReleaseNode) -> None:
    if node.instance_uuid is None or not order.claim_id or node.instance_uuid == order.claim_id:
        return
    raise Refusal(
        "node_held_by_other",
        f"{node.name} carries instance {node.instance_uuid}, not {order.claim_id}; it is left alone.",
        "The machine was handed to somebody else in between: nothing is to be released for this claim.",
        held_by=node.instance_uuid,
    )


async def remove(site: IronicSite, machine_id: str) -> None:
    """Delete the node and its ports; a node that is not there is a success."""

    async def step(node: Node) -> bool | None:
        if node.instance_uuid is not None or node.provision_state in IN_USE:
            raise Refusal(
                "node_in_use",
                f"{node.name} is {node.provision_state!r} with instance {node.instance_uuid}; it is not removed.",
                "Release the machine first.",
            )
        if node.provision_state in _REMOVABLE:
            await site.client.delete(node.id)
        elif node.provision_state in TO_MANAGEABLE:
            await site.client.provision(node.id, "manage")
        else:
            refuse_held(node)
        return None

    try:
        await converge(site, machine_id, machine_id, step, limit_seconds=RELEASE_SECONDS)
    except Failure as error:
        if error.code != "node_unknown":
            raise
