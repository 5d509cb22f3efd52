"""One source, two ways: a twin in memory and a real NetBox, both holding the lab's fleet."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Protocol

import pynetbox
import pytest

from deploy.lab.fleet import load_fleet
from deploy.lab.interpreters import VAR, find_python
from deploy.lab.netbox import NetBoxLab, NetBoxPorts
from deploy.lab.netbox.instance import MINIMUM_PYTHON
from libs.runtime.processes import StartError
from services.inventory.adapters.netbox import RestNetBox
from services.inventory.adapters.netbox_twin import NetBoxTwin
from services.inventory.adapters.source import HintedSource

ROLES = ("gpu-node", "cpu-node")


class World(Protocol):
    """A source that holds the fleet, and what people do to it."""

    source: HintedSource

    def device_id(self, name: str) -> int: ...
    def change(self, name: str, **changes: Any) -> None: ...
    def fields(self, name: str) -> dict[str, Any]: ...
    def status(self, name: str) -> str: ...
    def rename_role(self, slug: str, to: str) -> None: ...
    def pass_time(self) -> None: ...


class TwinWorld:
    def __init__(self) -> None:
        self.twin = NetBoxTwin(ROLES)
        self.source: HintedSource = self.twin
        fleet = load_fleet()
        twin = self.twin
        twin.sites = [{"id": 1, "name": fleet.site.name, "slug": fleet.site.slug}]
        twin.racks = [{"id": n, "name": r.name, "site": twin.sites[0]} for n, r in enumerate(fleet.racks, 1)]
        twin.types = [
            {"id": n, "slug": k.slug, "model": k.model, "manufacturer": {"name": k.manufacturer}}
            for n, k in enumerate(fleet.device_types, 1)
        ]
        racks = {rack["name"]: rack for rack in twin.racks}
        for number, machine in enumerate(fleet.machines, 1):
            twin.add(
                number,
                name=machine.name,
                rack=racks[machine.rack],
                position=float(machine.position),
                device_type={"slug": machine.device_type},
                role={"slug": machine.role},
                serial=machine.serial,
                asset_tag=machine.asset_tag,
                oob_ip={"address": f"{machine.bmc_ip}/24"},
            )
            bmc, nic = twin.interfaces[-2:]
            bmc["mac_address"], nic["mac_address"] = machine.bmc_mac.upper(), machine.nic_macs[0].upper()
            twin.interfaces.append({**nic, "id": number * 10 + 2, "name": "eno2", "mac_address": machine.nic_macs[1]})

    def device_id(self, name: str) -> int:
        return next(number for number, device in self.twin.devices.items() if device["name"] == name)

    def change(self, name: str, **changes: Any) -> None:
        if "status" in changes:
            changes["status"] = {"value": changes["status"]}
        self.twin.change(self.device_id(name), **changes)

    def fields(self, name: str) -> dict[str, Any]:
        fields: dict[str, Any] = self.twin.devices[self.device_id(name)]["custom_fields"]
        return fields

    def status(self, name: str) -> str:
        return str(self.twin.devices[self.device_id(name)]["status"]["value"])

    def rename_role(self, slug: str, to: str) -> None:
        self.twin.role_slugs = {to if role == slug else role for role in self.twin.role_slugs}

    def pass_time(self) -> None:
        self.twin.pass_time()


class NetBoxWorld:
    def __init__(self, lab: NetBoxLab) -> None:
        self.lab = lab
        self.source: HintedSource = RestNetBox(lab.url, lambda: lab.token, ROLES, timeout_seconds=60)
        self.api = pynetbox.api(lab.url, token=lab.token)

    def device_id(self, name: str) -> int:
        number: int = self.api.dcim.devices.get(name=name).id
        return number

    def change(self, name: str, **changes: Any) -> None:
        self.api.dcim.devices.get(name=name).update(changes)

    def fields(self, name: str) -> dict[str, Any]:
        fields: dict[str, Any] = self.api.dcim.devices.get(name=name).custom_fields
        return fields

    def status(self, name: str) -> str:
        return str(self.api.dcim.devices.get(name=name).status.value)

    def rename_role(self, slug: str, to: str) -> None:
        self.api.dcim.device_roles.get(slug=slug).update({"slug": to})

    def pass_time(self) -> None:
        """It passes by itself."""


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@pytest.fixture(scope="session")
def netbox_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetBoxLab]:
    """A real, seeded NetBox."""
    try:
        find_python(MINIMUM_PYTHON, VAR)
    except StartError as error:
        pytest.skip(str(error))
    http, postgres, redis = free_ports(3)
    ports = NetBoxPorts(http=http, postgres=postgres, redis=redis)
    lab = NetBoxLab(tmp_path_factory.mktemp("netbox") / "var", ports, software=VAR)
    try:
        lab.start()
        lab.seed()
        yield lab
    finally:
        lab.stop()


# The first test waits for NetBox to be installed and started.
REAL = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=["twin", pytest.param("netbox", marks=REAL)])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "twin":
        return TwinWorld()
    return NetBoxWorld(request.getfixturevalue("netbox_lab"))
