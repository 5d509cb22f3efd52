"""Machines as inventory would tell reservation about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from libs.contracts.envelope import Envelope
from libs.contracts.inventory import Hold, MachineFacts, MachineState, MachineUpdated
from libs.contracts.replies import Problem
from libs.testing.kit import make_event

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
PROFILE = "gpu-h100-8"


def machine(number: int, *, rack: str | None = None, **changes: Any) -> MachineFacts:
    """An AVAILABLE, eligible machine; eight to a rack unless said otherwise."""
    facts: dict[str, Any] = {
        "id": f"m{number:05}",
        "name": f"fra1-gpu-{number:05}",
        "site": "fra1",
        "rack": rack or f"r{number // 8:04}",
        "device_type": "dgx-h100",
        "role": "gpu-node",
        "profile": PROFILE,
        "state": MachineState.AVAILABLE,
        "eligible": True,
        "state_since": SINCE,
        "version": 5,
    }
    return MachineFacts(**{**facts, **changes})


def told(*machines: MachineFacts) -> list[Envelope]:
    """One event for each."""
    return [
        make_event(MachineUpdated(machine=each, changed=()), entity_id=each.id, entity_version=each.version)
        for each in machines
    ]


def quarantined(number: int, why: str) -> MachineFacts:
    reason = Problem(code="x", message=why)
    return machine(number, state=MachineState.QUARANTINED, eligible=False, reason=reason)


def on_hold(number: int) -> MachineFacts:
    hold = Hold(id="h1", owner="user:ops", reason="cable to be changed", since=SINCE)
    return machine(number, eligible=False, holds=(hold,))
