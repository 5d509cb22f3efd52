"""The hub's side of a link test: sends site commands and reads what comes back through OBS."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from deploy.lab.fleet import FLEET_FILE
from libs.contracts.envelope import Envelope, decode, new_message_id, now_utc
from libs.contracts.message import Message, json_data
from libs.contracts.replies import REPLY_TYPE, Reply
from libs.runtime.processes import Process
from libs.runtime.tasks import end_all
from tests.contract.site.nats_pair import SITE

SERVICE = "provisioning"


async def eventually(condition: Callable[[], bool], what: str, limit_seconds: float = 60.0) -> None:
    """Wait until `condition` holds; AssertionError naming `what` when it does not within the limit."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_seconds} s: {what}"
        await asyncio.sleep(0.02)


class HubSide:
    """Everything that arrived in OBS so far is in `seen`, in order."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._js = client.jetstream()
        self.seen: list[Envelope] = []
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, url: str) -> HubSide:
        return cls(await nats.connect(url))

    async def close(self) -> None:
        await end_all([self._reader])
        await self._client.close()

    async def _read(self) -> None:
        """Message by message, by number: no consumer that a restart of the server could lose."""
        number = 1
        while True:
            try:
                message = await self._js.get_msg("OBS", number)
            except (nats.errors.Error, nats.js.errors.APIError, OSError, TimeoutError):
                await asyncio.sleep(0.03)
                continue
            self.seen.append(decode(message.data or b""))
            number += 1

    async def send(self, command: Message, *, deadline: datetime | None = None, command_id: str = "") -> str:
        """Put a command for the site on its stream; returns its id."""
        envelope = self.envelope(command, deadline=deadline, command_id=command_id)
        await self._js.publish(command.message_type.subject(site=SITE), envelope.encode(), stream=f"SITE_{SITE}")
        return envelope.id

    @staticmethod
    def envelope(command: Message, *, deadline: datetime | None = None, command_id: str = "") -> Envelope:
        """The command as a service of the hub sends it."""
        return Envelope(
            id=command_id or new_message_id(),
            source=f"/slipway/{SERVICE}",
            type=command.message_type.type,
            dataschema=command.message_type.dataschema,
            time=now_utc(),
            subject=command.key(),
            correlationid="test",
            site=SITE,
            replyto=SERVICE,
            deadline=deadline,
            data=json_data(command),
        )

    async def send_bytes(self, payload: bytes) -> None:
        """Put any bytes on the site's stream."""
        await self._js.publish(f"site.{SITE}.ironic.enrol.v1", payload)

    def replies(self, command_id: str) -> list[Reply]:
        """The replies to one command so far."""
        return [
            Reply.model_validate(envelope.data)
            for envelope in self.seen
            if envelope.type == REPLY_TYPE and envelope.causationid == command_id
        ]

    async def reply(self, command_id: str, limit_seconds: float = 60.0) -> Reply:
        await eventually(lambda: bool(self.replies(command_id)), f"a reply to {command_id}", limit_seconds)
        return self.replies(command_id)[0]

    async def ask(self, command: Message, **how: object) -> Reply:
        return await self.reply(await self.send(command, **how))  # type: ignore[arg-type]

    def observed(self, name: str) -> list[dict[str, object]]:
        """The data of the observations of one type, e.g. "ironic.node"."""
        return [envelope.data for envelope in self.seen if envelope.type == f"slipway.observation.{name}"]


def simulated_satellite(folder: Path, leaf_url: str, *, name: str = "satellite", **settings: str) -> Process:
    """A satellite process on the simulated site; its faults are in `folder`/faults.json."""
    environment = {
        "SITE": SITE,
        "LEAF_NATS_URL": leaf_url,
        "SITE_ADAPTERS": "simulated",
        "STATE_DIR": str(folder / name),
        "FLEET_FILE": str(FLEET_FILE),
        "FAULTS_FILE": str(folder / "faults.json"),
        "SIMULATED_STEP_SECONDS": "0.2",
        "HEARTBEAT_SECONDS": "0.5",
        "POLL_SECONDS": "0.3",
        "LEASE_TTL_SECONDS": "3",
        "LOG_LEVEL": "debug",
        **settings,
    }
    return Process(
        name=name,
        argv=[sys.executable, "-m", "services.satellite.app"],
        var=folder,
        ready=lambda: True,
        env={f"SLIPWAY_{key}": value for key, value in environment.items()} | {"PYTHONPATH": os.getcwd()},
        cwd=Path(__file__).resolve().parents[3],
    )


def write_faults(folder: Path, faults: dict[str, object]) -> None:
    """Replace the simulated site's faults."""
    partial = folder / "faults.partial"
    partial.write_text(json.dumps(faults))
    partial.replace(folder / "faults.json")


def deployments(folder: Path, machine: str, name: str = "satellite") -> list[str]:
    """The claims for which the machine was physically deployed, one entry for each deployment."""
    import sqlite3

    database = sqlite3.connect(f"file:{folder / name / 'simulated-site.sqlite'}?mode=ro", uri=True)
    try:
        row = database.execute("SELECT body FROM machine WHERE name = ?", (machine,)).fetchone()
        return list(json.loads(row[0])["deployments"]) if row else []
    finally:
        database.close()
