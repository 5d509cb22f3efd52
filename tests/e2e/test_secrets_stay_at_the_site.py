"""A rack is enrolled and its BMCs' passwords rotated on the running system; nothing outside the site's store shows one.

The simulated site: its machines' own memory is the BMCs', and the only place left out.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from slipway.client import Client
from slipway.models import Operation

from deploy.demo.people import signed_in
from deploy.demo.story import until
from deploy.local.layout import Ports
from deploy.local.stack import Stack
from libs.testing.secret_scan import in_database, in_files
from services.satellite.adapters.secret_file import FileSecrets
from services.satellite.rotation import PENDING

LIMIT_SECONDS = 600
PORT_BASE = 29000


def passwords(stack: Stack) -> dict[str, str]:
    """What the site's store holds now."""
    state = stack.var / "satellite"
    store = FileSecrets(state / "secrets", state / "secret-store.key")
    refs = asyncio.run(store.refs())
    assert not any(ref.startswith(PENDING) for ref in refs)
    return {ref: json.loads(store.get(ref))["password"] for ref in refs}


async def enrol_and_rotate(stack: Stack) -> dict[str, Any]:
    async with signed_in(stack) as people:
        machines = people.operator.machines

        async def known() -> bool:
            return len([machine async for machine in machines.list()]) > 0

        await until(known, 120, "the machines of the manifest")
        enrolled = await machines.enrol(racks=["r1"])
        await _ended(people.operator, enrolled.operation_id)
        would = await machines.rotate_credentials(racks=["r1"], dry_run=True)
        started = await machines.rotate_credentials(racks=["r1"])
        assert would.machines == started.machines
        operation = await _ended(people.operator, started.operation_id)
        assert operation.status == "SUCCEEDED", operation.raw
        shown = [machine async for machine in machines.list(rack="r1")]
        rotated = {machine["id"] for machine in operation.raw["result"]["rotated"]}
        assert {machine.id for machine in shown if machine.credentials_rotated_at} == rotated
        result: dict[str, Any] = operation.raw["result"]
        return result


async def _ended(client: Client, operation_id: str) -> Operation:
    async for operation in client.operations.watch(operation_id, every_seconds=0.5):
        if operation.final:
            return operation
    raise AssertionError("the operation was not followed to its end")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS)
def test_no_table_stream_log_or_journal_shows_a_password(repository: Path) -> None:
    stack = Stack(repository / "var" / "e2e-secrets", Ports(PORT_BASE), "sim")
    stack.down()
    shutil.rmtree(stack.var, ignore_errors=True)
    try:
        stack.up(lambda line: None)
        before = passwords(stack)
        result = asyncio.run(enrol_and_rotate(stack))
        after = passwords(stack)
        changed = {ref for ref in after if after[ref] != before[ref]}
        assert len(changed) == len(result["rotated"]) > 0
        assert result["old_opens"] == result["failed"] == []

        secrets = {*before.values(), *after.values()}
        database = stack.postgres.url("slipway")
        assert asyncio.run(in_database(database, secrets)) == []
        assert "audit.event" in str(asyncio.run(in_database(database, ["rotate_machine_credentials"])))
        for service in stack.services():
            service.stop()  # What they hold back is written now.
        assert in_files(stack.var, secrets, skip=lambda path: path.name.startswith("simulated-site.sqlite")) == []
        # What is no secret is found in all of these places: they were looked into, and can be read.
        told = {Path(path) for path in in_files(stack.var, ["bmc/fra1-r1-", "rotate_machine_credentials"])}
        assert any(path.suffix == ".blk" for path in told), "no stream"
        names = {path.name for path in told | set((stack.var / "log").iterdir())}
        assert {"journal.sqlite", "satellite.log", "inventory.log", "gateway.log"} <= names
    finally:
        stack.down()
