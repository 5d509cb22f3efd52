"""What only a real NetBox can show: pages, missing fields, ports of their own, tokens."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deploy.lab.fleet import load_fleet
from deploy.lab.netbox import NetBoxLab
from services.inventory.adapters import netbox_rest
from services.inventory.adapters.netbox import RestNetBox
from services.inventory.adapters.source import SourceMisconfigured, SourceUnavailable
from tests.contract.inventory.conftest import REAL, ROLES, NetBoxWorld
from tests.contract.inventory.test_source_contract import changed_since, quiet_walk

pytestmark = REAL
NAME = "fra1-r1-gpu-01"


async def test_every_page_is_followed(netbox_lab: NetBoxLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netbox_rest, "PAGE", 5)
    walk = await NetBoxWorld(netbox_lab).source.read(None)
    assert len(walk.devices) == len(load_fleet().machines) and len({device.key for device in walk.devices}) == 13


async def test_fields_of_ours_that_are_missing_are_made(netbox_lab: NetBoxLab) -> None:
    world = NetBoxWorld(netbox_lab)
    world.api.extras.custom_fields.get(name="slipway_health").delete()
    await world.source.read(None)
    made = world.api.extras.custom_fields.get(name="slipway_health")
    assert made is not None and made.type.value == "text"
    assert "slipway_health" in world.fields(NAME)


async def test_a_port_that_changed_brings_its_device(netbox_lab: NetBoxLab) -> None:
    world = NetBoxWorld(netbox_lab)
    walk = await world.source.read(None)
    port = next(iter(world.api.dcim.interfaces.filter(device=NAME, mgmt_only=True)))
    port.update({"description": "moved to another switch"})
    assert walk.newest is not None
    later = await world.source.read(walk.newest + timedelta(microseconds=1))
    assert [device.name for device in later.devices] == [NAME]


async def test_a_bmc_address_is_found_at_its_port(netbox_lab: NetBoxLab) -> None:
    world = NetBoxWorld(netbox_lab)
    device = world.api.dcim.devices.get(name=NAME)
    address = device.oob_ip.id
    device.update({"oob_ip": None})
    try:
        walk = await world.source.read(None)
        found = next(d for d in walk.devices if d.name == NAME)
        assert found.bmc_address == str(load_fleet().machine(NAME).bmc_ip)
    finally:
        device.update({"oob_ip": address})


async def test_a_refused_token_says_so(netbox_lab: NetBoxLab) -> None:
    source = RestNetBox(netbox_lab.url, lambda: "nbt_wrong.wrong", ROLES)
    with pytest.raises(SourceMisconfigured, match="token"):
        await source.read(None)


async def test_a_netbox_that_is_not_there_is_unavailable() -> None:
    source = RestNetBox("http://127.0.0.1:9", lambda: "x", ROLES, timeout_seconds=1)
    with pytest.raises(SourceUnavailable, match="reached"):
        await source.read(None)


async def test_what_makes_up_a_device_brings_the_device(netbox_lab: NetBoxLab) -> None:
    world = NetBoxWorld(netbox_lab)
    port = next(iter(world.api.dcim.interfaces.filter(device=NAME, mgmt_only=True)))
    device = world.api.dcim.devices.get(name=NAME)
    for touched in (
        world.api.ipam.ip_addresses.get(device.oob_ip.id),
        world.api.dcim.mac_addresses.get(port.primary_mac_address.id),
        world.api.dcim.racks.get(device.rack.id),
    ):
        walk = await quiet_walk(world)
        touched.update({"comments": f"looked at {touched.id}"})
        assert NAME in await changed_since(world, walk), touched.url


async def test_a_member_of_a_virtual_chassis_has_its_own_ports_and_no_others(netbox_lab: NetBoxLab) -> None:
    world = NetBoxWorld(netbox_lab)
    master, member = world.device_id(NAME), world.device_id("fra1-r1-gpu-02")
    before = {d.name: d for d in (await world.source.read(None)).devices}
    chassis = world.api.dcim.virtual_chassis.create(name="two nodes")
    world.api.dcim.devices.update(
        [
            {"id": master, "virtual_chassis": chassis.id, "vc_position": 1},
            {"id": member, "virtual_chassis": chassis.id, "vc_position": 2},
        ]
    )
    chassis.update({"master": master})
    try:
        whole = {d.name: d for d in (await world.source.read(None)).devices}
        looked = {d.netbox_id: d for d in (await world.source.look_at([master])).devices}
        assert looked[master].nic_macs == before[NAME].nic_macs
        assert [whole[name].nic_macs for name in sorted(whole)] == [before[name].nic_macs for name in sorted(before)]
        assert [whole[name].bmc_mac for name in sorted(whole)] == [before[name].bmc_mac for name in sorted(before)]
    finally:
        chassis.update({"master": None})
        for number in (master, member):
            world.api.dcim.devices.get(number).update({"virtual_chassis": None, "vc_position": None})
        chassis.delete()


async def test_a_node_in_a_bay_is_where_its_chassis_is(netbox_lab: NetBoxLab) -> None:
    world = NetBoxWorld(netbox_lab)
    api, model = world.api, world.api.dcim.devices.get(name=NAME)
    maker = model.device_type.manufacturer.id
    outer, inner = (
        api.dcim.device_types.create(
            manufacturer=maker, model=f"bay-{role}", slug=f"bay-{role}", u_height=u, subdevice_role=role
        )
        for role, u in (("parent", 2), ("child", 0))
    )
    role = next(iter(api.dcim.device_roles.filter(slug="gpu-node")))
    other = api.dcim.device_roles.create(name="Chassis", slug="chassis", color="9e9e9e")
    place = {"site": model.site.id, "rack": model.rack.id, "face": "front", "position": 46}
    parent = api.dcim.devices.create(name="chassis-1", device_type=outer.id, role=other.id, status="active", **place)
    child = api.dcim.devices.create(
        name="fra1-r1-node-1", device_type=inner.id, role=role.id, site=model.site.id, status="staged"
    )
    bay = api.dcim.device_bays.create(device=parent.id, name="bay 1", installed_device=child.id)
    try:
        found = {d.name: d for d in (await world.source.read(None)).devices}
        assert "chassis-1" not in found
        node = found["fra1-r1-node-1"]
        assert (node.rack, node.position, node.rack_id) == ("r1", 46.0, found[NAME].rack_id)
    finally:
        for made in (bay, child, parent, inner, outer, other):
            made.delete()
