"""The lab's Ironic, BMCs and hosts behave as a site's do: real Redfish, real SSH, and a disk that remembers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import asyncssh
import httpx
import openstack
import pytest

from deploy.lab.bmc import BmcLab
from deploy.lab.fleet import Machine, load_fleet
from deploy.lab.hosts import HostsLab
from deploy.lab.interpreters import VAR
from deploy.lab.ironic import IronicLab, clear_fault, inject_fault
from libs.runtime.embedded import EmbeddedPostgres
from libs.testing.servers import free_port

pytestmark = [
    pytest.mark.lab,
    # Installing, migrating and starting Ironic takes half a minute on an idle machine, several on a busy one.
    pytest.mark.timeout(600),
    # openstacksdk 4 warns about parts of itself in every call.
    *(
        pytest.mark.filterwarnings(f"ignore::openstack.warnings.{name}")
        for name in ("OpenStackDeprecationWarning", "RemovedInSDK50Warning", "RemovedInSDK60Warning")
    ),
]

ERASE_AND_RESET = [
    {"interface": "deploy", "step": "erase_devices"},
    {"interface": "bios", "step": "factory_reset"},
]
FULL, ONE_GPU_SHORT = "fra1-r1-gpu-01", "fra1-r1-gpu-04"


@dataclass(frozen=True)
class Site:
    """The three labs of one site and a client of its Ironic."""

    var: Path
    ironic: IronicLab
    bmc: BmcLab
    hosts: HostsLab
    client: Any

    def endpoint(self, machine: Machine) -> str:
        addresses: dict[str, str] = json.loads(self.bmc.endpoints_file.read_text())
        return addresses[str(machine.bmc_ip)]

    def redfish(self, machine: Machine, path: str = "") -> Any:
        known = self.bmc.credentials[machine.name]
        answer = httpx.get(self.endpoint(machine) + path, auth=(known["username"], known["password"]), timeout=10)
        answer.raise_for_status()
        return answer.json()

    def folder(self, machine: Machine) -> Path:
        return self.hosts.folder / str(machine.bmc_system_uuid)


@dataclass(frozen=True)
class Node:
    """One enrolled machine."""

    site: Site
    machine: Machine
    id: str

    def state(self) -> Any:
        return self.site.client.get_node(self.id)

    def order(self, verb: str, **more: Any) -> None:
        self.site.client.set_node_provision_state(self.id, verb, **more)

    def ends_in(self, state: str, within_seconds: float = 60.0) -> Any:
        """Wait for the state, as a client must: failed states keep their target, the others lose it."""

        def ended() -> bool:
            node = self.state()
            settled = node.target_provision_state is None or state.endswith("failed")
            return bool(node.provision_state == state and settled)

        await_that(ended, within_seconds, lambda: f"{state}, but is {self.state().provision_state}")
        return self.state()

    def clean(self) -> Any:
        self.order("clean", clean_steps=ERASE_AND_RESET)
        return self.ends_in("manageable")

    def deploy(self, key: asyncssh.SSHKey, hostname: str = "node-1") -> None:
        """Claim the node and deploy it with a key; it must be available."""
        patch = [
            {"op": "add", "path": "/instance_uuid", "value": str(uuid.uuid4())},
            {"op": "add", "path": "/instance_info/image_source", "value": "file:///images/ubuntu-24.04.qcow2"},
        ]
        self.site.client.patch_node(self.id, patch, retry_on_conflict=False)
        meta_data = {"hostname": hostname, "public_keys": {"tenant": public(key)}}
        self.order("active", config_drive={"meta_data": meta_data})

    def undeploy_and_clean(self) -> None:
        self.order("deleted")
        self.ends_in("available")
        self.order("manage")
        self.ends_in("manageable")
        self.clean()

    async def login(self, key: asyncssh.SSHKey, user: str = "ubuntu") -> asyncssh.SSHClientConnection:
        """Sign in, waiting for the host to come up."""
        address = self.site.hosts.addresses()[self.machine.name]
        deadline = time.monotonic() + 10
        while True:
            try:
                return await asyncssh.connect(*address, username=user, client_keys=[key], known_hosts=None, config=None)
            except (ConnectionRefusedError, ConnectionResetError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    def listens(self) -> bool:
        address = self.site.hosts.addresses()[self.machine.name]
        return asyncio.run(_accepts(*address))


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def await_that(holds: Callable[[], bool], within_seconds: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + within_seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds} s: {what()}")
        time.sleep(0.05)


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


def fingerprint(host: asyncssh.SSHClientConnection) -> str:
    key = host.get_server_host_key()
    assert key is not None
    return key.get_fingerprint()


def new_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519", comment="tenant")


def _free_range(count: int) -> int:
    """The first of `count` neighbouring ports that nobody listens on, below the range the kernel hands out."""
    for base in range(28600, 32000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(base, base + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
    raise AssertionError(f"no {count} free ports in a row")


async def _create_database(postgres: EmbeddedPostgres) -> str:
    admin = await asyncpg.connect(postgres.url())
    try:
        await admin.execute("CREATE DATABASE lab_ironic")
    finally:
        await admin.close()
    return postgres.url("lab_ironic")


def connect(ironic: IronicLab, password: str | None = None) -> Any:
    known = ironic.credentials
    auth = {"endpoint": ironic.url, "username": known["username"], "password": password or known["password"]}
    return openstack.connect(
        load_yaml_config=False,
        load_envvars=False,
        auth_type="http_basic",
        auth=auth,
        baremetal_endpoint_override=ironic.url,
        region_name="fra1",
        baremetal_status_code_retries=0,
    ).baremetal


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres) -> Iterator[Site]:
    """A site with state of its own; the programs are shared with the repository's own lab."""
    var = tmp_path_factory.mktemp("site") / "var"
    ironic = IronicLab(var, free_port(), asyncio.run(_create_database(postgres)), software=VAR)
    bmc = BmcLab(var, free_port(), software=VAR)
    hosts = HostsLab(var, _free_range(len(load_fleet().machines)))
    labs = (bmc, ironic, hosts)
    try:
        for lab in labs:
            lab.install()
            lab.start()
        yield Site(var, ironic, bmc, hosts, connect(ironic))
    finally:
        for lab in reversed(labs):
            lab.stop()


@pytest.fixture(scope="module")
def enrol(site: Site) -> Callable[[str], Node]:
    """Enrol a machine by name as a client does, up to manageable; a second call answers the same node."""
    enrolled: dict[str, Node] = {}

    def make(name: str) -> Node:
        if name not in enrolled:
            machine = load_fleet().machine(name)
            known, address = site.bmc.credentials[name], urlsplit(site.endpoint(machine))
            created = site.client.create_node(
                uuid=str(uuid.uuid4()),
                name=name,
                driver="sim-redfish",
                driver_info={
                    "redfish_address": f"{address.scheme}://{address.netloc}",
                    "redfish_system_id": address.path,
                    "redfish_username": known["username"],
                    "redfish_password": known["password"],
                    "redfish_auth_type": "basic",
                },
            )
            node = Node(site, machine, created.id)
            node.order("manage")
            node.ends_in("manageable")
            enrolled[name] = node
        return enrolled[name]

    return make


@pytest.fixture
def available(enrol: Callable[[str], Node]) -> Iterator[Callable[[str], Node]]:
    """Clean a machine and make it available; afterwards it is cleaned again and its faults are taken out."""
    used: list[Node] = []

    def make(name: str) -> Node:
        node = enrol(name)
        used.append(node)
        node.clean()
        node.order("provide")
        node.ends_in("available")
        return node

    yield make
    for node in used:
        clear_fault(node.site.var, node.machine.name)
        if node.state().provision_state in ("active", "deploy failed"):
            node.undeploy_and_clean()


def test_the_api_refuses_a_wrong_password(site: Site) -> None:
    with pytest.raises(openstack.exceptions.HttpException) as refused:
        list(connect(site.ironic, password="wrong").nodes())
    assert refused.value.status_code == 401


def test_secrets_are_readable_by_their_owner_only(site: Site) -> None:
    secret = [site.ironic.credentials_file, site.bmc.credentials_file, site.ironic.folder / "htpasswd"]
    assert [oct(path.stat().st_mode & 0o777) for path in secret] == ["0o600"] * 3


def test_a_bmc_opens_to_its_own_password_only(site: Site) -> None:
    fleet = load_fleet()
    one, other = fleet.machines[0], fleet.machines[1]
    known = site.bmc.credentials[one.name]
    auth = (known["username"], known["password"])
    assert httpx.get(site.endpoint(one), auth=auth).status_code == 200
    assert httpx.get(site.endpoint(other), auth=auth).status_code == 401
    assert httpx.get(site.endpoint(one)).status_code == 401


def test_a_bmc_describes_its_machine_as_the_fleet_does(site: Site) -> None:
    for machine in load_fleet().machines:
        kind = load_fleet().device_type(machine.device_type)
        system = site.redfish(machine)
        assert (system["SerialNumber"], system["Manufacturer"]) == (machine.serial, kind.manufacturer)
        assert system["ProcessorSummary"]["CoreCount"] == kind.cpu_cores
        assert system["MemorySummary"]["TotalSystemMemoryGiB"] == kind.memory_gib


@pytest.mark.parametrize(("name", "gpus"), [(FULL, 8), (ONE_GPU_SHORT, 7), ("fra1-r1-cpu-01", 0)])
def test_inspection_counts_the_gpus_that_are_really_there(enrol: Callable[[str], Node], name: str, gpus: int) -> None:
    node = enrol(name)
    node.order("inspect")
    node.ends_in("manageable")
    inventory = node.site.client.get_node_inventory(node.id)["inventory"]
    nvidia = [device for device in inventory["pci_devices"] if device["vendor_id"] == "0x10de"]
    assert len(nvidia) == gpus
    assert inventory["system_vendor"]["serial_number"] == node.machine.serial
    assert [nic["mac_address"] for nic in inventory["interfaces"]] == node.machine.nic_macs


def test_an_empty_gpu_slot_is_shown_as_absent(site: Site) -> None:
    machine = load_fleet().machine(ONE_GPU_SHORT)
    members = site.redfish(machine, "/Processors")["Members"]
    processors = [site.redfish(machine, "/Processors/" + member["@odata.id"].split("/")[-1]) for member in members]
    states = [p["Status"]["State"] for p in processors if p["ProcessorType"] == "GPU"]
    assert sorted(states) == ["Absent"] + ["Enabled"] * 7


def test_the_next_tenant_finds_an_empty_disk_and_the_former_ones_key_is_worthless(
    site: Site, available: Callable[[str], Node]
) -> None:
    node = available(FULL)
    first, second = new_key(), new_key()
    node.deploy(first, hostname="tenant-a-1")
    node.ends_in("active")

    fingerprints: list[str] = []

    async def live_as_first() -> None:
        async with await node.login(first) as host:
            said = await host.run("hostname; pwd; echo secret > secret.txt", check=True)
            assert str(said.stdout).splitlines() == ["tenant-a-1", str(site.folder(node.machine) / "disk/home/ubuntu")]
            fingerprints.append(fingerprint(host))

    asyncio.run(live_as_first())

    node.order("deleted")
    node.ends_in("available")
    assert site.redfish(node.machine)["PowerState"] == "Off"
    assert node.state().power_state == "power off"
    await_that(lambda: not node.listens(), 5, lambda: "the host is down")
    left_behind = site.folder(node.machine) / "disk/home/ubuntu/secret.txt"
    assert left_behind.read_text() == "secret\n"

    node.order("manage")
    node.ends_in("manageable")
    evidence = node.clean().driver_internal_info["last_erase"]
    assert evidence["verified_empty"] is True
    assert evidence["files_removed"] >= 1
    assert not left_behind.exists()

    node.order("provide")
    node.ends_in("available")
    node.deploy(second, hostname="tenant-b-1")
    node.ends_in("active")

    async def live_as_second() -> None:
        async with await node.login(second) as host:
            found = await host.run("find ~ -name '*.txt'; hostname", check=True)
            assert str(found.stdout).split() == ["tenant-b-1"]
            fingerprints.append(fingerprint(host))
        with pytest.raises(asyncssh.PermissionDenied):
            await node.login(first)

    asyncio.run(live_as_second())
    assert len(set(fingerprints)) == 2


def test_a_machine_is_claimed_once(available: Callable[[str], Node]) -> None:
    node = available(FULL)
    mine = [{"op": "add", "path": "/instance_uuid", "value": str(uuid.uuid4())}]
    node.site.client.patch_node(node.id, mine, retry_on_conflict=False)
    other = [{"op": "add", "path": "/instance_uuid", "value": str(uuid.uuid4())}]
    with pytest.raises(openstack.exceptions.ConflictException, match="is associated with instance"):
        node.site.client.patch_node(node.id, other, retry_on_conflict=False)
    node.site.client.patch_node(node.id, [{"op": "remove", "path": "/instance_uuid"}])
    node.order("manage")
    node.ends_in("manageable")


def test_a_deploy_that_is_told_to_fail_fails_and_the_machine_can_be_used_again(
    site: Site, available: Callable[[str], Node]
) -> None:
    node = available("fra1-r1-gpu-02")
    inject_fault(site.var, node.machine.name, {"fail": {"write_image": "disk I/O error"}})
    node.deploy(new_key())
    failed = node.ends_in("deploy failed")
    assert "disk I/O error" in failed.last_error
    assert not node.listens()
    clear_fault(site.var, node.machine.name)
    node.undeploy_and_clean()
    node.order("provide")
    node.ends_in("available")
    node.deploy(new_key())
    node.ends_in("active")


def test_an_erasure_that_fails_leaves_the_data_and_says_so(site: Site, enrol: Callable[[str], Node]) -> None:
    node = enrol("fra1-r1-gpu-03")
    data = site.folder(node.machine) / "disk" / "tenant.txt"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("secret")
    inject_fault(site.var, node.machine.name, {"fail": {"erase_devices": "nvme3: I/O error"}})
    node.order("clean", clean_steps=ERASE_AND_RESET)
    failed = node.ends_in("clean failed")
    assert "nvme3: I/O error" in failed.last_error
    assert failed.is_maintenance
    assert data.exists()
    clear_fault(site.var, node.machine.name)
    node.order("manage")
    node.ends_in("manageable")
    site.client.unset_node_maintenance(node.id)
    node.clean()
    assert not data.exists()


def test_ansible_reaches_a_deployed_machine(tmp_path: Path, available: Callable[[str], Node]) -> None:
    node, key = available("fra1-r1-cpu-01"), new_key()
    node.deploy(key)
    node.ends_in("active")
    await_that(node.listens, 10, lambda: "the host is up")
    key.write_private_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o600)
    address = node.site.hosts.addresses()[node.machine.name]
    inventory = {
        "all": {
            "hosts": {
                "node-1": {
                    "ansible_host": address.host,
                    "ansible_port": address.port,
                    "ansible_user": "ubuntu",
                    "ansible_ssh_private_key_file": str(tmp_path / "key"),
                    "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
                    "ansible_python_interpreter": "auto_silent",
                }
            }
        }
    }
    (tmp_path / "inventory.json").write_text(json.dumps(inventory))
    tasks = [
        {"ansible.builtin.ping": {}},
        {"ansible.builtin.copy": {"content": "by ansible\n", "dest": "motd.txt"}},
        {"ansible.builtin.command": "hostname", "register": "said", "changed_when": False},
        {"ansible.builtin.assert": {"that": ["said.stdout == 'node-1'"]}},
    ]
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    if shutil.which("ssh") is None:
        pytest.skip("no OpenSSH client on PATH, which Ansible needs: install openssh-client")
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [str(playbook), "-i", str(tmp_path / "inventory.json"), str(tmp_path / "play.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path / "ansible"), "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (node.site.folder(node.machine) / "disk/home/ubuntu/motd.txt").read_text() == "by ansible\n"


def test_the_gpu_tool_reports_what_is_installed_and_what_is_broken(
    site: Site, available: Callable[[str], Node]
) -> None:
    node, key = available(FULL), new_key()
    node.deploy(key)
    node.ends_in("active")
    query = "nvidia-smi --query-gpu=index,name,ecc.errors.uncorrected.volatile.total --format=csv,noheader"

    async def rows() -> list[list[str]]:
        async with await node.login(key) as host:
            said = await host.run(query, check=True)
        return [line.split(", ") for line in str(said.stdout).splitlines()]

    healthy = asyncio.run(rows())
    assert healthy == [[str(index), "NVIDIA H100 80GB HBM3", "0"] for index in range(8)]
    inject_fault(site.var, node.machine.name, {"gpu": {"missing": [3], "ecc_uncorrected": {"5": 12}}})
    broken = asyncio.run(rows())
    assert [row[2] for row in broken] == ["0", "0", "0", "0", "12", "0", "0"]


def test_a_loss_of_power_ends_connections_and_every_process_and_keeps_the_disk(
    site: Site, available: Callable[[str], Node]
) -> None:
    node, key = available(FULL), new_key()
    node.deploy(key)
    node.ends_in("active")

    async def cut_power_while_signed_in() -> int:
        async with await node.login(key) as host:
            started = await host.run("echo kept > kept.txt; setsid sleep 600 >/dev/null 2>&1 & echo $!", check=True)
            await asyncio.to_thread(site.client.set_node_power_state, node.id, "power off")
            await asyncio.wait_for(host.wait_closed(), 20)
        return int(str(started.stdout))

    pid = asyncio.run(cut_power_while_signed_in())
    await_that(lambda: not _alive(pid), 5, lambda: f"process {pid} is gone")
    assert not node.listens()
    site.client.set_node_power_state(node.id, "power on")

    async def read_back() -> str:
        async with await node.login(key) as host:
            said = await host.run("cat kept.txt", check=True)
        return str(said.stdout)

    assert asyncio.run(read_back()) == "kept\n"


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def test_a_power_order_that_is_stuck_leaves_the_power_as_it_is(site: Site, enrol: Callable[[str], Node]) -> None:
    node = enrol("fra1-r2-gpu-01")
    inject_fault(site.var, node.machine.name, {"bmc": {"power_stuck": True}})
    known = site.bmc.credentials[node.machine.name]
    ordered = httpx.post(
        site.endpoint(node.machine) + "/Actions/ComputerSystem.Reset",
        auth=(known["username"], known["password"]),
        json={"ResetType": "On"},
    )
    assert ordered.status_code == 204
    with pytest.raises(AssertionError):
        await_that(lambda: site.redfish(node.machine)["PowerState"] == "On", 1, lambda: "on")
    clear_fault(site.var, node.machine.name)


def test_power_and_hosts_outlive_a_kill_of_the_bmcs_and_of_the_hosts(
    site: Site, available: Callable[[str], Node]
) -> None:
    node, key = available(FULL), new_key()
    node.deploy(key)
    node.ends_in("active")
    asyncio.run(_sign_in_and_out(node, key))
    password = site.bmc.credentials[node.machine.name]
    for lab in (site.bmc, site.hosts):
        for process in lab.processes():
            process.kill()
        lab.start()
    assert site.bmc.credentials[node.machine.name] == password
    assert site.redfish(node.machine)["PowerState"] == "On"
    asyncio.run(_sign_in_and_out(node, key))


async def _sign_in_and_out(node: Node, key: asyncssh.SSHKey) -> None:
    async with await node.login(key) as host:
        await host.run("true", check=True)


def test_a_deploy_cut_off_by_a_kill_of_ironic_fails_and_can_be_repeated(
    site: Site, available: Callable[[str], Node]
) -> None:
    node = available("fra1-r1-gpu-02")
    inject_fault(site.var, node.machine.name, {"delay": {"write_image": 600}})
    node.deploy(new_key())
    await_that(lambda: node.state().provision_state == "deploying", 10, lambda: "deploying")
    for process in site.ironic.processes():
        process.kill()
    clear_fault(site.var, node.machine.name)
    site.ironic.start()
    node.ends_in("deploy failed")
    assert not node.listens()
    node.undeploy_and_clean()
