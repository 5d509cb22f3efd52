"""Machines that NetBox does not have: seen on the wire, told of by a manifest, and taken over by NetBox later."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from libs.contracts.dhcp import DhcpObserved, DhcpProblem, LeaseObserved
from libs.contracts.discovery import BmcObserved
from libs.contracts.envelope import now_utc
from services.inventory import discovery
from tests.integration.inventory.conftest import Inventory

HEADING = "name,site,rack,position,device_type,serial,bmc_mac,bmc_address,nic_macs\n"


def line(number: int, **changes: str) -> str:
    values = {
        "name": f"fra1-r9-gpu-{number:03}",
        "site": "fra1",
        "rack": "r9",
        "position": "",
        "device_type": "nvidia-dgx-h100",
        "serial": f"SN-9-{number:04}",
        "bmc_mac": f"48:b0:2d:09:{number // 256:02x}:{number % 256:02x}",
        "bmc_address": f"10.29.{number // 256}.{number % 256}",
        "nic_macs": f"94:6d:ae:09:{number // 256:02x}:{number % 256:02x}",
        **changes,
    }
    return ",".join(values.values()) + "\n"


async def send(inventory: Inventory, *lines: str, dry_run: bool = False) -> dict[str, Any]:
    params = {"format": "csv", "text": HEADING + "".join(lines), "dry_run": dry_run}
    answer = await inventory.kit.call("import_machines", params)
    assert answer.status == 200, answer
    report: dict[str, Any] = answer.body
    return report


async def started(inventory: Inventory) -> Inventory:
    """With a site, which NetBox tells of."""
    inventory.netbox.add(1)
    await inventory.read()
    return inventory


# -- a manifest -------------------------------------------------------------------------------------


async def test_one_bad_row_in_500_is_named_and_does_not_stop_the_499(inventory: Inventory) -> None:
    await started(inventory)
    rows = [line(n) for n in range(1, 501)]
    rows[249] = line(250, bmc_mac="48:b0:2d:09:00")
    preview = await send(inventory, *rows, dry_run=True)
    assert (preview["rows"], preview["new"], preview["bad"], preview["dry_run"]) == (500, 499, 1, True)
    assert not [m for m in await inventory.events("machine.registered") if "r9" in m.data["machine"]["name"]]
    report = await send(inventory, *rows)
    assert (report["new"], report["bad"]) == (499, 1)
    (problem,) = report["problems"]
    assert (problem["row"], problem["column"]) == (250, "bmc_mac") and "5 octets" in problem["why"]
    again = await send(inventory, *rows)
    assert (again["new"], again["unchanged"], again["bad"]) == (0, 499, 1)
    machine = await inventory.machine("fra1-r9-gpu-001")
    assert machine["state"] == "EXPECTED" and machine["profile"] == "h100-sxm-8" and machine["rack"] == "r9"


async def test_two_operators_who_import_one_rack_at_once_make_it_once(inventory: Inventory) -> None:
    await started(inventory)
    rows = [line(n) for n in range(1, 41)]
    both = await asyncio.gather(send(inventory, *rows), send(inventory, *reversed(rows)))
    assert sorted((report["new"], report["unchanged"]) for report in both) == [(0, 40), (40, 0)]
    made = [e for e in await inventory.events("machine.registered") if "-r9-" in e.data["machine"]["name"]]
    assert len(made) == 40
    racks = [e for e in await inventory.events("rack.updated") if e.data["rack"]["name"] == "r9"]
    assert len(racks) == 1


async def test_a_correction_is_taken_until_the_machine_is_enrolled(inventory: Inventory) -> None:
    await started(inventory)
    await send(inventory, line(1))
    report = await send(inventory, line(1, rack="r10", bmc_address="10.29.9.9"))
    assert report["changed"] == 1
    machine = await inventory.machine("fra1-r9-gpu-001")
    assert (machine["rack"], machine["bmc_address"]) == ("r10", "10.29.9.9")
    await inventory.enrol("fra1-r9-gpu-001")
    assert (await send(inventory, line(1, rack="r11")))["unchanged"] == 1
    assert (await inventory.machine("fra1-r9-gpu-001"))["rack"] == "r10"


async def test_a_row_of_a_machine_that_netbox_has_is_left_to_netbox_and_a_clash_is_named(inventory: Inventory) -> None:
    await started(inventory)
    theirs = await inventory.machine("fra1-r1-gpu-01")
    same = line(1, name=theirs["name"], serial=theirs["serial"], bmc_mac=theirs["bmc_mac"], nic_macs="", rack="r1")
    clash = line(2, bmc_address=theirs["bmc_address"])
    report = await send(inventory, same, clash)
    assert (report["known"], report["bad"], report["new"]) == (1, 1, 0)
    assert theirs["name"] in report["problems"][0]["why"]
    assert await inventory.machine("fra1-r1-gpu-01") == theirs


async def test_a_full_walk_leaves_it_alone_and_netbox_takes_it_over_once_it_has_it(inventory: Inventory) -> None:
    await started(inventory)
    await send(inventory, line(1, bmc_mac="00:00:5e:00:53:02", nic_macs=""))
    told = await inventory.machine("fra1-r9-gpu-001")
    await inventory.full_read()
    assert (await inventory.machine("fra1-r9-gpu-001"))["holds"] == []
    inventory.netbox.add(2, serial=told["serial"])
    await inventory.full_read()
    taken = await inventory.machine(told["id"])
    assert taken["netbox_id"] is not None and taken["name"] == "fra1-r1-gpu-02"
    assert not [hold for hold in taken["holds"] if "also that of" in hold["reason"]]
    del inventory.netbox.devices[2]
    await inventory.full_read()
    assert any("no longer in NetBox" in hold["reason"] for hold in (await inventory.machine(told["id"]))["holds"])


# -- the wire ---------------------------------------------------------------------------------------


def seen(address: str, mac: str = "", *, minutes: int = 0, **changes: Any) -> BmcObserved:
    fields = {"via": "lease" if mac else "scan", "redfish": True, "vendor": "Dell", **changes}
    at = now_utc() + timedelta(minutes=minutes)
    return BmcObserved(site="fra1", address=address, hw_address=mac, observed_at=at, **fields)


async def candidates(inventory: Inventory, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await inventory.kit.query("list_candidates", params)).body["items"]
    return found


STRANGER = "48:b0:2d:77:00:01"


async def test_an_unknown_bmc_is_a_candidate_once_however_it_is_seen_and_a_known_one_is_none(
    inventory: Inventory,
) -> None:
    await started(inventory)
    known = await inventory.machine("fra1-r1-gpu-01")
    await inventory.kit.observe(seen(known["bmc_address"], known["bmc_mac"]))
    await inventory.kit.observe(seen("10.20.1.99", STRANGER.upper().replace(":", "-")))
    await inventory.kit.observe(seen("10.20.1.99", minutes=1, product="iDRAC"))
    await inventory.kit.observe(seen("10.20.1.99", STRANGER, minutes=-5, vendor="older word"))
    (one,) = await candidates(inventory)
    assert (one["address"], one["bmc_mac"], one["via"]) == ("10.20.1.99", STRANGER, ["lease", "scan"])
    assert (one["vendor"], one["product"], one["state"]) == ("Dell", "iDRAC", "NEW")
    assert len(await inventory.events("candidate.updated")) == 2


async def test_a_stranger_at_a_machines_address_is_told_with_both_macs(inventory: Inventory) -> None:
    await started(inventory)
    known = await inventory.machine("fra1-r1-gpu-01")
    await inventory.kit.observe(seen(known["bmc_address"], STRANGER))
    (one,) = await candidates(inventory)
    assert known["name"] in one["note"] and known["bmc_mac"] in one["note"]


async def test_an_approved_candidate_is_an_expected_machine_and_closed(inventory: Inventory) -> None:
    await started(inventory)
    await inventory.kit.observe(seen("10.20.1.99", STRANGER))
    (one,) = await candidates(inventory)
    about = {"candidate_id": one["id"], "name": "fra1-r7-gpu-01", "rack": "r7", "serial": "SN-7"}
    wrong = await inventory.kit.call("approve_candidate", {**about, "device_type": "dgx"})
    assert wrong.status == 422 and wrong.body["errors"][0]["field"] == "device_type"
    answer = await inventory.kit.call("approve_candidate", {**about, "device_type": "nvidia-dgx-h100"})
    assert answer.status == 201 and answer.body["state"] == "APPROVED"
    machine = await inventory.machine("fra1-r7-gpu-01")
    assert machine["id"] == answer.body["machine_id"] and machine["state"] == "EXPECTED"
    assert (machine["bmc_address"], machine["bmc_mac"]) == ("10.20.1.99", STRANGER)
    again = await inventory.kit.call("approve_candidate", {**about, "device_type": "nvidia-dgx-h100"})
    assert again.status == 409 and again.body["code"] == "candidate.closed"
    await inventory.kit.observe(seen("10.20.1.99", STRANGER, minutes=2))
    assert [c["state"] for c in await candidates(inventory)] == ["APPROVED"]


async def test_what_was_ignored_stays_ignored_and_what_netbox_learns_of_is_known(inventory: Inventory) -> None:
    await started(inventory)
    stranger = "00:00:5e:00:53:02"
    await inventory.kit.observe(seen("10.20.1.99", stranger))
    (one,) = await candidates(inventory)
    answer = await inventory.kit.call("ignore_candidate", {"candidate_id": one["id"], "reason": "the UPS"})
    assert answer.status == 200
    await inventory.kit.observe(seen("10.20.1.98", stranger, minutes=1))
    (moved,) = await candidates(inventory)
    assert (moved["state"], moved["address"], moved["reason"]) == ("IGNORED", "10.20.1.98", "the UPS")
    assert await candidates(inventory, state=["NEW"]) == []
    inventory.netbox.add(2)
    await inventory.full_read()
    await inventory.kit.observe(seen("10.20.1.98", stranger, minutes=2))
    (known,) = await candidates(inventory)
    assert known["state"] == "KNOWN" and known["machine_id"] == (await inventory.machine("fra1-r1-gpu-02"))["id"]


async def test_a_scan_asks_the_site_and_reports_what_it_counted(inventory: Inventory) -> None:
    await started(inventory)
    assert (await inventory.kit.call("scan_bmcs", {"site": "nowhere"})).status == 422
    answer = await inventory.kit.call("scan_bmcs", {"site": "fra1", "networks": ["10.20.1.0/24"]})
    assert answer.status == 202
    (order,) = await inventory.sent("redfish.scan")
    assert order.data["networks"] == ["10.20.1.0/24"] and order.site == "fra1"
    await inventory.answer("redfish.scan", addresses=254, found=3, seconds=2.5)
    (ended,) = await inventory.events("operation.finished")
    assert ended.data["operation"]["result"]["found"] == 3


# -- DHCP -------------------------------------------------------------------------------------------


async def test_dhcp_problems_and_leases_are_kept_and_a_server_that_is_away_hides_none(inventory: Inventory) -> None:
    await started(inventory)
    at = now_utc()
    declined = DhcpProblem(
        kind="declined",
        ip_address="10.1.2.3",
        hw_addresses=(STRANGER,),
        message="10.1.2.3 is declined",
        next_step="ARP",
    )
    await inventory.kit.observe(
        DhcpObserved(site="fra1", observed_at=at, problems=(declined,), leases=1, reservations=0)
    )
    away = DhcpObserved(site="fra1", observed_at=at + timedelta(seconds=5), error="Kea does not answer")
    await inventory.kit.observe(away)
    await inventory.kit.observe(DhcpObserved(site="fra1", observed_at=at - timedelta(seconds=5), problems=()))
    (server,) = (await inventory.kit.query("list_dhcp_servers")).body["items"]
    assert server["error"] == "Kea does not answer" and server["problems"][0]["ip_address"] == "10.1.2.3"
    lease = LeaseObserved(
        site="fra1", hw_address=STRANGER, ip_address="10.1.2.3", state="declined", expires_at=at, observed_at=at
    )
    await inventory.kit.observe(lease)
    older = lease.model_copy(update={"state": "active", "observed_at": at - timedelta(minutes=1)})
    await inventory.kit.observe(older)
    assert [one["state"] for one in (await inventory.kit.query("list_leases")).body["items"]] == ["declined"]
    await inventory.kit.observe(lease.model_copy(update={"expires_at": at - timedelta(days=3), "observed_at": at}))
    await discovery.forget_leases(inventory.kit.app)
    assert len((await inventory.kit.query("list_leases")).body["items"]) == 1
