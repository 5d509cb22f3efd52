"""Webhooks of NetBox at the operator door's port: signed or refused, one call on the bus, whatever they hold."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from libs.contracts.calls import Answer, Call
from tests.unit.services.gateway.conftest import Broker, Doors, Issuer, open_doors, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET, NEXT_SECRET = "a-secret-of-some-length", "the-next-secret-of-some-length"
PATH = "/hooks/netbox"
BODY = json.dumps({"event": "updated", "model": "device", "data": {"id": 41}}).encode()
TAKEN = Answer(status=202, body={"read_again": [41], "why": "device updated"})


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {
        "X-Hook-Signature": hmac.new(secret.encode(), body, hashlib.sha512).hexdigest(),
        "Content-Type": "application/json",
    }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hooked(broker: Broker, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    file = tmp_path_factory.mktemp("hook") / "secrets"
    file.write_text(f"{SECRET}\n{NEXT_SECRET}\n")
    async with open_doors(broker.url, issuer, answer_within_seconds=1.0, netbox_hook_secret_file=file) as doors:
        await until(lambda: not doors.gateway.problems())
        yield doors


@dataclass
class Inventory:
    """Inventory on the bus: what it was asked, and what it says (None: nothing)."""

    said: Answer | None = TAKEN
    calls: list[Call] = field(default_factory=list)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def on_the_bus(broker: Broker) -> AsyncIterator[Inventory]:
    bus, inventory = await nats.connect(broker.url), Inventory()

    async def respond(msg: Msg) -> None:
        inventory.calls.append(Call.model_validate_json(msg.data))
        if inventory.said is not None:
            await msg.respond(inventory.said.model_dump_json().encode())

    await bus.subscribe("call.inventory.netbox_hook", cb=respond)
    await bus.flush()
    yield inventory
    await bus.close()


@pytest.fixture
def inventory(on_the_bus: Inventory) -> Inventory:
    on_the_bus.said, on_the_bus.calls = TAKEN, []
    return on_the_bus


def counted(doors: Doors, outcome: str) -> float:
    return doors.registry.get_sample_value("slipway_netbox_hooks_total", {"outcome": outcome}) or 0.0


async def send(doors: Doors, body: bytes = BODY, headers: dict[str, str] | None = None) -> httpx.Response:
    return await doors.operator.post(PATH, content=body, headers=signed(body) if headers is None else headers)


@pytest.mark.parametrize("secret", [SECRET, NEXT_SECRET])
async def test_a_signed_webhook_is_one_call_of_inventory(hooked: Doors, inventory: Inventory, secret: str) -> None:
    answer = await send(hooked, headers=signed(BODY, secret))
    assert answer.status_code == 202 and answer.json()["read_again"] == [41], answer.text
    (call,) = inventory.calls
    assert (call.name, call.actor, call.tenants) == ("netbox_hook", "system:netbox", None)
    assert call.params == {"document": json.loads(BODY)}
    assert answer.headers["X-Correlation-Id"] == call.correlation_id


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Hook-Signature": ""},
        {"X-Hook-Signature": "0" * 128},
        {"X-Hook-Signature": "\xe9"},
        signed(BODY, "another-secret-of-some-length"),
        signed(BODY + b" "),
        {"Authorization": "Bearer x"},
    ],
)
async def test_what_is_not_signed_by_netbox_is_refused_counted_and_asks_nobody(
    hooked: Doors, inventory: Inventory, headers: dict[str, str]
) -> None:
    before = counted(hooked, "bad_signature")
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = await hooked.operator.post(PATH, content=BODY, headers=raw)
    assert answer.status_code == 401 and answer.json()["code"] == "gateway.bad_signature"
    assert SECRET not in answer.text and counted(hooked, "bad_signature") == before + 1 and inventory.calls == []


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"a":' * 3, b"\xff\xfe", b"null"])
async def test_a_signed_body_that_is_no_webhook_is_passed_on_as_nothing(
    hooked: Doors, inventory: Inventory, body: bytes
) -> None:
    inventory.said = Answer(status=202, body={"read_again": [], "why": "x"})
    answer = await send(hooked, body)
    assert answer.status_code == 202, answer.text
    assert inventory.calls[0].params["document"] in (None, [])


async def test_a_body_that_the_bus_can_not_carry_is_refused(hooked: Doors, inventory: Inventory) -> None:
    body = json.dumps({"data": "x" * 300_000}).encode()
    answer = await send(hooked, body)
    assert answer.status_code == 413 and inventory.calls == [] and counted(hooked, "body_too_large") >= 1


async def test_an_inventory_that_is_away_is_told_and_not_hidden(hooked: Doors, inventory: Inventory) -> None:
    inventory.said = None
    answer = await send(hooked)
    assert answer.status_code == 503 and answer.json()["code"] == "gateway.owner_unavailable"


@pytest.mark.parametrize("said", [Answer(status=503, body={"code": "service.paused"}), Answer(status=400)])
async def test_an_inventory_that_can_not_take_it_is_a_503(hooked: Doors, inventory: Inventory, said: Answer) -> None:
    inventory.said = said
    assert (await send(hooked)).status_code == 503


async def test_without_a_secret_there_is_no_such_path(doors: Doors) -> None:
    answer = await doors.operator.post(PATH, content=BODY, headers=signed(BODY))
    assert answer.status_code == 404 and "SLIPWAY_NETBOX_HOOK_SECRET_FILE" in answer.json()["next_step"]


async def test_the_tenant_door_has_no_such_path_and_nothing_is_to_be_read_there(hooked: Doors) -> None:
    assert (await hooked.tenant.post(PATH, content=BODY, headers=signed(BODY))).status_code == 404
    assert (await hooked.operator.get(PATH)).status_code == 405


@pytest.mark.parametrize("content", ["short\n", "", None])
async def test_a_secret_that_can_be_guessed_or_not_be_read_lets_nobody_in(
    broker: Broker, issuer: Issuer, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "secrets"
    if content is not None:
        file.write_text(content)
    settings: dict[str, Any] = {"netbox_hook_secret_file": file}
    async with open_doors(broker.url, issuer, **settings) as doors:
        await until(lambda: not doors.gateway.problems())
        answer = await doors.operator.post(PATH, content=BODY, headers=signed(BODY, "short"))
        assert answer.status_code == 404
