"""After a restore the versions of every entity can go on after those that others have seen."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import libs.contracts.all  # noqa: F401 - declares every message
from libs.bus.restore import Difference, Held, Lost, accept, entities_of
from libs.bus.tables import bus_tables
from libs.contracts.envelope import now_utc
from libs.contracts.inventory import ProfileFacts
from libs.contracts.message import Kind, registry
from libs.runtime.migrations import STATEFUL_SERVICES
from services.inventory import store
from services.inventory.app import service as inventory

# Written once and never changed: a number that was used in the lost future is not used again for the same thing, or
# the row itself carries it. `accept` names them among what people look at.
APPEND_ONLY = {
    "cost": {"price", "usage"},
    "audit": {"checkpoint", "hold", "removal", "retention"},
}


@pytest.mark.parametrize("name", STATEFUL_SERVICES)
def test_every_entity_of_a_service_has_a_version_that_can_be_raised(name: str) -> None:
    service = importlib.import_module(f"services.{name}.app").service
    kinds = {
        cls.message_type.entity
        for cls in registry().values()
        if cls.message_type.kind is Kind.EVENT and cls.message_type.group == name
    }
    known = entities_of(service.metadata, bus_tables(name).saga, service.entities)
    assert kinds - set(known) == APPEND_ONLY.get(name, set())


async def test_a_version_is_raised_in_the_column_and_in_the_document(service_kit: Any) -> None:
    kit = await service_kit(inventory)
    now = now_utc()
    facts = ProfileFacts.model_validate({"name": "p", "description": "", "device_types": ["d"], "version": 3})
    async with kit.database.transaction() as conn:
        await store.save_profile(conn, facts)
        await conn.exec_driver_sql(
            "INSERT INTO inventory.restore "
            "(epoch_before, epoch, own_last, stream_last, open_sagas, set_aside_messages) VALUES (1, 2, 5, 9, 0, 0)"
        )
    tables = entities_of(inventory.metadata, bus_tables("inventory").saga, inventory.entities)
    lost = {
        ("profile", "p"): Lost("profile", "p", "-", 4, 7, "updated", now),
        ("machine", "gone"): Lost("machine", "gone", "-", 1, 2, "registered", now),
    }

    async def park(conn: Any, why: str) -> int:
        return 0

    async with kit.database.transaction() as conn:
        held = Held(2, 5, 9, now, 0, 0)
        done = await accept(
            conn, "inventory", held, Difference(lost, {"acme": 4}), tables, park, actor="user:op", reason="test"
        )
        found = await store.profile(conn, "p")
        column = await conn.exec_driver_sql("SELECT version FROM inventory.profile WHERE name = 'p'")
        numbers = await conn.exec_driver_sql("SELECT tenant, last FROM inventory.tenant_sequence")
    assert (done.raised_versions, done.not_found) == (1, ["machine gone"])
    assert found is not None and found.version == 7 and column.scalar_one() == 7
    assert dict(numbers.all()) == {"*": 9, "acme": 4}
