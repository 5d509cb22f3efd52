"""What the gateway may ask of inventory, and what it is told when it asks for nonsense."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.inventory.conftest import Inventory

NAME = "fra1-r1-gpu-01"


async def three(inventory: Inventory) -> None:
    for number in (1, 2, 3):
        inventory.netbox.add(number)
    await inventory.read()


async def test_a_rack_is_enrolled_by_name_and_what_can_t_be_is_listed(inventory: Inventory) -> None:
    await three(inventory)
    await inventory.enrol(NAME)
    answer = await inventory.kit.call("enrol_machines", {"racks": ["r1"]})
    assert answer.status == 202 and answer.location == f"/operations/{answer.body['operation_id']}"
    assert [m["name"] for m in answer.body["machines"]] == ["fra1-r1-gpu-02", "fra1-r1-gpu-03"]
    assert [m["name"] for m in answer.body["skipped"]] == [NAME]


async def test_a_site_is_enrolled_whole(inventory: Inventory) -> None:
    await three(inventory)
    answer = await inventory.kit.call("enrol_machines", {"site": "fra1"})
    assert len(answer.body["machines"]) == 3


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "machines"),
        ({"racks": ["r9"]}, "racks.0"),
        ({"machines": ["fra1-r1-gpu-01", "nobody"]}, "machines.1"),
        ({"site": "nowhere"}, "site"),
        ({"racks": "r1"}, "racks"),
        ({"racks": [7]}, "racks.0"),
        ({"machines": [""]}, "machines.0"),
        ({"machines": ["x" * 500]}, "machines.0"),
        ({"machines": None}, "machines"),
    ],
)
async def test_an_enrolment_of_nonsense_names_the_field_and_starts_nothing(
    inventory: Inventory, params: dict[str, Any], field: str
) -> None:
    await three(inventory)
    answer = await inventory.kit.call("enrol_machines", params)
    assert answer.status == 422 and answer.body["errors"][0]["field"] == field
    assert await inventory.events("operation.started") == []


async def test_nothing_to_enrol_is_said(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    answer = await inventory.kit.call("enrol_machines", {"machines": [NAME]})
    assert answer.status == 409 and answer.body["code"] == "enrolment.nothing_to_do"


async def test_the_same_key_starts_one_enrolment(inventory: Inventory) -> None:
    await three(inventory)
    first = await inventory.kit.call("enrol_machines", {"racks": ["r1"]}, idempotency_key="k")
    again = await inventory.kit.call("enrol_machines", {"racks": ["r1"]}, idempotency_key="k")
    other = await inventory.kit.call("enrol_machines", {"machines": [NAME]}, idempotency_key="k")
    assert first == again and other.status == 422


@pytest.mark.parametrize("call", ["retry_machine", "quarantine_machine", "release_quarantine", "add_hold"])
async def test_an_unknown_machine_is_not_found(inventory: Inventory, call: str) -> None:
    answer = await inventory.kit.call(call, {"machine_id": "nobody", "reason": "because"})
    assert answer.status == 404 and answer.body["code"] == "machine.not_found"
    assert (await inventory.kit.query("get_machine", {"machine_id": "nobody"})).status == 404


@pytest.mark.parametrize("reason", [None, "", "  ", "x" * 501, 7, ["a"]])
async def test_a_reason_must_be_given(inventory: Inventory, reason: object) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    answer = await inventory.kit.call("quarantine_machine", {"machine_id": NAME, "reason": reason})
    assert answer.status == 422 and answer.body["errors"][0]["field"] == "reason"


async def test_an_operator_quarantines_and_the_reason_is_kept(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    params = {"machine_id": NAME, "reason": "smells of smoke"}
    assert (await inventory.kit.call("quarantine_machine", params, if_match='"99"')).status == 412
    answer = await inventory.kit.call("quarantine_machine", params, if_match='"1"')
    assert answer.status == 200 and answer.body["state"] == "QUARANTINED"
    machine = await inventory.machine(NAME)
    assert machine["reason"]["message"] == "smells of smoke" and machine["reason"]["details"]["owner"] == "user:test"
    assert (await inventory.kit.call("retry_machine", {"machine_id": NAME})).body["code"] == "machine.not_failed"


async def test_a_hold_is_added_and_removed(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    added = await inventory.kit.call("add_hold", {"machine_id": NAME, "reason": "kept for a test"})
    assert added.status == 201 and not added.body["eligible"]
    hold = added.body["holds"][0]["id"]
    assert (await inventory.kit.call("remove_hold", {"machine_id": NAME, "hold_id": "other"})).status == 404
    removed = await inventory.kit.call("remove_hold", {"machine_id": NAME, "hold_id": hold})
    assert removed.status == 200 and removed.body["eligible"]


async def test_a_profile_is_changed_only_by_somebody_who_read_it_and_machines_follow(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    body = {"name": "h100-sxm-8", "device_types": ["dell-poweredge-xe9680"], "gpu_model": "H100", "gpu_count": 8}
    assert (await inventory.kit.call("put_profile", body)).status == 428
    assert (await inventory.kit.call("put_profile", body, if_match='"7"')).status == 412
    changed = await inventory.kit.call("put_profile", body, if_match='"1"')
    assert changed.status == 200 and changed.etag == '"2"'
    assert (await inventory.machine(NAME))["profile"] is None
    new = await inventory.kit.call("put_profile", {"name": "dgx", "device_types": ["nvidia-dgx-h100"], "gpu_count": 8})
    assert new.status == 201 and (await inventory.machine(NAME))["profile"] == "dgx"
    clash = await inventory.kit.call("put_profile", {"name": "dgx-2", "device_types": ["nvidia-dgx-h100"]})
    assert clash.status == 422 and clash.body["errors"][0]["field"] == "device_types"


async def test_machines_are_filtered_searched_and_paged(inventory: Inventory) -> None:
    await three(inventory)
    await inventory.kit.call("quarantine_machine", {"machine_id": NAME, "reason": "broken"})
    query = inventory.kit.query
    assert [m["name"] for m in (await query("list_machines", {"state": "QUARANTINED"})).body["items"]] == [NAME]
    assert len((await query("list_machines", {"q": "gpu-03"})).body["items"]) == 1
    page = (await query("list_machines", {"limit": 2})).body
    rest = (await query("list_machines", {"limit": 2, "cursor": page["next_cursor"]})).body
    assert len(page["items"]) == 2 and len(rest["items"]) == 1 and rest["next_cursor"] is None
    (rack,) = (await query("list_racks")).body["items"]
    assert len((await query("get_rack", {"rack_id": rack["id"]})).body["machines"]) == 3
    assert (await query("get_profile", {"name": "cpu-node"})).etag == '"1"'
    assert (await query("get_site", {"slug": "fra1"})).body["name"] == "Frankfurt 1"


async def test_two_machines_of_one_name_are_never_guessed_between(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    inventory.netbox.add(2, name=NAME)
    await inventory.read()
    answer = await inventory.kit.query("get_machine", {"machine_id": NAME})
    assert answer.status == 409 and len(answer.body["machines"]) == 2
