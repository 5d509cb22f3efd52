"""One machine's BMC, found and signed in to: where it is, what it says, never from a cache.

Where a machine's system resource is comes from the site's endpoints file, else from the BMC itself. Which
secret opens it is kept on the Ironic node as a reference; the secret is read for each use and kept nowhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from libs.contracts.site import Inspection
from services.satellite.adapters import redfish_facts
from services.satellite.adapters.ironic_client import Node
from services.satellite.adapters.redfish import Document, RedfishSystem
from services.satellite.errors import Failure, SiteError
from services.satellite.ports import Secret, Secrets
from services.satellite.rotation import PENDING

V = TypeVar("V")
CREDENTIALS_REF = "slipway_credentials_ref"  # In the node's `extra`.


class MachineReads:
    """`endpoints`: BMC address → URL of the system. `verify`: a CA file, or whether certificates are checked."""

    def __init__(self, secrets: Secrets, endpoints: Mapping[str, str], *, verify: bool | str = True) -> None:
        self._secrets = secrets
        self._endpoints = endpoints
        self.verify = verify
        # Reference → the version of the current secret that the BMC refused while it took the pending one.
        self._replaced: dict[str, str] = {}

    async def credentials(self, ref: str) -> tuple[str, str]:
        """(user name, password) of a BMC. Raises Failure naming the reference only."""
        return _user_and_password(ref, await self._secrets.read(ref))

    async def system_url(self, name: str, bmc_address: str, ref: str) -> str:
        """The URL of the machine's one system. Raises Failure when its BMC shows none or several."""
        known = self._endpoints.get(bmc_address)
        if known is not None:
            return known
        host = f"[{bmc_address}]" if ":" in bmc_address else bmc_address
        base = f"https://{host}/redfish/v1/Systems"
        async with RedfishSystem(name, base, *await self.credentials(ref), verify=self.verify) as bmc:
            members = (await bmc.system()).get("Members")
        links = [str(member.get("@odata.id")) for member in members or [] if isinstance(member, dict)]
        if len(links) != 1:
            raise Failure(
                "bmc_invalid_answer",
                f"{name}: the BMC at {bmc_address} shows {len(links)} systems, not one.",
                "Name the system in the site's endpoints file.",
            )
        return f"https://{host}{links[0]}"

    @asynccontextmanager
    async def at(self, name: str, url: str, ref: str) -> AsyncIterator[RedfishSystem]:
        """The system at `url`, signed in with the secret `ref`."""
        current = await self._secrets.read(ref)
        user_and_password = _user_and_password(ref, current)
        if self._replaced.get(ref) == current.version:
            user_and_password = await self._pending(ref) or user_and_password

        async def spare() -> tuple[str, str] | None:
            self._replaced[ref] = current.version
            return await self._pending(ref)

        async with RedfishSystem(name, url, *user_and_password, verify=self.verify, spare=spare) as bmc:
            yield bmc

    async def _pending(self, ref: str) -> tuple[str, str] | None:
        """What a rotation has given the BMC, or was about to when it was cut off; None when none is under way."""
        try:
            return _user_and_password(ref, await self._secrets.read(PENDING + ref))
        except Failure as failure:
            if failure.code == "secret_missing":
                return None
            raise

    def of(self, node: Node) -> AbstractAsyncContextManager[RedfishSystem]:
        """The system of an enrolled node."""
        ref = node.extra.get(CREDENTIALS_REF)
        if not isinstance(ref, str):
            raise Failure("node_foreign", f"{node.name}: the node was not enrolled by Slipway.", "Enrol it.")
        url = f"{node.driver_info.get('redfish_address', '')}{node.driver_info.get('redfish_system_id', '')}"
        return self.at(node.name, url, ref)

    async def power(self, node: Node) -> str:
        """ "on", "off" or, when the BMC does not say so clearly or does not answer, "unknown"."""
        try:
            async with self.of(node) as bmc:
                return redfish_facts.power(await bmc.system())
        except SiteError:
            return "unknown"

    async def collect(self, node: Node, collector: str) -> dict[str, object]:
        """The output of an out-of-band collector. Raises KeyError for one that does not exist."""
        read = _COLLECTORS[collector]
        async with self.of(node) as bmc:
            return await read(bmc)

    async def inspect(self, node: Node, inventory: Mapping[str, Any], gaps: list[str]) -> Inspection:
        """Everything the BMC says about the machine; `inventory` (Ironic's) fills what it leaves blank."""
        async with self.of(node) as bmc:
            system = await bmc.system()
            processors = await _or_gap(bmc.members("Processors"), gaps, [])
            devices = await _or_gap(_pcie_devices(bmc, system), gaps, [])
            drives = await _or_gap(_drives(bmc), gaps, None)
            interfaces = await _or_gap(bmc.members("EthernetInterfaces"), gaps, [])
            manager = await _or_gap(_manager(bmc, system), gaps, None)
        return redfish_facts.inspection(
            _filled(system, inventory),
            processors=processors,
            gpus=redfish_facts.gpu_entries(processors, devices),
            drives=drives,
            interfaces=interfaces,
            gaps=gaps,
            devices=devices,
            manager=manager,
        )


def _user_and_password(ref: str, secret: Secret) -> tuple[str, str]:
    found = secret.fields
    if not found.get("username") or not found.get("password"):
        raise Failure(
            "secret_unreadable",
            f"The secret {ref!r} does not hold username and password.",
            "Store it again at the site.",
        )
    return found["username"], found["password"]


async def _manager(bmc: RedfishSystem, system: Document) -> Document | None:
    """The BMC itself; some do not link to it from their system, and then it is the only manager there is."""
    links = redfish_facts.inner(system, "Links", "ManagedBy")
    paths = [str(link.get("@odata.id")) for link in links if isinstance(link, dict)] if isinstance(links, list) else []
    if paths:
        return await bmc.get(paths[0])
    managers = await bmc.collection("/redfish/v1/Managers")
    return managers[0] if len(managers) == 1 else None


async def _or_gap(reading: Awaitable[V], gaps: list[str], instead: V) -> V:
    try:
        return await reading
    except SiteError as error:
        gaps.append(error.message)
        return instead


def _filled(system: Document, inventory: Mapping[str, Any]) -> Document:
    """The system with what only Ironic's inspection found: the CPUs' model, when the BMC left it blank."""
    model = redfish_facts.text(redfish_facts.inner(system, "ProcessorSummary", "Model"))
    known = redfish_facts.text(redfish_facts.inner(inventory, "cpu", "model_name"))
    if model or not known:
        return system
    return {**system, "ProcessorSummary": {**(system.get("ProcessorSummary") or {}), "Model": known}}


async def _pcie_devices(bmc: RedfishSystem, system: Document) -> list[Document]:
    """PCIe devices are a list of links in the system, or a collection; some BMCs have neither."""
    links = system.get("PCIeDevices")
    if isinstance(links, list):
        return [await bmc.get(link["@odata.id"]) for link in links if isinstance(link, dict) and "@odata.id" in link]
    return []


async def _drives(bmc: RedfishSystem) -> list[Document]:
    """The drives of every storage resource."""
    found: list[Document] = []
    for storage in await bmc.members("Storage"):
        links = storage.get("Drives")
        if not isinstance(links, list):
            raise Failure("bmc_invalid_answer", f"storage {storage.get('Id')} does not list its drives")
        found += [await bmc.get(link["@odata.id"]) for link in links if isinstance(link, dict) and "@odata.id" in link]
    return found


async def _read_system(bmc: RedfishSystem) -> dict[str, object]:
    return redfish_facts.system_evidence(await bmc.system())


async def _read_power(bmc: RedfishSystem) -> dict[str, object]:
    return {"power_state": redfish_facts.text((await bmc.system()).get("PowerState"))}


async def _read_gpus(bmc: RedfishSystem) -> dict[str, object]:
    system = await bmc.system()
    processors = await bmc.members("Processors")
    gaps: list[str] = []
    devices = await _or_gap(_pcie_devices(bmc, system), gaps, [])
    return {**redfish_facts.gpu_evidence(redfish_facts.gpu_entries(processors, devices)), "gaps": gaps}


async def _read_drives(bmc: RedfishSystem) -> dict[str, object]:
    return redfish_facts.drive_evidence(await _drives(bmc))


_COLLECTORS: dict[str, Callable[[RedfishSystem], Awaitable[dict[str, object]]]] = {
    "redfish.system": _read_system,
    "redfish.power": _read_power,
    "redfish.gpus": _read_gpus,
    "redfish.drives": _read_drives,
}
