"""A machine in a list is told as the whole machine is, whatever release wrote its row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from libs.contracts.inventory import Health, Hold
from services.inventory.listed import listed_body
from services.inventory.model.machine import Machine
from services.inventory.queries import machine_body
from tests.unit.services.inventory import machines
from tests.unit.services.inventory.machines import START

MAKERS: tuple[Callable[[], Machine], ...] = (
    machines.machine,
    machines.sanitizing,
    machines.validating,
    machines.available,
    machines.claimed,
    machines.assigned,
    machines.releasing,
)
HELD = Hold(id="hold-1", owner="user:eva", reason="cabling", since=START)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"holds": (HELD,), "health": Health.SUSPECT},
        {"profile": None, "proof_after": START + timedelta(days=400)},
        {"credentials_rotated_at": START + timedelta(microseconds=7)},
    ],
    ids=["as it is", "held and sick", "proofs too old", "rotated"],
)
def test_a_row_is_told_as_the_machine_is(make: Callable[[], Machine], changes: dict[str, object]) -> None:
    machine = make().with_(**changes)

    assert listed_body(machine.model_dump(mode="json")) == machine_body(machine)


def test_what_an_older_release_did_not_write_has_its_default() -> None:
    machine = machines.available()
    stored = machine.model_dump(mode="json")
    required = {name for name, field in Machine.model_fields.items() if field.is_required()}
    kept = required | {"holds", "sanitised_at", "validated_at", "health", "profile"}
    old = {name: value for name, value in stored.items() if name in kept}

    assert listed_body(old) == machine_body(Machine.model_validate(old))
