"""What inventory relies on of its source, held by the twin and by a real NetBox alike."""

from __future__ import annotations

import asyncio

import pytest

from deploy.lab.fleet import load_fleet
from services.inventory.adapters.source import SourceMisconfigured, Walk, Write
from tests.contract.inventory.conftest import World

FLEET = load_fleet()
NAME, OTHER = "fra1-r1-gpu-01", "fra1-r2-gpu-01"
OWN = {
    "slipway_machine_id": "5a2f6ad2-6c0e-5f0a-9d0c-0c8e5b1f7a10",
    "slipway_state": "AVAILABLE",
    "slipway_health": "HEALTHY",
    "slipway_validated_at": "2026-03-01T12:00:00Z",
}


async def changed_since(world: World, walk: Walk) -> set[str]:
    assert walk.newest is not None
    later = await world.source.read(walk.newest)
    assert not later.full
    return {device.name for device in later.devices}


async def quiet_walk(world: World) -> Walk:
    """A walk after which a poll gives nothing: the last change is older than the clock's granularity."""
    async with asyncio.timeout(30):
        while True:
            walk = await world.source.read(None)
            world.pass_time()
            if await changed_since(world, walk) == set():
                return walk
            await asyncio.sleep(0.2)


async def test_a_full_walk_gives_the_whole_fleet(world: World) -> None:
    walk = await world.source.read(None)
    assert walk.full and walk.problems == ()
    assert [site.slug for site in walk.sites] == [FLEET.site.slug]
    assert {rack.name for rack in walk.racks} == {rack.name for rack in FLEET.racks}
    assert {kind.slug for kind in walk.device_types} == {kind.slug for kind in FLEET.device_types}
    devices = {device.name: device for device in walk.devices}
    assert set(devices) == {machine.name for machine in FLEET.machines}
    for machine in FLEET.machines:
        device = devices[machine.name]
        assert (device.rack, device.position, device.role) == (machine.rack, machine.position, machine.role)
        assert (device.device_type, device.serial, device.asset_tag) == (
            machine.device_type,
            machine.serial,
            machine.asset_tag,
        )
        assert (device.bmc_address, device.bmc_mac) == (str(machine.bmc_ip), machine.bmc_mac)
        assert set(device.nic_macs) == set(machine.nic_macs)


async def test_a_poll_gives_only_what_changed(world: World) -> None:
    walk = await quiet_walk(world)
    world.change(NAME, asset_tag="SLW-99999")
    assert await changed_since(world, walk) == {NAME}
    world.change(NAME, asset_tag=FLEET.machine(NAME).asset_tag)


async def test_a_look_gives_the_devices_that_were_asked_for_and_names_what_is_not_there(world: World) -> None:
    number = world.device_id(NAME)
    walk = await world.source.look_at([number, 999_999, number])
    assert not walk.full and walk.absent == (999_999,)
    (device,) = walk.devices
    machine = FLEET.machine(NAME)
    assert (device.name, device.serial, device.bmc_mac) == (NAME, machine.serial, machine.bmc_mac)
    assert set(device.nic_macs) == set(machine.nic_macs) and device.rack == machine.rack
    assert [site.slug for site in walk.sites] == [FLEET.site.slug]


async def test_writes_reach_our_fields_and_come_back_as_ours(world: World) -> None:
    number = world.device_id(NAME)
    assert await world.source.write([Write(number, dict(OWN), status="active")]) == [""]
    walk = await world.source.read(None)
    device = next(device for device in walk.devices if device.netbox_id == number)
    assert device.status == "active" and device.machine_id == OWN["slipway_machine_id"]
    assert device.owned is not None and device.owned["slipway_state"] == "AVAILABLE"
    assert str(device.owned["slipway_validated_at"]).startswith("2026-03-01T12:00:00")
    assert await world.source.write([Write(number, {**OWN, "slipway_validated_at": None})]) == [""]
    assert world.fields(NAME)["slipway_validated_at"] is None and world.status(NAME) == "active"
    world.change(NAME, status="staged")


async def test_a_refused_write_is_told_and_does_not_stop_the_others(world: World) -> None:
    number = world.device_id(OTHER)
    results = await world.source.write([Write(999_999, dict(OWN)), Write(number, {"slipway_state": "FAILED(enrol)"})])
    assert "NetBox answered 4" in results[0] and results[1] == ""
    assert world.fields(OTHER)["slipway_state"] == "FAILED(enrol)"


async def test_a_role_that_was_renamed_is_an_error_and_not_an_empty_fleet(world: World) -> None:
    world.rename_role("cpu-node", "cpu-server")
    try:
        with pytest.raises(SourceMisconfigured, match="cpu-node"):
            await world.source.read(None)
        with pytest.raises(SourceMisconfigured, match="cpu-node"):
            await world.source.look_at([999_999])
    finally:
        world.rename_role("cpu-server", "cpu-node")
    assert len((await world.source.read(None)).devices) == len(FLEET.machines)
