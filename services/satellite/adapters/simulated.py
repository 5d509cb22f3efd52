"""The simulated site's bare metal: the same port, rules and answers as Ironic with Redfish, without either.

State lives in `simulated_store`; what is decided here is what the satellite must decide at a real site too:
whose claim a node carries, which clean was ours, and that only an observed "off" is off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Literal

from libs.contracts.envelope import now_utc
from libs.contracts.site import (
    DeployNode,
    EnrolNode,
    InspectedGpu,
    Inspection,
    NodeObserved,
    PowerNode,
    ReleaseNode,
    SanitizeNode,
)
from services.satellite.adapters.simulated_fleet import Hardware
from services.satellite.adapters.simulated_store import Record, SimulatedStore
from services.satellite.errors import Failure, Refusal, Unanswered
from services.satellite.ports import Deployed, Host, PowerOff, Sanitised

_POLL_SECONDS = 0.02
# After a power order a machine that has not obeyed within this time is stuck.
POWER_SECONDS = 1.0
CLEAN_STEPS = ("deploy.erase_devices",)


class SimulatedBareMetal:
    """`host_key` gives a machine's SSH host key by its name."""

    def __init__(self, store: SimulatedStore, host_key: Callable[[str], str]) -> None:
        self._store = store
        self._host_key = host_key

    async def enrol(self, order: EnrolNode) -> str:
        machine = self._store.hardware.get(order.bmc_address)
        if machine is None:
            raise Failure(
                "bmc_unreachable",
                f"{order.machine_name}: no BMC answers at {order.bmc_address}.",
                "Check the BMC's address in NetBox and its cable.",
            )
        await self._pass(machine.name, "enrol")
        self._refuse_foreign_macs(order)
        node = self._store.node(order.machine_id) or self._new_node(order, machine)
        if node["provision_state"] in ("enroll", "verifying"):
            node["provision_state"] = "manageable"
        self._store.put(node)
        return str(node["provision_state"])

    def _new_node(self, order: EnrolNode, machine: Hardware) -> Record:
        return {
            "id": order.machine_id,
            "name": machine.name,
            "bmc_address": order.bmc_address,
            "macs": [mac.lower() for mac in order.nic_macs if mac],
            "provision_state": "enroll",
            "target_provision_state": "",
            "instance_uuid": None,
            "instance_info": None,
            "maintenance": False,
            "fault": "",
            "last_error": "",
            "step": None,
            "clean_run": None,
            "resource_class": order.resource_class,
        }

    def _refuse_foreign_macs(self, order: EnrolNode) -> None:
        wanted = {mac.lower() for mac in order.nic_macs if mac}
        for other in self._store.nodes():
            shared = wanted & set(other["macs"])
            if other["id"] != order.machine_id and shared:
                raise Refusal(
                    "mac_conflict",
                    f"{order.machine_name}: MAC {min(shared)} belongs to node {other['name']} ({other['id']}) already.",
                    f"Find out which of {order.machine_name} and {other['name']} has this card and correct NetBox.",
                    mac=min(shared),
                    other_node=other["id"],
                )

    async def inspect(self, machine_id: str) -> Inspection:
        _, machine = self._found(machine_id)
        await self._pass(machine.name, "inspect")
        present = [gpu for gpu in self._gpus(machine) if gpu["state"] != "Absent"]
        absent = [str(gpu["slot"]) for gpu in self._gpus(machine) if gpu["state"] == "Absent"]
        kind = machine.kind
        return Inspection(
            manufacturer=kind.manufacturer,
            model=kind.model,
            serial=machine.machine.serial,
            bios_version="2.1.0",
            cpu_count=kind.cpu_sockets,
            cpu_model=kind.cpu_model,
            memory_gib=kind.memory_gib,
            gpus=tuple(InspectedGpu.model_validate(gpu) for gpu in present),
            gpu_slots_absent=tuple(absent),
            nic_macs=machine.machine.nic_macs,
            drives=kind.drive_count,
            power_state=self._store.power(machine.name),
            health="OK",
        )

    def _gpus(self, machine: Hardware) -> list[dict[str, object]]:
        faults = self._store.faults(machine.name).get("gpu", {})
        found: list[dict[str, object]] = []
        for gpu in machine.gpus():
            if not gpu.installed or gpu.number in faults.get("missing", []):
                found.append({"slot": gpu.slot, "model": "", "serial": "", "state": "Absent", "health": ""})
                continue
            health = str(faults.get("health", {}).get(str(gpu.number), "OK"))
            found.append(
                {"slot": gpu.slot, "model": gpu.model, "serial": gpu.serial, "state": "Enabled", "health": health}
            )
        return found

    async def sanitize(self, order: SanitizeNode, *, resumed: bool) -> Sanitised:
        node, machine = self._found(order.machine_id)
        if node["instance_uuid"] is not None or node["provision_state"] == "active":
            raise Refusal(
                "node_in_use",
                f"{machine.name} still carries instance {node['instance_uuid']}; it is not cleaned.",
                "Release the machine first.",
            )
        ours = node["clean_run"] == order.run_id
        if node["maintenance"] and not node["fault"]:
            raise Refusal("node_in_maintenance", f"{machine.name} is in maintenance by somebody else's hand.")
        if not (ours and (resumed or node["provision_state"] in ("cleaning", "available"))):
            self._store.start(
                node, "clean", clean_run=order.run_id, clean_started_at=time.time(), maintenance=False, fault=""
            )
        node = await self._until_settled(order.machine_id)
        if node["provision_state"] == "clean failed":
            raise Failure(
                "clean_failed",
                f"{machine.name}: cleaning under run {order.run_id} failed: {node['last_error']}",
                "The machine is not sanitised. Look at its drives, then sanitise it again.",
            )
        await self._order_off(machine)
        if node.get("retired"):
            raise Failure(
                "node_retired",
                f"{machine.name} is retired in Ironic.",
                "Decommission the machine, or unset the node's `retired` and retry it.",
            )
        node.update(provision_state="available", clean_finished_at=node.get("clean_finished_at") or time.time())
        self._store.put(node)
        return Sanitised(
            run_id=order.run_id,
            steps=CLEAN_STEPS,
            started_at=_time(node["clean_started_at"]),
            finished_at=_time(node["clean_finished_at"]),
            power_state="off",
        )

    async def deploy(self, order: DeployNode, *, extra_keys: Sequence[str], resumed: bool) -> Deployed:
        node, machine = self._found(order.machine_id)
        if not order.claim_id:
            raise Refusal("claim_missing", f"{machine.name} is deployed for a claim only; the command names none.")
        holder = node["instance_uuid"]
        if holder is None and node["provision_state"] == "available":
            holder = self._store.claim(order.machine_id, order.claim_id)
            node = self._found(order.machine_id)[0]
        if holder is not None and holder != order.claim_id:
            raise Refusal(
                "node_held_by_other",
                f"{machine.name} carries instance {holder}, not {order.claim_id}; it is not deployed.",
                "Take another machine, and find out why this one was thought free.",
                held_by=holder,
            )
        failed_before = node["provision_state"] == "deploy failed" and not resumed
        if node["provision_state"] == "available" or failed_before:
            info = {
                "hostname": order.hostname,
                "image": order.image_url,
                "keys": [*order.ssh_authorized_keys, *extra_keys],
            }
            self._store.start(node, "deploy", instance_info=info)
        node = await self._until_settled(order.machine_id)
        if node["provision_state"] != "active" or node["instance_uuid"] != order.claim_id:
            raise Failure(
                "deploy_failed",
                f"{machine.name}: {node['last_error'] or 'is ' + node['provision_state']}",
                "The machine is left as it is; look at its console and its last error.",
            )
        if self._store.power(machine.name) != "on":
            raise Unanswered("power_not_on", f"{machine.name} is deployed, but its BMC does not say that it is on.")
        return Deployed(Host(machine.address, 22, self._host_key(machine.name)), "active")

    async def release(self, order: ReleaseNode) -> PowerOff:
        node, machine = self._found(order.machine_id)
        if node["instance_uuid"] not in (None, order.claim_id) and order.claim_id:
            raise Refusal(
                "node_held_by_other",
                f"{machine.name} carries instance {node['instance_uuid']}, not {order.claim_id}; it is left alone.",
                "The machine was handed to somebody else in between: nothing is to be released for this claim.",
                held_by=node["instance_uuid"],
            )
        if node["provision_state"] == "deploying":
            node = await self._until_settled(order.machine_id)
        if node.get("protected") and node["provision_state"] == "active":
            raise Failure(
                "node_protected",
                f"{machine.name} is protected in Ironic.",
                "Ask who protected it; when they have ended that, retry the machine.",
            )
        if node["provision_state"] in ("active", "deploy failed", "error"):
            self._store.start(node, "undeploy")
            node = await self._until_settled(order.machine_id)
        if node["provision_state"] == "error":
            raise Failure("undeploy_failed", f"{machine.name}: {node['last_error']}", "Undeploy it by hand.")
        self._store.let_go(order.machine_id)
        return await self._order_off(machine)

    async def power(self, order: PowerNode) -> datetime:
        node, machine = self._found(order.machine_id)
        holder = node["instance_uuid"]
        if holder != order.claim_id and not (order.power == "off" and holder is None):
            raise Refusal(
                "node_held_by_other",
                f"{machine.name} carries instance {holder}, not {order.claim_id}; it is left alone.",
            )
        if order.power == "off":
            return (await self._order_off(machine)).observed_at
        if node["provision_state"] != "active":
            raise Refusal(
                "node_not_deployed",
                f"{machine.name} is {node['provision_state']!r}; only a deployed one is switched on.",
            )
        self._store.order_power(machine.name, "on")
        if self._store.power(machine.name) != "on":
            raise Unanswered("power_not_observed_on", f"{machine.name}: ordered on, but its BMC does not say so.")
        return now_utc()

    async def remove(self, machine_id: str) -> None:
        node = self._store.node(machine_id)
        if node is None:
            return
        if node["instance_uuid"] is not None or node["provision_state"] == "active":
            raise Refusal(
                "node_in_use",
                f"{node['name']} still carries instance {node['instance_uuid']}; it is not removed.",
                "Release the machine first.",
            )
        self._store.delete(machine_id)

    async def nodes(self) -> list[NodeObserved]:
        now = now_utc()
        return [
            NodeObserved(
                machine_id=node["id"],
                name=node["name"],
                provision_state=node["provision_state"],
                target_provision_state=node["target_provision_state"],
                power_state=self._store.power(node["name"]),
                maintenance=node["maintenance"],
                fault=node["fault"],
                last_error=node["last_error"],
                instance_uuid=node["instance_uuid"],
                observed_at=now,
                maintenance_owner=_maintenance_owner(node),
                protected=bool(node.get("protected")),
                retired=bool(node.get("retired")),
                resource_class=node.get("resource_class", ""),
                traits=(),
            )
            for node in self._store.nodes()
        ]

    async def collect(self, machine_id: str, collector: str) -> dict[str, object]:
        _, machine = self._found(machine_id)
        await self._pass(machine.name, collector)
        power = {"on": "On", "off": "Off"}.get(self._store.power(machine.name), "")
        kind = machine.kind
        if collector == "redfish.system":
            return {
                "serial": machine.machine.serial, "model": kind.model, "manufacturer": kind.manufacturer,
                "health": "OK", "memory_gib": kind.memory_gib, "cpu_count": kind.cpu_sockets, "power_state": power,
            }  # fmt: skip
        if collector == "redfish.gpus":
            gpus = [{**gpu, "view": "processors"} for gpu in self._gpus(machine)]
            return {
                "gpus": [gpu for gpu in gpus if gpu["state"] != "Absent"],
                "absent": [gpu["slot"] for gpu in gpus if gpu["state"] == "Absent"],
            }
        if collector == "redfish.drives":
            return {"drives": machine.drives(), "absent": []}
        if collector == "redfish.power":
            return {"power_state": power}
        raise KeyError(collector)

    # -- waiting ---------------------------------------------------------------------------------

    def _found(self, machine_id: str) -> tuple[Record, Hardware]:
        node = self._store.node(machine_id)
        if node is None:
            raise Failure("node_unknown", f"Ironic has no node {machine_id}.", "Enrol the machine first.")
        return node, self._store.hardware[node["bmc_address"]]

    async def _pass(self, name: str, step: str) -> None:
        """Let the time of a step go by that leaves no trace, and fail when a fault says so."""
        started = time.monotonic()
        while time.monotonic() - started < self._store.seconds(name, step):  # noqa: ASYNC110 (time is the condition)
            await asyncio.sleep(_POLL_SECONDS)
        message = self._store.failure(name, step)
        if message is not None:
            raise Failure(f"{step.replace('.', '_')}_failed", f"{name}: {message}", "Look at the machine.")

    async def _until_settled(self, machine_id: str) -> Record:
        while True:
            node = self._store.node(machine_id)
            if node is None:
                raise Failure("node_unknown", f"Node {machine_id} disappeared.", "Enrol the machine again.")
            if node["step"] is None:
                return node
            await asyncio.sleep(_POLL_SECONDS)

    async def _order_off(self, machine: Hardware) -> PowerOff:
        """Order the power off and see it off."""
        self._store.order_power(machine.name, "off")
        waited = time.monotonic() + POWER_SECONDS
        while (power := self._store.power(machine.name)) != "off":
            if time.monotonic() > waited:
                raise Unanswered(
                    "power_not_observed_off",
                    f"{machine.name}: ordered off, but its BMC says {power!r}.",
                    "Find out at the machine whether it is off; do not give it to anyone before.",
                )
            await asyncio.sleep(_POLL_SECONDS)
        return PowerOff(now_utc())


def _maintenance_owner(node: Record) -> Literal["", "ironic", "other"]:
    if not node["maintenance"]:
        return ""
    return "ironic" if node["fault"] else "other"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
