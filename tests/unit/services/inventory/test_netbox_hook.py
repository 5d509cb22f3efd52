"""What a webhook points at, in every shape that NetBox has given it, and in shapes that it never would."""

from __future__ import annotations

from typing import Any

import pytest

from services.inventory.adapters.netbox_hook import hint_of

# As NetBox 4.1 sent it, cut to what matters; `prechange` is null for changes made by scripts and some bulk edits.
UPDATED: dict[str, Any] = {
    "event": "updated",
    "timestamp": "2024-12-11T21:46:43.439904+00:00",
    "model": "device",
    "username": "admin",
    "request_id": "072d20b9-0000-4000-8000-000000000790",
    "data": {"id": 41, "serial": "S0099", "status": {"value": "active", "label": "Active"}},
    "snapshots": {"prechange": None, "postchange": {"serial": "S0099", "status": "active", "tags": []}},
}
DEVICE = {"id": 41, "name": "gpu-0001"}


@pytest.mark.parametrize(
    "document",
    [
        UPDATED,
        {**UPDATED, "snapshots": None},
        {name: value for name, value in UPDATED.items() if name != "snapshots"},
        {**UPDATED, "object_type": "dcim.device"},
        {"event": "updated", "object_type": "dcim.device", "data": {"id": 41}},
        {**UPDATED, "event": "created"},
        {**UPDATED, "event": "deleted"},
        {**UPDATED, "event": "an event of a later release"},
        {"model": "interface", "event": "updated", "data": {"id": 7, "device": DEVICE}},
        {"object_type": "dcim.interface", "event": "deleted", "data": {"id": 7, "device": DEVICE}},
        {"model": "ipaddress", "data": {"id": 3, "assigned_object": {"id": 7, "device": DEVICE}}},
        {"object_type": "dcim.macaddress", "data": {"id": 3, "assigned_object": {"id": 7, "device": DEVICE}}},
    ],
)
def test_a_webhook_points_at_its_device(document: dict[str, Any]) -> None:
    assert hint_of(document).netbox_ids == (41,)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "device",
        7,
        {},
        {"model": None, "object_type": 5},
        {"model": "virtualmachine", "data": {"id": 41}},
        {"model": "x" * 10_000, "data": {"id": 41}},
        {"model": "device"},
        {"model": "device", "data": None},
        {"model": "device", "data": [{"id": 41}]},
        {"model": "device", "data": {"id": "41"}},
        {"model": "device", "data": {"id": True}},
        {"model": "device", "data": {"id": 0}},
        {"model": "device", "data": {"id": -1}},
        {"model": "device", "data": {"id": 2**63}},
        {"model": "device", "data": {"id": 1.0}},
        {"model": "interface", "data": {"id": 7, "device": 41}},
        {"model": "ipaddress", "data": {"id": 7, "assigned_object": None}},
    ],
)
def test_what_names_no_device_points_at_nothing_and_says_why(document: object) -> None:
    hint = hint_of(document)
    assert hint.netbox_ids == () and 0 < len(hint.why) < 200
