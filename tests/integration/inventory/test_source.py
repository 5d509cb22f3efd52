"""NetBox read and written: what is taken, what is held, what is never concluded."""

from __future__ import annotations

from libs.contracts.inventory import AcceptMachine
from services.inventory import periodic
from services.inventory.adapters.source import SourceUnavailable
from tests.integration.inventory.conftest import Inventory

NAME = "fra1-r1-gpu-01"


async def holds(inventory: Inventory, name: str) -> list[str]:
    return [hold["reason"] for hold in (await inventory.machine(name))["holds"]]


async def test_machines_appear_as_expected_with_place_type_and_addresses(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    machine = await inventory.machine(NAME)
    assert machine["state"] == "EXPECTED" and machine["profile"] == "h100-sxm-8"
    assert (machine["site"], machine["rack"], machine["position"]) == ("fra1", "r1", 1.0)
    assert machine["bmc_address"] == "10.20.1.1" and machine["bmc_mac"] == "00:00:5e:00:53:01"
    assert machine["nic_macs"] == ["00:00:5e:00:54:01"] and machine["gpu_count"] == 8
    assert machine["as_of"] is not None
    for name in ("list_sites", "list_racks", "list_device_types"):
        answer = await inventory.kit.query(name)
        assert len(answer.body["items"]) == 1 and answer.body["as_of"]


async def test_reading_again_changes_nothing(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    before = await inventory.kit.events()
    await inventory.read()
    assert await inventory.kit.events() == before


async def test_a_failing_source_changes_nothing_and_says_since_when(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    before = await inventory.machine(NAME)
    inventory.netbox.failure = SourceUnavailable("NetBox answered 500 to GET /api/dcim/devices/")
    await inventory.full_read()
    await inventory.read()
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    assert not source["healthy"] and "500" in source["last_error"] and source["failing_since"]
    assert await inventory.machine(NAME) == before
    incomplete = [e for e in await inventory.events("source.read") if not e.data["complete"]]
    assert len(incomplete) == 1

    inventory.netbox.failure = None
    await inventory.read()
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    assert source["healthy"] and source["failing_since"] is None


async def test_a_renamed_role_stops_the_walk_with_a_clear_message(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    inventory.netbox.role_slugs = {"gpu-server", "cpu-node"}
    await inventory.full_read()
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    assert "gpu-node" in source["last_error"] and await holds(inventory, NAME) == []


async def test_a_renamed_site_or_type_slug_moves_no_machine_and_is_named_once(inventory: Inventory) -> None:
    for number in (1, 2):
        inventory.netbox.add(number)
    await inventory.read()
    await inventory.enrol(NAME)
    before = [await inventory.machine(f"fra1-r1-gpu-0{number}") for number in (1, 2)]
    twin = inventory.netbox
    twin.sites = [{"id": 1, "name": "Frankfurt 1", "slug": "fra-one"}]
    twin.types = [{"id": 1, "slug": "dgx", "model": "DGX H100", "manufacturer": {"id": 1, "name": "NVIDIA"}}]
    for number in (1, 2):
        twin.change(number, site=twin.sites[0], device_type={"id": 1, "slug": "dgx", "model": "DGX H100"})
    await inventory.full_read()
    for was in before:
        now = await inventory.machine(was["name"])
        assert (now["site"], now["device_type"], now["holds"], now["drifts"]) == ("fra1", "nvidia-dgx-h100", [], [])
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    assert sorted(problem["key"] for problem in source["problems"]) == ["device type:1", "site:1"]
    assert [one["slug"] for one in (await inventory.kit.query("list_sites")).body["items"]] == ["fra1"]

    twin.sites.append({"id": 2, "name": "Another", "slug": "fra1"})
    twin.add(3, site={"id": 2, "slug": "fra1"})
    await inventory.full_read()
    names = [one["name"] for one in (await inventory.kit.query("list_machines")).body["items"]]
    assert names == [was["name"] for was in before]


async def test_one_bad_record_is_named_and_the_others_go_on(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    inventory.netbox.add(2, name=None)
    inventory.netbox.add(3)
    await inventory.read()
    listed = (await inventory.kit.query("list_machines")).body["items"]
    assert [machine["name"] for machine in listed] == [NAME, "fra1-r1-gpu-03"]
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    (problem,) = source["problems"]
    assert "name" in problem["problem"] and problem["key"] == "netbox:2"


async def test_a_record_that_turns_bad_changes_nothing_of_its_machine_but_says_so(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    before = await inventory.machine(NAME)
    inventory.netbox.change(1, device_type=None)
    await inventory.full_read()
    after = await inventory.machine(NAME)
    assert after["version"] == before["version"] and "device_type" in after["source_problem"]
    inventory.netbox.change(1, device_type={"id": 1, "slug": "nvidia-dgx-h100"})
    await inventory.read()
    assert (await inventory.machine(NAME))["source_problem"] == ""


async def test_both_shapes_of_the_role_are_read(inventory: Inventory) -> None:
    old = inventory.netbox.add(1)
    old["device_role"] = old.pop("role")
    await inventory.read()
    assert (await inventory.machine(NAME))["role"] == "gpu-node"


async def test_what_people_own_is_taken(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    inventory.netbox.change(1, name="fra1-r1-gpu-99", position=20.0, asset_tag=None)
    await inventory.read()
    machine = await inventory.machine("fra1-r1-gpu-99")
    assert machine["position"] == 20.0 and machine["asset_tag"] == "" and machine["version"] == 2
    (event,) = await inventory.events("machine.updated")
    assert set(event.data["changed"]) == {"name", "position", "asset_tag"}


async def test_a_serial_that_changes_under_an_enrolled_machine_is_drift_and_ours_stays(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    serial = (await inventory.machine(NAME))["serial"]
    inventory.netbox.change(1, serial="S0099")
    for _ in range(2):
        await inventory.full_read()
    machine = await inventory.machine(NAME)
    assert machine["serial"] == serial and not machine["eligible"]
    (drift,) = await inventory.events("machine.drifted")
    assert (drift.data["field"], drift.data["ours"], drift.data["theirs"]) == ("serial", serial, "S0099")
    assert drift.data["field_owner"] == "slipway" and "correct the serial number in NetBox" in drift.data["repair"]
    (open_drift,) = machine["drifts"]
    assert (open_drift["field"], open_drift["theirs"], open_drift["owner"]) == ("serial", "S0099", "slipway")

    hold = machine["holds"][0]["id"]
    answer = await inventory.kit.call("remove_hold", {"machine_id": NAME, "hold_id": hold})
    assert answer.status == 200, answer
    replaced = await inventory.machine(NAME)
    assert replaced["serial"] == "S0099" and replaced["state"] == "QUARANTINED" and replaced["holds"] == []
    assert replaced["drifts"] == []
    assert (await inventory.kit.call("release_quarantine", {"machine_id": NAME, "reason": "new board"})).status == 202
    assert (await inventory.machine(NAME))["state"] == "ENROLLING"


async def test_a_serial_that_is_corrected_back_lets_go(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    serial = (await inventory.machine(NAME))["serial"]
    inventory.netbox.change(1, serial="")
    await inventory.read()
    assert len(await holds(inventory, NAME)) == 1
    inventory.netbox.change(1, serial=serial)
    await inventory.read()
    assert (await inventory.machine(NAME))["eligible"]


async def test_a_serial_may_be_corrected_before_the_enrolment(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    inventory.netbox.change(1, serial="S0099")
    await inventory.read()
    assert (await inventory.machine(NAME))["serial"] == "S0099" and await holds(inventory, NAME) == []


async def test_what_two_devices_share_holds_both_and_overwrites_neither(inventory: Inventory) -> None:
    same, words = {"serial": "1660223969901"}, "serial number"
    inventory.netbox.add(1)
    await inventory.read()
    own = {"serial": "OWN", "name": "fra1-r1-gpu-02", "oob_ip": {"id": 2, "address": "10.20.1.2/24"}}
    inventory.netbox.add(2, **{**own, **same})
    await inventory.read()
    listed = (await inventory.kit.query("list_machines")).body["items"]
    assert len(listed) == 2 and all(words in machine["holds"][0]["reason"] for machine in listed)
    refused = await inventory.kit.call("enrol_machines", {"machines": [listed[1]["id"]]})
    await inventory.deliver_own()
    assert refused.status == 202 and (await inventory.machine(listed[1]["id"]))["state"] == "EXPECTED"

    inventory.netbox.change(2, **own)
    await inventory.read()
    listed = (await inventory.kit.query("list_machines")).body["items"]
    assert all(machine["holds"] == [] for machine in listed)


async def test_a_device_that_is_gone_from_a_full_walk_is_held_not_removed(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    inventory.netbox.add(2)
    await inventory.read()
    gone = inventory.netbox.devices.pop(1)
    await inventory.read()
    assert await holds(inventory, NAME) == []
    await inventory.full_read()
    await inventory.full_read()
    assert await holds(inventory, NAME) == ["it is no longer in NetBox"]
    assert len(await inventory.events("machine.drifted")) == 1
    inventory.netbox.devices[1] = gone
    await inventory.full_read()
    assert await holds(inventory, NAME) == []


async def test_a_status_that_is_not_meant_for_use_holds_the_machine(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    inventory.netbox.change(1, status={"value": "offline"})
    await inventory.read()
    machine = await inventory.machine(NAME)
    assert machine["state"] == "AVAILABLE" and not machine["eligible"] and "offline" in machine["holds"][0]["reason"]
    inventory.netbox.change(1, status={"value": "active"})
    await inventory.read()
    assert (await inventory.machine(NAME))["eligible"]


async def test_a_machine_in_use_stays_with_its_tenant_whatever_netbox_says(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    machine = await inventory.machine(NAME)
    await inventory.kit.command(
        AcceptMachine(
            machine_id=machine["id"],
            expected_version=machine["version"],
            claim_id="0c1a0000-0000-7000-8000-000000000001",
            reservation_id="res-1",
            tenant="acme",
        )
    )
    inventory.netbox.change(1, status={"value": "offline"})
    await inventory.read()
    kept = await inventory.machine(NAME)
    assert kept["state"] == "CLAIMED" and len(kept["holds"]) == 1


async def test_netbox_shows_state_health_and_completes_the_intent(inventory: Inventory) -> None:
    inventory.netbox.add(1, custom_fields={"owner": "team-a"})
    await inventory.read()
    await periodic.write_back(inventory.kit.app)
    fields = inventory.netbox.devices[1]["custom_fields"]
    assert fields["slipway_state"] == "EXPECTED" and inventory.netbox.devices[1]["status"]["value"] == "staged"
    await inventory.enrol(NAME)
    await periodic.write_back(inventory.kit.app)
    shown = inventory.netbox.devices[1]
    machine = await inventory.machine(NAME)
    assert shown["custom_fields"]["slipway_state"] == "AVAILABLE" and shown["status"]["value"] == "active"
    assert shown["custom_fields"]["slipway_machine_id"] == machine["id"]
    assert shown["custom_fields"]["slipway_health"] == "HEALTHY" and shown["custom_fields"]["slipway_validated_at"]
    assert shown["custom_fields"]["owner"] == "team-a"
    assert all("owner" not in write.fields for write in inventory.netbox.writes)


async def test_our_own_writes_change_nothing_when_they_come_back(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    await periodic.write_back(inventory.kit.app)
    await inventory.read()
    before, writes = await inventory.machine(NAME), len(inventory.netbox.writes)
    for _ in range(3):
        await inventory.read()
        await periodic.write_back(inventory.kit.app)
    after = await inventory.machine(NAME)
    assert after["version"] == before["version"] and len(inventory.netbox.writes) == writes


async def test_several_changes_of_one_device_are_one_write(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    await periodic.write_back(inventory.kit.app)
    assert len(inventory.netbox.writes) == 1


async def test_a_field_of_ours_that_somebody_changed_is_written_again(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await periodic.write_back(inventory.kit.app)
    fields = {**inventory.netbox.devices[1]["custom_fields"], "slipway_state": "AVAILABLE"}
    inventory.netbox.change(1, custom_fields=fields)
    await inventory.read()
    await periodic.write_back(inventory.kit.app)
    assert inventory.netbox.devices[1]["custom_fields"]["slipway_state"] == "EXPECTED"


async def test_a_refused_write_waits_and_does_not_stop_the_others(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    inventory.netbox.add(2)
    inventory.netbox.refused = {1}
    await inventory.read()
    await periodic.write_back(inventory.kit.app)
    assert [write.netbox_id for write in inventory.netbox.writes] == [2]
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    (waiting,) = source["writes"]
    assert waiting["attempts"] == 1 and "400" in waiting["last_error"]


async def test_a_source_that_is_away_keeps_what_is_to_be_written(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    inventory.netbox.failure = SourceUnavailable("can't be reached")
    await periodic.write_back(inventory.kit.app)
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    assert source["writes"][0]["last_error"] == "can't be reached"


async def test_a_machine_keeps_the_id_that_netbox_carries(inventory: Inventory) -> None:
    kept = "5a2f6ad2-6c0e-5f0a-9d0c-0c8e5b1f7a10"
    inventory.netbox.add(1, custom_fields={"slipway_machine_id": kept})
    await inventory.read()
    assert (await inventory.machine(NAME))["id"] == kept
    inventory.netbox.add(2, custom_fields={"slipway_machine_id": kept})
    await inventory.read()
    (source,) = (await inventory.kit.query("list_sources")).body["items"]
    assert "belongs to another device" in source["problems"][0]["problem"]
    assert len((await inventory.kit.query("list_machines")).body["items"]) == 1
