"""What only a real NetBox can show: pages, missing fields, ports of their own, tokens."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deploy.lab.fleet import load_fleet
from deploy.lab.netbox import NetBoxLab
from services.inventory.adapters import netbox
from services.inventory.adapters.netbox import RestNetBox
from services.inventory.adapters.source import SourceMisconfigured, SourceUnavailable
from tests.contract.inventory.conftest import REAL, ROLES, NetBoxWorld

pytestmark = REAL
NAME = "fra1-r1-gpu-01"


async def test_every_page_is_followed(netbox_lab: NetBoxLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netbox, "PAGE", 5)
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
