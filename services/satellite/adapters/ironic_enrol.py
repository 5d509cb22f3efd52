"""Enrolment in Ironic: the node under the machine's id, its ports, and the way to manageable."""

from __future__ import annotations

from urllib.parse import urlsplit

from libs.contracts.hardware_ids import known_port
from libs.contracts.site import EnrolNode
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_errors import IronicRefusal, Why
from services.satellite.adapters.ironic_loop import (
    IN_USE,
    TO_MANAGEABLE,
    IronicSite,
    converge,
    for_good,
    patiently,
    refuse_foreign_maintenance,
    refuse_held,
)
from services.satellite.adapters.machine_reads import CREDENTIALS_REF
from services.satellite.errors import Failure, Refusal

MANAGE_SECONDS = 300.0


async def enrol(site: IronicSite, order: EnrolNode) -> str:
    """Make the node and its ports if they are not there, and bring it to manageable; returns the state."""
    name, ref = order.machine_name, order.bmc_credentials_ref
    url = await site.reads.system_url(name, order.bmc_address, ref)
    async with site.reads.at(name, url, ref) as bmc:
        # Ironic would find out too, but says "verify failed" for a wrong address, password and dead BMC alike.
        await bmc.system()
    parts = urlsplit(url)
    address = {"redfish_address": f"{parts.scheme}://{parts.netloc}", "redfish_system_id": parts.path}
    user, password = await site.reads.credentials(ref)
    sign_in = {"redfish_username": user, "redfish_password": password, "redfish_auth_type": "basic"}
    node = await _node(site, order, {**address, **sign_in})
    await _correct(site, node, order, address, sign_in)
    await _ports(site, order)
    return await _manageable(site, order)


async def _node(site: IronicSite, order: EnrolNode, driver_info: dict[str, str]) -> Node:
    """The machine's node, made when it is not there."""
    name = order.machine_name
    known = await _found(site, order)
    if known is not None:
        return known
    try:
        await patiently(
            name,
            lambda: site.client.create(
                uuid=order.machine_id,
                name=name,
                driver=site.driver,
                resource_class=order.resource_class,
                driver_info=driver_info,
                extra={CREDENTIALS_REF: order.bmc_credentials_ref},
            ),
        )
    except IronicRefusal as error:
        if error.why is not Why.NODE_EXISTS:
            raise for_good(name, order.machine_id, error) from error
    made = await _found(site, order)
    if made is None:
        raise await _name_conflict(site, order)
    return made


async def _found(site: IronicSite, order: EnrolNode) -> Node | None:
    try:
        return await patiently(order.machine_name, lambda: site.client.node(order.machine_id))
    except IronicRefusal as error:
        if error.why is Why.NOT_FOUND:
            return None
        raise for_good(order.machine_name, order.machine_id, error) from error


async def _name_conflict(site: IronicSite, order: EnrolNode) -> Refusal:
    other = await patiently(order.machine_name, lambda: site.client.node(order.machine_name))
    return Refusal(
        "name_conflict",
        f"Ironic has another node called {order.machine_name}: {other.id}, not {order.machine_id}.",
        "Find out which machine that node is, then remove it or rename one of them.",
        other_node=other.id,
    )


async def _correct(
    site: IronicSite, node: Node, order: EnrolNode, address: dict[str, str], sign_in: dict[str, str]
) -> None:
    """Give an idle node that was made before today's address and credentials."""
    moved = any(node.driver_info.get(key) != value for key, value in address.items())
    if node.instance_uuid is not None or node.provision_state in IN_USE:
        raise Refusal(
            "node_in_use",
            f"{order.machine_name} is {node.provision_state!r} in Ironic with instance {node.instance_uuid}.",
            "Release the machine first.",
        )
    refuse_foreign_maintenance(node)
    if not moved and node.provision_state != "enroll":
        return
    changes = {f"/driver_info/{key}": value for key, value in (address | sign_in).items()}
    changes[f"/extra/{CREDENTIALS_REF}"] = order.bmc_credentials_ref
    try:
        await patiently(order.machine_name, lambda: site.client.patch(order.machine_id, changes))
    except IronicRefusal as error:
        raise for_good(order.machine_name, order.machine_id, error) from error


async def _ports(site: IronicSite, order: EnrolNode) -> None:
    name, machine_id = order.machine_name, order.machine_id
    there = await patiently(name, lambda: site.client.ports(machine_id))
    for mac in dict.fromkeys(known_port(mac) or mac.strip().lower() for mac in order.nic_macs):
        if mac and mac not in there:
            await _port(site, order, mac)


async def _port(site: IronicSite, order: EnrolNode, mac: str) -> None:
    name, machine_id = order.machine_name, order.machine_id
    try:
        await patiently(name, lambda: site.client.create_port(machine_id, mac))
    except IronicRefusal as error:
        if error.why is not Why.MAC_EXISTS:
            raise for_good(name, machine_id, error) from error
        owner = await patiently(name, lambda: site.client.port_owner(mac))
        if owner == machine_id:
            return
        other = (await patiently(name, lambda: site.client.node(owner))).name if owner else ""
        raise Refusal(
            "mac_conflict",
            f"{name}: MAC {mac} belongs to node {other or 'without a name'} ({owner}) already.",
            f"Find out which of {name} and {other or owner} has this card and correct NetBox.",
            mac=mac,
            other_node=owner or "",
        ) from error


async def _manageable(site: IronicSite, order: EnrolNode) -> str:
    ordered = False

    async def step(node: Node) -> str | None:
        nonlocal ordered
        if node.provision_state == "manageable":
            return "manageable"
        if node.provision_state == "enroll" and ordered:
            raise Failure(
                "manage_failed",
                f"{node.name}: Ironic can't manage it: {node.last_error or 'it gave no reason'}",
                "Look at the machine's BMC and its credentials.",
            )
        refuse_held(node)
        if node.provision_state in TO_MANAGEABLE:
            await site.client.provision(node.id, "manage")
            ordered = True
        return None

    return await converge(site, order.machine_id, order.machine_name, step, limit_seconds=MANAGE_SECONDS)
