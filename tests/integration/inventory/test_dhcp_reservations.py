"""DHCP reservations follow inventory's facts: asked once, kept with what the site refused, again after a failure."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.dhcp import DhcpObserved
from libs.contracts.envelope import now_utc
from libs.contracts.inventory import MachineState
from libs.contracts.replies import failed
from services.inventory import dhcp, dhcp_store
from services.inventory.model.machine import Machine
from services.inventory.model.reservations import digest, wanted_reservations
from tests.integration.inventory.conftest import Inventory
from tests.unit.services.inventory.machines import machine

NAME = "fra1-r1-gpu-01"
ONE, TWO = "94:6d:ae:00:00:01", "94:6d:ae:00:00:02"


def wanted(**changes: Any) -> list[tuple[str, str, str]]:
    one: Machine = machine(**{"bmc_mac": "", "nic_macs": (), **changes})
    return [(w.hw_address, w.ip_address, w.hostname) for w in wanted_reservations(one)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"bmc_mac": "48B0.2DF1.EFC0", "bmc_address": "10.20.1.11"},
            [("48:b0:2d:f1:ef:c0", "10.20.1.11", f"{NAME}-bmc")],
        ),
        ({"bmc_mac": "48:b0:2d:f1:ef:c0", "bmc_address": ""}, []),
        ({"bmc_mac": "", "bmc_address": "10.20.1.11"}, []),
        ({"nic_macs": (ONE, TWO), "nic_addresses": {ONE: "10.30.0.1"}}, [(ONE, "10.30.0.1", NAME), (TWO, "", NAME)]),
        ({"nic_macs": (ONE, TWO)}, []),
        ({"nic_macs": ("f2:00:00:67:1e:cd", ONE), "nic_addresses": {ONE: "10.30.0.1"}}, [(ONE, "10.30.0.1", NAME)]),
        ({"nic_macs": (ONE,), "nic_addresses": {ONE: "10.30.0.1"}, "state": MachineState.RETIRED}, []),
    ],
    ids=["bmc", "no address", "no mac", "bond", "nothing in IPAM", "virtual", "retired"],
)
def test_what_a_machine_is_to_get(changes: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert wanted(name=NAME, **changes) == expected


def test_a_digest_changes_with_what_is_wanted() -> None:
    one = wanted_reservations(machine(bmc_mac="48:b0:2d:f1:ef:c0", bmc_address="10.20.1.11"))
    other = wanted_reservations(machine(bmc_mac="48:b0:2d:f1:ef:c0", bmc_address="10.20.1.12"))
    assert digest(one) != digest(other) and digest(one) == digest(one)


async def with_dhcp(inventory: Inventory) -> Inventory:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.kit.observe(DhcpObserved(site="fra1", observed_at=now_utc(), problems=()))
    return inventory


async def follow(inventory: Inventory) -> int:
    """How many orders a look gives."""
    before = len(await inventory.sent("dhcp.reserve"))
    await dhcp.follow_reservations(inventory.kit.app)
    return len(await inventory.sent("dhcp.reserve")) - before


async def listed(inventory: Inventory) -> dict[str, Any]:
    (row,) = (await inventory.kit.query("list_dhcp_reservations")).body["items"]
    found: dict[str, Any] = row
    return found


async def test_a_site_without_a_dhcp_server_is_asked_nothing(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    assert await follow(inventory) == 0


async def test_reservations_are_asked_for_once_and_again_when_they_change(inventory: Inventory) -> None:
    await with_dhcp(inventory)
    assert await follow(inventory) == 1 and await follow(inventory) == 0
    order = await inventory.answer("dhcp.reserve", managed=True, applied=[], refused=[], lasting=True)
    bmc = {"hw_address": "00:00:5e:00:53:01", "ip_address": "10.20.1.1", "hostname": f"{NAME}-bmc"}
    assert order.data["reservations"] == [bmc] and order.site == "fra1"
    assert (await listed(inventory))["state"] == "DONE"
    await inventory.kit.call("add_hold", {"machine_id": NAME, "reason": "cabling"})
    assert await follow(inventory) == 0
    inventory.netbox.change(1, oob_ip={"id": 1, "address": "10.20.1.77/24"})
    await inventory.read()
    assert await follow(inventory) == 1
    assert (await inventory.sent("dhcp.reserve"))[-1].data["reservations"][0]["ip_address"] == "10.20.1.77"


async def test_an_address_that_ipam_gives_a_port_is_reserved_for_it(inventory: Inventory) -> None:
    await with_dhcp(inventory)
    await follow(inventory)
    port = {"assigned_object_type": "dcim.interface", "assigned_object_id": 11, "address": "10.30.0.1/24"}
    inventory.netbox.addresses.append(port)
    inventory.netbox.change(1)
    await inventory.full_read()
    assert await follow(inventory) == 1
    order = (await inventory.sent("dhcp.reserve"))[-1].data["reservations"]
    assert {"hw_address": "00:00:5e:00:54:01", "ip_address": "10.30.0.1", "hostname": NAME} in order


async def test_what_the_site_refuses_is_kept_with_the_reason(inventory: Inventory) -> None:
    await with_dhcp(inventory)
    await follow(inventory)
    refused = [{"hw_address": "00:00:5e:00:53:01", "ip_address": "10.20.1.1", "problem": "reserved already for ntp"}]
    await inventory.answer("dhcp.reserve", managed=True, applied=[], refused=refused, lasting=True)
    row = await listed(inventory)
    assert row["state"] == "REFUSED" and row["refused"][0]["problem"] == "reserved already for ntp"


async def test_a_site_that_fails_is_asked_again_later(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_dhcp(inventory)
    await follow(inventory)
    for _ in range(3):
        await inventory.answer("dhcp.reserve", failed("dhcp_unreachable", "Kea does not answer"))
        await inventory.kit.fire_timers()
        await inventory.deliver_own()
    row = await listed(inventory)
    assert row["state"] == "FAILED" and "Kea does not answer" in row["error"]
    assert await follow(inventory) == 0
    monkeypatch.setattr(dhcp_store, "RETRY_AFTER", -dhcp_store.RETRY_AFTER)
    assert await follow(inventory) == 1
