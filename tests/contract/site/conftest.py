"""One site behind the ports, twice: the simulated one, and real Ironic, Redfish BMCs and SSH hosts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from deploy.lab.bmc import BmcLab
from deploy.lab.fleet import FLEET_FILE, Machine, load_fleet
from deploy.lab.hosts import HostsLab
from deploy.lab.interpreters import VAR
from deploy.lab.ironic import IronicLab, clear_fault, inject_fault
from libs.contracts.site import DeployNode, EnrolNode, NodeObserved, ReleaseNode, SanitizeNode
from libs.runtime.embedded import EmbeddedPostgres
from libs.testing.servers import free_port
from services.satellite.adapters.secret_file import FileSecrets, create_key
from services.satellite.adapters.site import open_site
from services.satellite.ports import Site
from services.satellite.settings import SatelliteSettings
from tests.contract.site.hub_side import write_faults


class SiteUnderTest:
    """`break_step(machine, step, message)` makes "clean" or "deploy" fail until `mend(machine)`."""

    def __init__(
        self,
        site: Site,
        break_step: Callable[[str, str, str], None],
        mend: Callable[[str], None],
        deployment: Callable[[Machine], str],
        edit_node: Callable[[str, dict[str, object]], Awaitable[None]],
        lie: Callable[[str, str], None],
    ) -> None:
        self.site = site
        self.break_step = break_step
        self.mend = mend
        # What is installed on the machine, different for each deployment; "" for nothing.
        self.deployment: Callable[[Machine], str] = deployment
        # Set fields of the node with this id behind the satellite's back, as another user of Ironic would.
        self.edit_node = edit_node
        # How a machine's BMC answers a change of password: "ignore", "refuse", "lose"; "" for honestly.
        self.lie = lie
        self.fleet = load_fleet().machines
        self._free = list(load_fleet().machines)

    def machine(self, *, gpus: int | None = None) -> Machine:
        """A machine no other test has; one with exactly `gpus` GPUs when a number is given."""
        wanted = (gpus,) if gpus is not None else (0, 8)
        found = next(machine for machine in self._free if machine.gpus_installed in wanted)
        self._free.remove(found)
        return found

    def give_back(self, machine: Machine) -> None:
        """It is as if it had just been enrolled: the next test may have it."""
        self._free.append(machine)

    @staticmethod
    def ids(machine: Machine) -> dict[str, str]:
        return {"machine_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, machine.name)), "machine_name": machine.name}

    def enrol_order(self, machine: Machine, **changes: object) -> EnrolNode:
        order = EnrolNode(
            **self.ids(machine),
            bmc_address=str(machine.bmc_ip),
            bmc_credentials_ref=f"bmc/{machine.name}",
            resource_class="baremetal",
            nic_macs=tuple(machine.nic_macs),
        )
        return order.model_copy(update=changes)

    def sanitize_order(self, machine: Machine, run_id: str) -> SanitizeNode:
        return SanitizeNode(**self.ids(machine), run_id=run_id)

    def deploy_order(self, machine: Machine, claim_id: str, hostname: str, *keys: str) -> DeployNode:
        return DeployNode(
            **self.ids(machine),
            claim_id=claim_id,
            image_url="file:///images/ubuntu-22.04-gpu.qcow2",
            image_checksum="0" * 64,
            hostname=hostname,
            ssh_authorized_keys=keys,
        )

    def release_order(self, machine: Machine, claim_id: str) -> ReleaseNode:
        return ReleaseNode(**self.ids(machine), claim_id=claim_id)

    async def available(self, machine: Machine) -> Machine:
        """Enrol and sanitise the machine."""
        await self.site.bare_metal.enrol(self.enrol_order(machine))
        await self.site.bare_metal.sanitize(self.sanitize_order(machine, f"first-{machine.name}"), resumed=False)
        return machine

    async def node(self, machine: Machine) -> NodeObserved:
        """What the satellite would tell of the machine's node now."""
        nodes = {node.name: node for node in await self.site.bare_metal.nodes()}
        return nodes[machine.name]

    async def state(self, machine: Machine) -> str:
        return (await self.node(machine)).provision_state


@pytest.fixture(scope="module", params=["simulated", pytest.param("real", marks=pytest.mark.lab)])
def under_test(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteUnderTest]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "simulated":
        yield _simulated(folder)
    else:
        with _real(folder, request.getfixturevalue("postgres")) as real:
            yield real


def _simulated(folder: Path) -> SiteUnderTest:
    settings = SatelliteSettings(
        site="fra1",
        site_adapters="simulated",
        state_dir=folder / "state",
        fleet_file=FLEET_FILE,
        faults_file=folder / "faults.json",
        simulated_step_seconds=0.05,
    )
    site = open_site(settings)

    def deployment(machine: Machine) -> str:
        store = site.bare_metal._store  # type: ignore[attr-defined]  # The machine's disk, which no port shows.
        known = store.machine(machine.name)
        return f"{machine.name}/{len(known['deployments'])}" if known["system"] else ""

    async def edit_node(machine_id: str, changes: dict[str, object]) -> None:
        store = site.bare_metal._store  # type: ignore[attr-defined]
        store.put(store.node(machine_id) | changes)

    return SiteUnderTest(
        site,
        lambda machine, step, message: write_faults(folder, {machine: {"fail": {step: message}}}),
        lambda machine: write_faults(folder, {}),
        deployment,
        edit_node,
        lambda machine, how: write_faults(folder, {machine: {"accounts": how}} if how else {}),
    )


@contextlib.contextmanager
def _real(folder: Path, postgres: EmbeddedPostgres) -> Iterator[SiteUnderTest]:
    var = folder / "var"
    ironic = IronicLab(var, free_port(), asyncio.run(_create_database(postgres)), software=VAR)
    bmc = BmcLab(var, free_port(), software=VAR)
    hosts = HostsLab(var, _free_range(len(load_fleet().machines)))
    labs = (bmc, ironic, hosts)
    try:
        for lab in labs:
            lab.install()
            lab.start()
        site = open_site(_real_settings(folder, ironic, bmc, hosts))
        client = site.bare_metal._site.client  # type: ignore[attr-defined]
        yield SiteUnderTest(
            site,
            lambda machine, step, message: inject_fault(var, machine, {"fail": {_LAB_STEPS[step]: message}}),
            lambda machine: clear_fault(var, machine),
            lambda machine: _installed(hosts.folder / str(machine.bmc_system_uuid) / "active.json"),
            lambda machine_id, changes: client.patch(machine_id, {f"/{name}": v for name, v in changes.items()}),
            lambda machine, how: (
                inject_fault(var, machine, {"bmc": {"accounts": how}}) if how else clear_fault(var, machine)
            ),
        )
    finally:
        for lab in reversed(labs):
            lab.stop()


_LAB_STEPS = {"clean": "erase_devices", "deploy": "write_image"}


def _installed(path: Path) -> str:
    return str(json.loads(path.read_text())["deployment_id"]) if path.exists() else ""


def _real_settings(folder: Path, ironic: IronicLab, bmc: BmcLab, hosts: HostsLab) -> SatelliteSettings:
    key_file, secrets_dir = folder / "secrets.key", folder / "secrets"
    create_key(key_file)
    store = FileSecrets(secrets_dir, key_file)
    for machine, known in bmc.credentials.items():
        store.put(f"bmc/{machine}", json.dumps(known).encode())
    hosts_file = folder / "hosts.json"
    hosts_file.write_text(
        json.dumps({name: {"address": at.host, "ssh_port": at.port} for name, at in hosts.addresses().items()})
    )
    return SatelliteSettings(
        site="fra1",
        site_adapters="real",
        state_dir=folder / "state",
        ironic_url=ironic.url,
        ironic_credentials_file=ironic.credentials_file,
        ironic_driver="sim-redfish",
        endpoints_file=bmc.endpoints_file,
        hosts_file=hosts_file,
        secrets_dir=secrets_dir,
        secrets_key_file=key_file,
    )


async def _create_database(postgres: EmbeddedPostgres) -> str:
    admin = await asyncpg.connect(postgres.url())
    try:
        # Of each module's own: the server is the session's.
        name = f"satellite_ironic_{uuid.uuid4().hex[:8]}"
        await admin.execute(f"CREATE DATABASE {name}")
    finally:
        await admin.close()
    return postgres.url(name)


def _free_range(count: int) -> int:
    """The first of `count` neighbouring ports that nobody listens on, below the range the kernel hands out."""
    for base in range(26600, 28600, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(base, base + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
    raise AssertionError(f"no {count} free ports in a row")
