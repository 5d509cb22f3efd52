"""The lab's NetBox is the real application, seeded with the whole fleet, and survives what happens to it."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynetbox
import pytest

from deploy.lab.fleet import load_fleet
from deploy.lab.interpreters import VAR, find_python
from deploy.lab.netbox import NetBoxLab, NetBoxPorts
from deploy.lab.netbox.instance import MINIMUM_PYTHON
from libs.runtime.processes import StartError

# The first run on a machine installs NetBox, and every part of the lab may be starting at the same time.
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that nothing listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetBoxLab]:
    """A seeded NetBox with a database of its own; the programs are shared with the repository's own lab."""
    try:
        find_python(MINIMUM_PYTHON, VAR)
    except StartError as error:
        pytest.skip(str(error))
    http, postgres, redis = free_ports(3)
    ports = NetBoxPorts(http=http, postgres=postgres, redis=redis)
    netbox = NetBoxLab(tmp_path_factory.mktemp("netbox") / "var", ports, software=VAR)
    try:
        netbox.start()
        netbox.seed()
        yield netbox
    finally:
        netbox.stop()


def api(lab: NetBoxLab) -> Any:
    return pynetbox.api(lab.url, token=lab.token)


def test_the_fleet_is_read_back_as_it_was_described(lab: NetBoxLab) -> None:
    fleet = load_fleet()
    devices = {device.name: device for device in api(lab).dcim.devices.all()}
    assert sorted(devices) == sorted(machine.name for machine in fleet.machines)
    for machine in fleet.machines:
        device = devices[machine.name]
        assert device.serial == machine.serial
        assert device.asset_tag == machine.asset_tag
        assert device.rack.name == machine.rack
        assert device.position == machine.position
        assert device.device_type.slug == machine.device_type
        assert device.role.slug == machine.role
        assert device.status.value == "staged"
        assert device.oob_ip.address.split("/")[0] == str(machine.bmc_ip)


def test_every_machine_has_a_bmc_and_two_network_ports_with_their_macs(lab: NetBoxLab) -> None:
    interfaces = list(api(lab).dcim.interfaces.all())
    for machine in load_fleet().machines:
        own = [interface for interface in interfaces if interface.device.name == machine.name]
        assert [i.mac_address.lower() for i in own if i.mgmt_only] == [machine.bmc_mac]
        assert [i.mac_address.lower() for i in own if not i.mgmt_only] == machine.nic_macs


def test_slipways_fields_exist_and_are_empty(lab: NetBoxLab) -> None:
    for device in api(lab).dcim.devices.all():
        assert device.custom_fields == {
            "slipway_state": None,
            "slipway_health": None,
            "slipway_validated_at": None,
            "slipway_machine_id": None,
        }


def test_a_device_type_says_what_its_machines_must_contain(lab: NetBoxLab) -> None:
    kind = api(lab).dcim.device_types.get(slug="nvidia-dgx-h100")
    assert kind.custom_fields["gpu_model"] == "NVIDIA H100 80GB HBM3"
    assert kind.custom_fields["gpu_count"] == 8
    assert kind.custom_fields["memory_gib"] == 2048


def test_a_second_seed_changes_nothing_and_leaves_peoples_changes_alone(lab: NetBoxLab) -> None:
    netbox = api(lab)
    device = netbox.dcim.devices.get(name="fra1-r2-cpu-01")
    device.update({"status": "active", "comments": "checked by hand"})
    counts = (netbox.dcim.interfaces.count(), netbox.ipam.ip_addresses.count(), netbox.dcim.mac_addresses.count())
    lab.seed()
    again = netbox.dcim.devices.get(name="fra1-r2-cpu-01")
    assert (again.status.value, again.comments) == ("active", "checked by hand")
    assert netbox.dcim.devices.count() == len(load_fleet().machines)
    assert counts == (
        netbox.dcim.interfaces.count(),
        netbox.ipam.ip_addresses.count(),
        netbox.dcim.mac_addresses.count(),
    )
    again.update({"status": "staged", "comments": ""})


def test_killing_every_process_loses_nothing(lab: NetBoxLab) -> None:
    token = lab.token
    device = api(lab).dcim.devices.get(name="fra1-r1-gpu-01")
    device.update({"comments": "written just before the crash"})
    for process in lab.processes():
        process.kill()
    lab.start()
    assert lab.token == token
    assert api(lab).dcim.devices.get(name="fra1-r1-gpu-01").comments == "written just before the crash"


def test_starting_twice_keeps_the_running_processes(lab: NetBoxLab) -> None:
    before = [process.pid() for process in lab.processes()]
    lab.start()
    assert [process.pid() for process in lab.processes()] == before


def test_the_token_and_the_configuration_are_for_their_owner_only(lab: NetBoxLab) -> None:
    home: Path = lab.instance.home
    for private in (home / "token", home / "secrets.json", home / "root" / "conf" / "configuration.py"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_a_neighbour_can_have_a_database_of_its_own_on_the_same_server(lab: NetBoxLab) -> None:
    lab.postgres.create_database("ironic")
    lab.postgres.create_database("ironic")
    assert lab.postgres.query("ironic", "SELECT current_database()") == "ironic"


def test_a_taken_port_is_named_and_nothing_is_left_running(lab: NetBoxLab, tmp_path: Path) -> None:
    postgres, redis = free_ports(2)
    taken = NetBoxPorts(http=lab.ports.http, postgres=postgres, redis=redis)
    second = NetBoxLab(tmp_path / "var", taken, software=VAR)
    with pytest.raises(StartError, match=f"port {lab.ports.http} .* in use"):
        second.start()
    assert [process.pid() for process in second.processes()] == [None, None, None]


def test_stopping_what_was_never_started_is_harmless(tmp_path: Path) -> None:
    http, postgres, redis = free_ports(3)
    NetBoxLab(tmp_path / "var", NetBoxPorts(http=http, postgres=postgres, redis=redis), software=VAR).stop()
