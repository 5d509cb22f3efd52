"""The lab's fleet as typed values: one site, its racks, device types and machines, read from `fleet.yaml`.

NetBox's seed, the emulated BMCs and the simulated site all read this one file, so that they describe
the same machines. A file that contradicts itself (two machines in one place, an unknown type, a
serial used twice) is refused as a whole. What is *expected* of a machine is in its device type; what
is *really in it* is in the machine: the difference is what enrolment has to find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

FLEET_FILE = Path(__file__).with_name("fleet.yaml")

Mac = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Role = Literal["gpu-node", "cpu-node"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Site(_Frozen):
    """The place: `slug` names it in machines' names and in NetBox."""

    slug: Slug
    name: Text
    time_zone: Text


class Rack(_Frozen):
    """One rack; its BMCs have addresses in `bmc_prefix`."""

    name: Slug
    u_height: Annotated[int, Field(gt=0)]
    bmc_prefix: IPv4Network


class DeviceType(_Frozen):
    """A model of machine and what each one must contain. Totals are per machine; drives are all of one size."""

    slug: Slug
    manufacturer: Text
    model: Text
    role: Role
    u_height: Annotated[int, Field(gt=0)]
    gpu_model: str | None
    gpu_count: Annotated[int, Field(ge=0)]
    gpu_memory_gib: Annotated[int, Field(ge=0)]
    cpu_model: Text
    cpu_sockets: Annotated[int, Field(gt=0)]
    cpu_cores: Annotated[int, Field(gt=0)]
    cpu_threads: Annotated[int, Field(gt=0)]
    memory_gib: Annotated[int, Field(gt=0)]
    drive_count: Annotated[int, Field(gt=0)]
    drive_size_gb: Annotated[int, Field(gt=0)]


class Machine(_Frozen):
    """One machine: where it is, who made it, how it is reached, and how many GPUs are really in it.

    `position` is the lowest rack unit it fills. `ssh_port_offset` is added to the lab's base port for
    the machine's SSH server, so each machine has a port of its own on loopback.
    """

    name: Slug
    rack: Slug
    position: Annotated[int, Field(gt=0)]
    device_type: Slug
    role: Role
    serial: Text
    asset_tag: Text
    bmc_mac: Mac
    bmc_ip: IPv4Address
    bmc_system_uuid: UUID
    nic_macs: Annotated[list[Mac], Field(min_length=2, max_length=2)]
    gpus_installed: Annotated[int, Field(ge=0)]
    ssh_port_offset: Annotated[int, Field(ge=0)]


class Fleet(_Frozen):
    """The whole of `fleet.yaml`, checked."""

    site: Site
    racks: list[Rack]
    device_types: list[DeviceType]
    machines: list[Machine]

    def rack(self, name: str) -> Rack:
        """The rack called `name`; KeyError when there is none."""
        return {rack.name: rack for rack in self.racks}[name]

    def device_type(self, slug: str) -> DeviceType:
        """The device type `slug`; KeyError when there is none."""
        return {kind.slug: kind for kind in self.device_types}[slug]

    def machine(self, name: str) -> Machine:
        """The machine called `name`; KeyError when there is none."""
        return {machine.name: machine for machine in self.machines}[name]

    @model_validator(mode="after")
    def _consistent(self) -> Fleet:
        machines = self.machines
        _unique("rack", (rack.name for rack in self.racks))
        _unique("device type", (kind.slug for kind in self.device_types))
        _unique("machine name", (m.name for m in machines))
        _unique("serial", (m.serial for m in machines))
        _unique("asset tag", (m.asset_tag for m in machines))
        _unique("BMC address", (str(m.bmc_ip) for m in machines))
        _unique("system UUID", (str(m.bmc_system_uuid) for m in machines))
        _unique("SSH port offset", (str(m.ssh_port_offset) for m in machines))
        _unique("MAC", (mac for m in machines for mac in (m.bmc_mac, *m.nic_macs)))
        for machine in machines:
            self._check_machine(machine)
        _unique("rack unit", (f"{m.rack} U{unit}" for m in machines for unit in self._units(m)))
        return self

    def _check_machine(self, machine: Machine) -> None:
        racks = {rack.name: rack for rack in self.racks}
        kinds = {kind.slug: kind for kind in self.device_types}
        if machine.rack not in racks:
            raise ValueError(f"{machine.name}: rack {machine.rack!r} is not in the file")
        if machine.device_type not in kinds:
            raise ValueError(f"{machine.name}: device type {machine.device_type!r} is not in the file")
        rack, kind = racks[machine.rack], kinds[machine.device_type]
        if machine.role != kind.role:
            raise ValueError(f"{machine.name}: role {machine.role}, but a {kind.slug} is a {kind.role}")
        if machine.bmc_ip not in rack.bmc_prefix:
            raise ValueError(f"{machine.name}: BMC address {machine.bmc_ip} is outside {rack.bmc_prefix}")
        if max(self._units(machine)) > rack.u_height:
            raise ValueError(f"{machine.name}: does not fit below the top of rack {rack.name}")
        if machine.gpus_installed > kind.gpu_count:
            raise ValueError(f"{machine.name}: {machine.gpus_installed} GPUs, a {kind.slug} takes {kind.gpu_count}")

    def _units(self, machine: Machine) -> range:
        return range(machine.position, machine.position + self.device_type(machine.device_type).u_height)


def _unique(what: str, values: Iterable[str]) -> None:
    twice = sorted(value for value, count in Counter(values).items() if count > 1)
    if twice:
        raise ValueError(f"{what} used more than once: {', '.join(twice)}")


def load_fleet(path: Path | None = None) -> Fleet:
    """The fleet in `path` (default: the lab's own file).

    Raises OSError when it cannot be read and pydantic.ValidationError naming each wrong field.
    """
    return Fleet.model_validate(yaml.safe_load((path or FLEET_FILE).read_text(encoding="utf-8")))
