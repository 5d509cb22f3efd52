"""An inventory on its own database, with a NetBox twin behind the port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from libs.contracts.envelope import Envelope
from libs.contracts.inventory import MachineFacts
from libs.contracts.message import json_data
from libs.contracts.replies import Reply, ok
from libs.testing.kit import ServiceKit
from services.inventory import app as inventory_app
from services.inventory import periodic
from services.inventory.adapters.netbox_twin import NetBoxTwin
from tests.conftest import KitFactory
from tests.unit.services.inventory.machines import EVIDENCE, H100, inspection


@dataclass
class Inventory:
    """The service, its source, and what a site and validation would answer."""

    kit: ServiceKit
    netbox: NetBoxTwin

    async def read(self) -> None:
        """One round of the periodic reading of NetBox."""
        await periodic.read_source(self.kit.app)

    async def full_read(self) -> None:
        await self.kit.call("read_source")
        await self.read()

    async def machine(self, name: str) -> dict[str, Any]:
        answer = await self.kit.query("get_machine", {"machine_id": name})
        assert answer.status == 200, answer
        body: dict[str, Any] = answer.body
        return body

    async def facts(self, name: str) -> MachineFacts:
        return MachineFacts.model_validate(await self.machine(name))

    async def events(self, name: str) -> list[Envelope]:
        """Events whose type ends with `name`."""
        return [event for event in await self.kit.events() if event.type.endswith(name)]

    async def sent(self, name: str) -> list[Envelope]:
        return [command for command in await self.kit.sent() if command.type.endswith(name)]

    async def deliver_own(self) -> None:
        """Bring inventory's commands to itself, and its answers back to its sagas, until there are none left."""
        await self.kit.work_own()

    async def answer(self, name: str, reply: Reply | None = None, **data: Any) -> Envelope:
        """Answer the newest command of this name that was sent to others, then let inventory go on."""
        command = (await self.sent(name))[-1]
        await self.kit.reply(command, reply or ok(**data))
        await self.deliver_own()
        return command

    async def wipe_and_pass(self, verdict: str = "PASS") -> None:
        order = (await self.sent("ironic.sanitize"))[-1]
        await self.answer("ironic.sanitize", run_id=order.data["run_id"], evidence=EVIDENCE)
        suite = (await self.sent("validation.run_suite"))[-1]
        await self.answer("validation.run_suite", run_id=suite.data["run_id"], verdict=verdict, checks=[])

    async def enrol(self, name: str, **changes: Any) -> None:
        """Bring a machine from EXPECTED to AVAILABLE (or to where `changes` of its inspection lead)."""
        answer = await self.kit.call("enrol_machines", {"machines": [name]})
        assert answer.status == 202, answer
        await self.deliver_own()
        await self.answer("ironic.enrol", provision_state="manageable")
        found = {"serial": (await self.machine(name))["serial"], **changes}
        await self.answer("ironic.inspect", **json_data(inspection(**found)))
        if not changes:
            await self.wipe_and_pass()


@pytest.fixture
async def inventory(service_kit: KitFactory) -> AsyncIterator[Inventory]:
    kit = await service_kit(inventory_app.inventory())
    await inventory_app.start(kit.app)
    twin = NetBoxTwin()
    kit.app.state["source"] = twin
    yield Inventory(kit, twin)


__all__ = ["H100", "Inventory"]
