"""One action for many machines: chosen by name or filter, previewed, decided on one by one."""

from __future__ import annotations

from typing import Any

from libs.contracts.inventory import ActOnMachine, BulkAction
from libs.contracts.replies import Outcome
from tests.integration.inventory.conftest import Inventory

EVA, BOB = "user:eva", "user:bob"


async def act(inventory: Inventory, action: str, actor: str = EVA, **chosen: Any) -> Any:
    params = {"action": action, "reason": "cabling on Tuesday", **chosen}
    return await inventory.kit.call("act_on_machines", params, actor=actor)


async def held(inventory: Inventory) -> dict[str, list[str]]:
    found = await inventory.kit.query("list_machines", {"limit": 200})
    return {item["name"]: [hold["owner"] for hold in item["holds"]] for item in found.body["items"] if item["holds"]}


async def names(inventory: Inventory) -> list[str]:
    for number in (1, 2, 3):
        inventory.netbox.add(number)
    await inventory.full_read()
    found = await inventory.kit.query("list_machines", {"limit": 200})
    return [item["name"] for item in found.body["items"] if not item["holds"]]


async def test_a_preview_changes_nothing_and_the_operation_does_what_it_said(inventory: Inventory) -> None:
    first, second, *_ = await names(inventory)
    preview = await act(inventory, "hold", machines=[first, second], dry_run=True)
    assert (preview.status, [m["name"] for m in preview.body["machines"]]) == (200, sorted([first, second]))
    assert not {first, second} & (await held(inventory)).keys()

    started = await act(inventory, "hold", machines=[first, second])
    assert started.status == 202 and started.body["machines"] == preview.body["machines"]
    await inventory.deliver_own()
    assert (await held(inventory))[first] == (await held(inventory))[second] == [EVA]
    operation = await inventory.kit.query("get_operation", {"operation_id": started.body["operation_id"]})
    assert operation.body["status"] == "SUCCEEDED"
    assert {item["name"] for item in operation.body["result"]["done"]} == {first, second}


async def test_one_lets_go_of_ones_own_holds_only(inventory: Inventory) -> None:
    first, second, *_ = await names(inventory)
    await act(inventory, "hold", machines=[first])
    await act(inventory, "hold", actor=BOB, machines=[first, second])
    await inventory.deliver_own()

    preview = await act(inventory, "unhold", machines=[first, second], dry_run=True)
    assert [m["name"] for m in preview.body["machines"]] == [first]
    assert EVA in preview.body["skipped"][0]["reason"]
    await act(inventory, "unhold", held="yes", q=first)
    await inventory.deliver_own()
    left = await held(inventory)
    assert (left[first], left[second]) == ([BOB], [BOB])


async def test_filters_choose_as_lists_do_and_nothing_is_never_all(inventory: Inventory) -> None:
    await names(inventory)
    listed = await inventory.kit.query("list_machines", {"rack": ["r1"], "held": "no", "limit": 200})
    preview = await act(inventory, "hold", rack=["r1"], held="no", dry_run=True)
    assert sorted(m["name"] for m in preview.body["machines"]) == [item["name"] for item in listed.body["items"]]

    for wrong in ({}, {"machines": ["x"], "rack": ["r1"]}, {"held": "perhaps"}, {"machines": ["no-such-machine"]}):
        assert (await act(inventory, "hold", **wrong)).status == 422
    nothing = await act(inventory, "unhold", rack=["r1"], actor="user:nobody")
    assert (nothing.status, nothing.body["code"]) == (409, "bulk.nothing_to_do")


async def test_what_is_no_longer_possible_when_its_turn_comes_is_named_and_the_others_go_on(
    inventory: Inventory,
) -> None:
    first, second, *_ = await names(inventory)
    await act(inventory, "hold", machines=[first, second])
    await inventory.deliver_own()
    started = await act(inventory, "unhold", machines=[first, second])
    [hold] = [h for h in (await inventory.machine(first))["holds"] if h["owner"] == EVA]
    await inventory.kit.call("remove_hold", {"machine_id": first, "hold_id": hold["id"]}, actor=EVA)
    await inventory.deliver_own()

    operation = await inventory.kit.query("get_operation", {"operation_id": started.body["operation_id"]})
    result = operation.body["result"]
    assert [item["name"] for item in result["done"]] == [second]
    assert [(item["name"], item["problem"]["code"]) for item in result["failed"]] == [
        (first, "machine.no_hold_of_yours")
    ]


async def test_the_same_command_twice_is_one_hold(inventory: Inventory) -> None:
    first, *_ = await names(inventory)
    machine = await inventory.machine(first)
    command = ActOnMachine(
        machine_id=machine["id"], action=BulkAction.HOLD, reason="cabling", hold_id="hold-1", asked_by=EVA
    )
    for _ in range(2):
        reply = await inventory.kit.command(command)
        assert reply is not None and reply.outcome is Outcome.OK
    assert (await held(inventory))[first] == [EVA]
