"""Deploying by Ironic: the claim by compare-and-set, the image, and a host that can be logged in to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from libs.contracts.site import DeployNode
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.ironic_errors import IronicRefusal, Why
from services.satellite.adapters.ironic_loop import RESTING, IronicSite, converge, refuse_foreign_maintenance, see_power
from services.satellite.adapters.ssh_host_key import read_host_key
from services.satellite.errors import Failure, Refusal
from services.satellite.ports import Deployed, Host

DEPLOY_SECONDS = 3600.0
# From power-on to a listening SSH server: firmware of GPU machines alone takes many minutes.
BOOT_SECONDS = 1800.0
_PAUSE_SECONDS = 0.5


async def deploy(site: IronicSite, order: DeployNode, *, extra_keys: Sequence[str], resumed: bool) -> Deployed:
    """Claim, deploy, see it on, find its host."""
    if not order.claim_id:
        raise Refusal("claim_missing", f"{order.machine_name} is deployed for a claim only; the command names none.")
    work = _Deploy(site, order, order.claim_id, [*order.ssh_authorized_keys, *extra_keys], resumed)
    node = await converge(site, order.machine_id, order.machine_name, work.step, limit_seconds=DEPLOY_SECONDS)
    await see_power(site, node, "on", lambda: site.client.power_on(node.id))
    return Deployed(await _host(site, node.name), node.provision_state)


class _Deploy:
    """One order under work. `_ours`: the present deploy was ordered for this very command."""

    def __init__(self, site: IronicSite, order: DeployNode, claim_id: str, keys: list[str], resumed: bool) -> None:
        self._site = site
        self._order = order
        self._claim_id = claim_id
        self._keys = keys
        self._ours = resumed

    async def step(self, node: Node) -> Node | None:
        if node.instance_uuid not in (None, self._claim_id):
            raise Refusal(
                "node_held_by_other",
                f"{node.name} carries instance {node.instance_uuid}, not {self._claim_id}; it is not deployed.",
                "Take another machine, and find out why this one was thought free.",
                held_by=node.instance_uuid,
            )
        if node.instance_uuid is None:
            await self._claim(node)
            return None
        match node.provision_state:
            case "active":
                return node
            case "deploy failed" if self._ours:
                raise Failure(
                    "deploy_failed",
                    f"{node.name}: {node.last_error or 'the deploy failed without a reason'}",
                    "The machine is left as it is; look at its console and its last error.",
                )
            case "available" | "deploy failed":
                await self._order_deploy(node)
            case state if state in RESTING:
                raise Failure(
                    "node_not_available",
                    f"{node.name} carries our claim but is {node.provision_state!r}: {node.last_error}",
                    "Release it, sanitise it, and claim it anew.",
                )
        return None

    async def _claim(self, node: Node) -> None:
        if node.provision_state != "available":
            raise Refusal(
                "node_not_available",
                f"{node.name} is {node.provision_state!r} in Ironic, not available; it is not deployed.",
                "Sanitise the machine first.",
            )
        refuse_foreign_maintenance(node)
        try:
            await self._site.client.patch(node.id, {"/instance_uuid": self._claim_id})
        except IronicRefusal as error:
            if error.why is not Why.INSTANCE_ELSEWHERE:
                raise
            other = await self._site.client.node_of_instance(self._claim_id)
            raise Refusal(
                "claim_elsewhere",
                f"Claim {self._claim_id} sits on node {other.name if other else 'unknown'} already, not {node.name}.",
                "A claim is for one machine; make one for each.",
                other_node=other.id if other else "",
            ) from error

    async def _order_deploy(self, node: Node) -> None:
        refuse_foreign_maintenance(node)
        order = self._order
        await self._site.client.patch(
            node.id,
            {
                "/instance_info/image_source": order.image_url,
                "/instance_info/image_checksum": order.image_checksum,
                "/instance_info/display_name": order.hostname,
            },
        )
        keys = {f"key-{number}": key for number, key in enumerate(self._keys)}
        meta_data = {"uuid": self._claim_id, "hostname": order.hostname, "public_keys": keys}
        await self._site.client.provision(node.id, "active", config_drive={"meta_data": meta_data})
        self._ours = True


async def _host(site: IronicSite, name: str) -> Host:
    """Where the machine's host answers, and the key it shows at its first log-in.

    The key is taken as it comes, right after a deploy that we ourselves ordered, over the site's own network;
    from then on it must not change.
    """
    if name not in site.hosts:
        raise Failure(
            "host_address_unknown",
            f"{name} is deployed, but the site's hosts file does not say where its host answers.",
            "Add it to the hosts file.",
        )
    address, port = site.hosts[name]
    started, problem = time.monotonic(), ""
    while time.monotonic() - started < BOOT_SECONDS:
        try:
            return Host(address, port, await read_host_key(address, port))
        except OSError as error:
            problem = str(error)
        await asyncio.sleep(_PAUSE_SECONDS)
    raise Failure(
        "host_unreachable",
        f"{name} is deployed and on, but nothing answers at {address}:{port} within {BOOT_SECONDS:.0f} s: {problem}",
        "Look at the machine's console.",
    )
