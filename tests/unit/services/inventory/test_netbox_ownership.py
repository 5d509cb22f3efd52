"""The table of owners, and that nothing can be written past it."""

from __future__ import annotations

import pytest

from libs.contracts.inventory import MachineFacts
from services.inventory.adapters.netbox_fields import CUSTOM_FIELDS
from services.inventory.adapters.source import Write
from services.inventory.model.ownership import FIELDS, IDENTITY, WRITABLE, Owner, ownership
from services.inventory.model.source import SourceDevice, written_fields
from tests.unit.services.inventory.machines import machine


def test_every_field_has_one_row_and_everything_that_is_read_or_written_has_an_owner() -> None:
    names = [row.field for row in FIELDS]
    assert len(set(names)) == len(names)
    read = set(SourceDevice.__dataclass_fields__) - {"key", "netbox_id", "rack_id", "machine_id", "owned"}
    assert read <= set(names)
    assert set(written_fields(machine())) == set(WRITABLE) == {name for name, _, _ in CUSTOM_FIELDS}
    assert set(names) - set(MachineFacts.model_fields) == {"status", "presence"}


def test_identity_is_what_passes_to_slipway_when_a_machine_is_enrolled() -> None:
    assert IDENTITY == ("serial", "site", "device_type")
    for name in IDENTITY:
        assert ownership(name).owner_of(enrolled=False) is Owner.NETBOX
        assert ownership(name).owner_of(enrolled=True) is Owner.SLIPWAY


@pytest.mark.parametrize("field", ["serial", "status", "name", "owner", "role"])
def test_a_write_of_what_netbox_owns_can_not_be_made(field: str) -> None:
    with pytest.raises(ValueError, match="NetBox owns it"):
        Write(1, {"slipway_state": "AVAILABLE", field: "x"})


@pytest.mark.parametrize("status", ["staged", "planned", "failed", "decommissioning", "inventory", "made-up"])
def test_a_status_that_completes_nothing_can_not_be_written(status: str) -> None:
    with pytest.raises(ValueError, match="NetBox owns it"):
        Write(1, {"slipway_state": "AVAILABLE"}, status=status)


@pytest.mark.parametrize("status", ["active", "offline"])
def test_the_ends_of_what_people_asked_for_can_be_written(status: str) -> None:
    assert Write(1, {"slipway_state": "AVAILABLE"}, status=status).status == status
