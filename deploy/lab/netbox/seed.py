"""Fill NetBox with the lab's fleet through its REST API.

Only adds what is missing: what people changed in NetBox stays as they left it, and a seed that broke off
is completed by the next. Devices come in with status `staged`, which is how people say "install this".
The four custom fields of devices belong to Slipway and start out empty; those of device types say what a
machine must contain and belong to people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pynetbox

from deploy.lab.fleet import Fleet, Machine
from deploy.lab.interpreters import quiet
from libs.runtime.processes import StartError

BMC_INTERFACE = "bmc"
NIC_INTERFACES = ("eno1np0", "eno2np1")
ROLES = {"gpu-node": ("GPU node", "4caf50"), "cpu-node": ("CPU node", "2196f3")}

# NetBox's people see Slipway's own fields but only its API may change them.
SLIPWAY_FIELDS = {
    "slipway_machine_id": ("text", "Machine", "Slipway's id of this machine; never changes"),
    "slipway_state": ("text", "State", "Where the machine is in its life, as Slipway last recorded it"),
    "slipway_health": ("text", "Health", "Slipway's verdict on the machine's health"),
    "slipway_validated_at": ("datetime", "Validated at", "When the machine last passed validation"),
}
EXPECTED_FIELDS = {
    "gpu_model": ("text", "GPU model"),
    "gpu_count": ("integer", "GPUs"),
    "gpu_memory_gib": ("integer", "Memory per GPU (GiB)"),
    "cpu_model": ("text", "CPU model"),
    "cpu_sockets": ("integer", "CPU sockets"),
    "cpu_cores": ("integer", "CPU cores"),
    "cpu_threads": ("integer", "CPU threads"),
    "memory_gib": ("integer", "Memory (GiB)"),
    "drive_count": ("integer", "Drives"),
    "drive_size_gb": ("integer", "Drive size (GB)"),
}

Record = Any  # pynetbox builds its records at run time.


def seed_fleet(url: str, token: str, fleet: Fleet, on_progress: Callable[[str], None] = quiet) -> None:
    """Add what NetBox at `url` lacks of `fleet`. Raises StartError with NetBox's own words when it refuses."""
    netbox = pynetbox.api(url, token=token)
    try:
        _custom_fields(netbox)
        places = _places(netbox, fleet)
        on_progress(f"seeding {len(fleet.machines)} devices in {len(fleet.racks)} racks of {fleet.site.name}")
        devices = _devices(netbox, fleet, places, _device_types(netbox, fleet), _roles(netbox))
        interfaces = _interfaces(netbox, fleet, devices)
        _mac_addresses(netbox, fleet, interfaces)
        _bmc_addresses(netbox, fleet, devices, interfaces)
    except pynetbox.RequestError as error:
        raise StartError(f"NetBox at {url} refused a part of the seed: {error.error}") from error


def _ensure(endpoint: Any, key: str, wanted: Iterable[dict[str, Any]], **scope: Any) -> dict[str, Record]:
    """Every object of `wanted`, by `key`; the missing ones are created in one request."""
    rows = list(wanted)
    keys = {row[key] for row in rows}
    found = {str(getattr(record, key)): record for record in endpoint.filter(**{key: sorted(keys)}, **scope)}
    missing = [row for row in rows if row[key] not in found]
    if missing:
        found |= {str(getattr(record, key)): record for record in endpoint.create(missing)}
    return found


def _custom_fields(netbox: Any) -> None:
    slipway = [
        {
            "name": name,
            "type": kind,
            "label": label,
            "description": description,
            "group_name": "Slipway",
            "object_types": ["dcim.device"],
            "filter_logic": "exact",
            "ui_editable": "no",
        }
        for name, (kind, label, description) in SLIPWAY_FIELDS.items()
    ]
    expected = [
        {"name": name, "type": kind, "label": label, "group_name": "Contents", "object_types": ["dcim.devicetype"]}
        for name, (kind, label) in EXPECTED_FIELDS.items()
    ]
    _ensure(netbox.extras.custom_fields, "name", [*slipway, *expected])


def _places(netbox: Any, fleet: Fleet) -> dict[str, Record]:
    """The racks by name, in the fleet's site, with the prefix their BMCs are in."""
    site = fleet.site
    row = {"name": site.name, "slug": site.slug, "status": "active", "time_zone": site.time_zone}
    site_id = _ensure(netbox.dcim.sites, "slug", [row])[site.slug].id
    racks = [{"name": r.name, "site": site_id, "status": "active", "u_height": r.u_height} for r in fleet.racks]
    prefixes = [
        {
            "prefix": str(rack.bmc_prefix),
            "status": "active",
            "scope_type": "dcim.site",
            "scope_id": site_id,
            "description": f"BMCs of rack {rack.name}",
        }
        for rack in fleet.racks
    ]
    _ensure(netbox.ipam.prefixes, "prefix", prefixes)
    return _ensure(netbox.dcim.racks, "name", racks, site_id=site_id)


def _device_types(netbox: Any, fleet: Fleet) -> dict[str, Record]:
    makers = {kind.manufacturer.lower(): kind.manufacturer for kind in fleet.device_types}
    known = _ensure(netbox.dcim.manufacturers, "slug", [{"name": n, "slug": s} for s, n in makers.items()])
    rows = [
        {
            "manufacturer": known[kind.manufacturer.lower()].id,
            "model": kind.model,
            "slug": kind.slug,
            "u_height": kind.u_height,
            "custom_fields": kind.model_dump(include=set(EXPECTED_FIELDS)),
        }
        for kind in fleet.device_types
    ]
    return _ensure(netbox.dcim.device_types, "slug", rows)


def _roles(netbox: Any) -> dict[str, Record]:
    rows = [{"slug": slug, "name": name, "color": color} for slug, (name, color) in ROLES.items()]
    return _ensure(netbox.dcim.device_roles, "slug", rows)


def _devices(
    netbox: Any, fleet: Fleet, racks: dict[str, Record], kinds: dict[str, Record], roles: dict[str, Record]
) -> dict[str, Record]:
    rows = [
        {
            "name": machine.name,
            "site": racks[machine.rack].site.id,
            "rack": racks[machine.rack].id,
            "position": machine.position,
            "face": "front",
            "device_type": kinds[machine.device_type].id,
            "role": roles[machine.role].id,
            "serial": machine.serial,
            "asset_tag": machine.asset_tag,
            "status": "staged",
        }
        for machine in fleet.machines
    ]
    return _ensure(netbox.dcim.devices, "name", rows)


def _macs(machine: Machine) -> dict[str, str]:
    """The machine's MACs by interface name, written as NetBox writes them."""
    names = (BMC_INTERFACE, *NIC_INTERFACES)
    return {name: mac.upper() for name, mac in zip(names, (machine.bmc_mac, *machine.nic_macs), strict=True)}


def _interfaces(netbox: Any, fleet: Fleet, devices: dict[str, Record]) -> dict[tuple[str, str], Record]:
    """The interfaces by device name and interface name."""
    ids = [device.id for device in devices.values()]
    found = {(i.device.name, i.name): i for i in netbox.dcim.interfaces.filter(device_id=ids)}
    missing = [
        {
            "device": devices[machine.name].id,
            "name": name,
            "type": "1000base-t" if name == BMC_INTERFACE else "25gbase-x-sfp28",
            "mgmt_only": name == BMC_INTERFACE,
        }
        for machine in fleet.machines
        for name in _macs(machine)
        if (machine.name, name) not in found
    ]
    if missing:
        found |= {(i.device.name, i.name): i for i in netbox.dcim.interfaces.create(missing)}
    return found


def _mac_addresses(netbox: Any, fleet: Fleet, interfaces: dict[tuple[str, str], Record]) -> None:
    """Give each interface its MAC, and make it the primary one, which is what `interface.mac_address` shows."""
    rows = [
        {
            "mac_address": mac,
            "assigned_object_type": "dcim.interface",
            "assigned_object_id": interfaces[machine.name, name].id,
        }
        for machine in fleet.machines
        for name, mac in _macs(machine).items()
    ]
    known = _ensure(netbox.dcim.mac_addresses, "mac_address", rows)
    changes = [
        {"id": interfaces[machine.name, name].id, "primary_mac_address": known[mac].id}
        for machine in fleet.machines
        for name, mac in _macs(machine).items()
        if interfaces[machine.name, name].primary_mac_address is None
    ]
    if changes:
        netbox.dcim.interfaces.update(changes)


def _bmc_addresses(
    netbox: Any, fleet: Fleet, devices: dict[str, Record], interfaces: dict[tuple[str, str], Record]
) -> None:
    """Give each BMC its address, and make it the device's out-of-band address."""
    addresses = {m.name: f"{m.bmc_ip}/{fleet.rack(m.rack).bmc_prefix.prefixlen}" for m in fleet.machines}
    rows = [
        {
            "address": address,
            "status": "active",
            "assigned_object_type": "dcim.interface",
            "assigned_object_id": interfaces[name, BMC_INTERFACE].id,
            "description": f"BMC of {name}",
        }
        for name, address in addresses.items()
    ]
    known = _ensure(netbox.ipam.ip_addresses, "address", rows)
    changes = [
        {"id": devices[name].id, "oob_ip": known[address].id}
        for name, address in addresses.items()
        if devices[name].oob_ip is None
    ]
    if changes:
        netbox.dcim.devices.update(changes)
