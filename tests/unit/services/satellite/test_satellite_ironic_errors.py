# ruff: noqa: E501  (messages as Ironic writes them)
"""Ironic's refusals are told apart by what they mean. Messages are from ironic/common/exception.py."""

from __future__ import annotations

import pytest

from services.satellite.adapters.ironic_errors import Why, refusal

NODE = "11111111-0000-4000-8000-000000000001"
INSTANCE = "22222222-0000-4000-8000-000000000002"


@pytest.mark.parametrize(
    ("status", "message", "why"),
    [
        (409, f"Node {NODE} is locked by host cond-2, please retry after the current operation is completed.", Why.BUSY),
        (409, f"Node {NODE} can not be updated while a state transition is in progress.", Why.BUSY),
        (409, f"Node {NODE} is associated with instance {INSTANCE}.", Why.NODE_ASSOCIATED),
        (
            409,
            f"Instance {INSTANCE} is already associated with a node, it cannot be associated with this other node {NODE}",
            Why.INSTANCE_ELSEWHERE,
        ),
        (409, "A port with MAC address 02:00:00:00:00:01 already exists.", Why.MAC_EXISTS),
        (409, f"A node with UUID {NODE} already exists.", Why.NODE_EXISTS),
        (409, "A node with name gpu-1 already exists.", Why.NODE_EXISTS),
        (409, "An allocation with name res-42 already exists.", Why.ALLOCATION_EXISTS),
        (409, "Something new", Why.CONFLICT),
        (403, f"Node {NODE} is protected and cannot be undeployed, rebuilt or deleted", Why.PROTECTED),
        (403, "Access was denied to the following resource: x", Why.DENIED),
        (400, f"The provide operation can't be performed on node {NODE} because it is retired.", Why.RETIRED),
        (400, 'The requested action "provide" can not be performed on node "g" while it is in state "cleaning".', Why.WRONG_STATE),
        (400, "Missing mandatory parameter", Why.INVALID),
        (401, "", Why.DENIED),
        (404, f"Node {NODE} could not be found.", Why.NOT_FOUND),
        (503, "Resource temporarily unavailable, please retry.", Why.BUSY),
        (500, "", Why.UNREACHABLE),
        (None, "connection refused", Why.UNREACHABLE),
    ],
)  # fmt: skip
def test_a_refusal_means_what_ironic_meant(status: int | None, message: str, why: Why) -> None:
    assert refusal(status, message).why is why
