"""A real NetBox with more than two thousand devices: read whole, taken in once, and a change seen by its webhook."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pynetbox
import pytest

from deploy.lab.interpreters import VAR, find_python
from deploy.lab.netbox import NetBoxLab, NetBoxPorts
from deploy.lab.netbox.instance import MINIMUM_PYTHON
from libs.runtime.processes import StartError
from libs.testing.kit import ServiceKit
from services.inventory import app as inventory_app
from services.inventory import periodic
from services.inventory.adapters.netbox import RestNetBox
from tests.conftest import KitFactory
from tests.contract.inventory.conftest import ROLES, free_ports

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]
MANY = 2000
SECRET = "a-secret-of-some-length"
NAME = "fra1-r1-gpu-01"


@pytest.fixture(scope="module")
def large_netbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetBoxLab]:
    """A real NetBox with its worker, the lab's fleet and two thousand devices more."""
    try:
        find_python(MINIMUM_PYTHON, VAR)
    except StartError as error:
        pytest.skip(str(error))
    http, postgres, redis = free_ports(3)
    folder = tmp_path_factory.mktemp("large") / "var"
    lab = NetBoxLab(folder, NetBoxPorts(http=http, postgres=postgres, redis=redis), with_worker=True, software=VAR)
    try:
        lab.start()
        lab.seed()
        lab.fill(MANY)
        yield lab
    finally:
        lab.stop()


@dataclass
class Hooks:
    """Where NetBox sends its webhooks; keeps what was signed rightly."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    badly_signed: int = 0


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            right = hmac.new(SECRET.encode(), body, hashlib.sha512).hexdigest()
            if self.headers.get("X-Hook-Signature") == right:
                received.bodies.append(json.loads(body))
            else:
                received.badly_signed += 1
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    received = Hooks(f"http://127.0.0.1:{server.server_port}/hooks/netbox")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield received
    server.shutdown()
    server.server_close()


@pytest.fixture
async def kit(service_kit: KitFactory, large_netbox: NetBoxLab) -> AsyncIterator[ServiceKit]:
    made = await service_kit(inventory_app.inventory())
    await inventory_app.start(made.app)
    lab = large_netbox
    made.app.state["source"] = RestNetBox(lab.url, lambda: lab.token, ROLES, timeout_seconds=120)
    yield made


def tell_of_changes(api: Any, hooks: Hooks) -> None:
    """What an operator sets up in NetBox."""
    webhook = api.extras.webhooks.create(name="Slipway", payload_url=hooks.url, http_method="POST", secret=SECRET)
    api.extras.event_rules.create(
        name="Slipway",
        object_types=["dcim.device", "dcim.interface", "ipam.ipaddress", "dcim.macaddress"],
        event_types=["object_created", "object_updated", "object_deleted"],
        action_type="webhook",
        action_object_type="extras.webhook",
        action_object_id=webhook.id,
    )


async def test_two_thousand_devices_are_taken_in_once_and_a_change_is_told_by_a_webhook(
    kit: ServiceKit, large_netbox: NetBoxLab, hooks: Hooks
) -> None:
    await periodic.read_source(kit.app)
    (source,) = (await kit.query("list_sources")).body["items"]
    assert source["healthy"] and source["devices_seen"] >= MANY + 13 and source["problems"] == []
    registered = len(await kit.events())
    await kit.call("read_source")
    await periodic.read_source(kit.app)
    assert [event.type for event in (await kit.events())[registered:]] == ["slipway.inventory.source.read"]

    api = pynetbox.api(large_netbox.url, token=large_netbox.token)
    tell_of_changes(api, hooks)
    device = api.dcim.devices.get(name=NAME)
    device.update({"asset_tag": "SLW-HOOK"})
    changed = time.monotonic()
    async with asyncio.timeout(60):
        while not hooks.bodies:
            await asyncio.sleep(0.02)
    (body,) = hooks.bodies
    assert hooks.badly_signed == 0 and body["data"]["id"] == device.id
    answer = await kit.call("netbox_hook", {"document": body})
    assert answer.body["read_again"] == [device.id]
    await periodic.follow_hints(kit.app)
    machine = (await kit.query("get_machine", {"machine_id": NAME})).body
    print(f"a change of one of {MANY} devices was known {time.monotonic() - changed:.2f} s after NetBox's answer")
    assert machine["asset_tag"] == "SLW-HOOK"

    port = next(iter(api.dcim.interfaces.filter(device=NAME, mgmt_only=True)))
    port.update({"description": "another cable"})
    async with asyncio.timeout(60):
        while len(hooks.bodies) < 2:
            await asyncio.sleep(0.02)
    answer = await kit.call("netbox_hook", {"document": hooks.bodies[1]})
    assert answer.body["read_again"] == [device.id]
