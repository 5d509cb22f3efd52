"""Webhooks to a real receiver: signed, in order for each entity, tried again, disabled, replayed."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from libs.contracts.identity import TenantFacts, TenantUpdated
from tests.conftest import eventually
from tests.contract.subscription.conftest import World
from tests.contract.subscription.receiver import Receiver, receiving, signed_by

pytestmark = pytest.mark.asyncio(loop_scope="module")
_tenants = itertools.count(1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def tenant() -> str:
    """A tenant that no other test speaks of."""
    return f"tenant-{next(_tenants)}"


async def say(world: World, tenant: str, entity: str | None = None) -> str:
    facts = TenantFacts(id=tenant, organization_id="acme", name="x", version=1)
    return (await world.publisher.say(TenantUpdated(tenant=facts), entity or tenant, tenant=tenant)).id


async def webhook(world: World, tenant: str, url: str, **params: Any) -> dict[str, Any]:
    """A new webhook for identity's events (what is said about itself would come, too)."""
    asked = {"name": "hook", "tenant": tenant, "url": url, "services": ["identity"], **params}
    made = await world.call("create_webhook", (tenant,), **asked)
    assert made.status == 201, made.body
    body: dict[str, Any] = made.body
    return body


async def got(receiver: Receiver, ids: list[str], what: str = "") -> None:
    async def all_here() -> bool:
        return receiver.ids == ids

    await eventually(all_here, within_seconds=30, what=what or f"{ids}; got {receiver.ids}")


async def shows(world: World, webhook_id: str, **wanted: Any) -> dict[str, Any]:
    """The webhook, when it has these values."""
    body: dict[str, Any] = {}

    async def so() -> bool:
        body.update((await world.query("get_webhook", id=webhook_id)).body)
        return all(body[name] == value for name, value in wanted.items())

    await eventually(so, within_seconds=30, what=f"{wanted}")
    return body


async def test_events_come_in_order_signed_and_without_the_numbers_of_others(
    world: World, receiver: Receiver, tenant: str
) -> None:
    made = await webhook(world, tenant, receiver.url)
    await say(world, "somebody-else")
    said = [await say(world, tenant) for _ in range(5)]
    await got(receiver, said)
    first = receiver.got[0]
    assert first.headers["content-type"].startswith("application/cloudevents+json")
    assert first.headers["webhook-id"] == first.event["id"]
    assert [int(one.event["tenantsequence"]) for one in receiver.got] == [1, 2, 3, 4, 5]
    assert "sequence" not in first.event
    assert all(signed_by(one, made["signing_key"]) for one in receiver.got)
    assert not signed_by(first, "whsec_" + "A" * 43 + "=")
    await shows(world, made["id"], delivered=5, waiting=0, caught_up=True)


async def test_a_key_pair_signs_so_that_the_receiver_has_no_secret(
    world: World, receiver: Receiver, tenant: str
) -> None:
    made = await webhook(world, tenant, receiver.url, signature="ed25519")
    assert made["signing_key"].startswith("whpk_")
    await got(receiver, [await say(world, tenant)])
    assert signed_by(receiver.got[0], made["signing_key"])


async def test_what_fails_is_tried_again_in_its_entitys_order_and_others_flow(
    world: World, receiver: Receiver, tenant: str
) -> None:
    refused = itertools.count()
    receiver.answer = lambda event: 500 if event["subject"] == "sick" and next(refused) < 2 else 204
    made = await webhook(world, tenant, receiver.url)
    said = [(entity, await say(world, tenant, entity)) for entity in ("sick", "well", "sick", "well", "sick")]

    async def all_here() -> bool:
        return len(receiver.got) == len(said)

    await eventually(all_here, within_seconds=30)
    for entity in ("sick", "well"):
        here = [one.event["id"] for one in receiver.got if one.event["subject"] == entity]
        assert here == [id_ for of, id_ in said if of == entity]
    assert receiver.got[-1].event["subject"] == "sick"
    await shows(world, made["id"], failures=0, waiting=0, delivered=5)


async def test_nothing_is_lost_while_the_receiver_is_away(world: World, receiver: Receiver, tenant: str) -> None:
    receiver.answer = lambda event: 503
    made = await webhook(world, tenant, receiver.url)
    said = [await say(world, tenant, f"e{number}") for number in range(40)]

    async def failing() -> bool:
        return bool((await world.query("get_webhook", id=made["id"])).body["failures"] >= 3)

    await eventually(failing, within_seconds=30)
    tried = len(receiver.tried)
    assert (await world.query("get_webhook", id=made["id"])).body["last_error"].startswith("answered 503")
    assert tried < 30  # It is not asked with everything that there is.
    receiver.answer = lambda event: 204

    async def all_here() -> bool:
        return sorted(receiver.ids) == sorted(said)

    await eventually(all_here, within_seconds=60)
    assert len(receiver.ids) == len(set(receiver.ids))


async def test_an_event_that_never_gets_through_is_given_up_listed_and_can_be_tried_again(
    world: World, receiver: Receiver, tenant: str
) -> None:
    receiver.answer = lambda event: 400 if event["subject"] == "poison" else 204
    made = await webhook(world, tenant, receiver.url)
    poison = await say(world, tenant, "poison")
    numbers = itertools.count()

    async def given_up() -> bool:  # Others get through meanwhile: it is not the receiver that fails.
        await say(world, tenant, f"fine-{next(numbers)}")
        return bool((await world.query("get_webhook", id=made["id"])).body["given_up"] == 1)

    await eventually(given_up, within_seconds=40)
    await shows(world, made["id"], state="ACTIVE")
    listed = (await world.query("list_deliveries", (tenant,), id="hook", state=["GIVEN_UP"])).body["items"]
    assert [(one["message_id"], one["status"], one["attempts"]) for one in listed] == [
        (poison, 400, listed[0]["attempts"])
    ]
    assert listed[0]["attempts"] >= world.settings.webhook_attempts
    assert listed[0]["error"] == "answered 400: no"
    receiver.answer = lambda event: 204
    again = await world.call("retry_delivery", (tenant,), id="hook", delivery_id=listed[0]["id"])
    assert again.status == 202

    async def here() -> bool:
        return poison in receiver.ids

    await eventually(here, within_seconds=30)
    assert (await world.call("retry_delivery", (tenant,), id="hook", delivery_id=listed[0]["id"])).status == 409


async def test_a_receiver_that_is_gone_is_disabled_with_notice_and_goes_on_when_enabled(
    world: World, receiver: Receiver, tenant: str
) -> None:
    receiver.answer = lambda event: 410
    made = await webhook(world, tenant, receiver.url)
    said = [await say(world, tenant)]
    body = await shows(world, made["id"], state="DISABLED")
    assert "410" in body["problem"]
    told = [json.loads(m.data) for m in await _all_events(world)]
    assert [e["tenant"] for e in told if e["type"] == "slipway.subscription.webhook.disabled"][-1] == tenant
    said.append(await say(world, tenant))
    receiver.answer = lambda event: 204
    assert (await world.call("enable_webhook", (tenant,), id="hook")).body["state"] == "ACTIVE"
    await got(receiver, said)


async def _all_events(world: World) -> list[Any]:
    js = world.bus.jetstream()

    async def told() -> bool:
        last = await js.get_last_msg("EVT", "evt.*.*.subscription.>")
        return b"webhook.disabled" in (last.data or b"")

    await eventually(told, within_seconds=30, what="the event is published")
    return [await js.get_last_msg("EVT", "evt.*.*.subscription.>")]


async def test_paused_it_sends_nothing_but_a_ping_and_then_goes_on(
    world: World, receiver: Receiver, tenant: str
) -> None:
    made = await webhook(world, tenant, receiver.url)
    assert (await world.call("pause_webhook", (tenant,), id="hook")).body["state"] == "PAUSED"
    said = await say(world, tenant)
    pinged = await world.call("test_webhook", (tenant,), id="hook")

    async def ponged() -> bool:
        found = await world.query("get_delivery", (tenant,), id="hook", delivery_id=pinged.body["delivery_id"])
        return bool(found.body["state"] == "DELIVERED")

    await eventually(ponged, within_seconds=30)
    assert [one.event["type"] for one in receiver.got] == ["slipway.subscription.ping"]
    assert signed_by(receiver.got[0], made["signing_key"])
    receiver.got.clear()
    await world.call("enable_webhook", (tenant,), id="hook")
    await got(receiver, [said])


async def test_a_new_key_replaces_the_old_one_with_or_without_a_grace(
    world: World, receiver: Receiver, tenant: str
) -> None:
    first = (await webhook(world, tenant, receiver.url))["signing_key"]
    rotated = await world.call("rotate_webhook", (tenant,), id="hook", grace_seconds=60)
    second = rotated.body["signing_key"]
    said = [await say(world, tenant)]
    await got(receiver, said)
    assert signed_by(receiver.got[0], first)
    assert signed_by(receiver.got[0], second)
    third = (await world.call("rotate_webhook", (tenant,), id="hook")).body["signing_key"]
    said.append(await say(world, tenant))
    await got(receiver, said)
    assert [signed_by(receiver.got[1], key) for key in (first, second, third)] == [False, False, True]


async def test_events_are_sent_again_from_an_instant_or_behind_a_number(
    world: World, receiver: Receiver, tenant: str
) -> None:
    await webhook(world, tenant, receiver.url)
    said = [await say(world, tenant) for _ in range(3)]
    await got(receiver, said)
    assert (await world.call("replay_webhook", (tenant,), id="hook", service="identity", after=1)).status == 202
    await got(receiver, said + said[1:])
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert (await world.call("replay_webhook", (tenant,), id="hook", begin=past)).status == 202
    await got(receiver, said + said[1:] + said)


async def test_a_slow_receiver_harms_no_other(world: World, receiver: Receiver, tenant: str) -> None:
    release = threading.Event()
    with receiving() as slow:

        def stall(event: dict[str, Any]) -> int:
            release.wait(30)
            return 204

        slow.answer = stall
        await webhook(world, tenant, slow.url, name="slow")
        await webhook(world, tenant, receiver.url, name="fast")
        said = [await say(world, tenant, f"e{number}") for number in range(10)]

        async def all_here() -> bool:
            return sorted(receiver.ids) == sorted(said)

        await eventually(all_here, within_seconds=30)
        assert slow.got == []
        await world.call("delete_webhook", (tenant,), id="slow")
        release.set()


async def test_another_replica_goes_on_when_the_first_is_gone(world: World, receiver: Receiver, tenant: str) -> None:
    made = await webhook(world, tenant, receiver.url)
    said = [await say(world, tenant)]
    await got(receiver, said)
    async with world.app.read() as conn:  # As if the holder had been killed and its lease had run out.
        await conn.execute(
            text("UPDATE subscription.lease SET holder = 'gone', expires_at = '-infinity' WHERE name = :n"),
            {"n": f"webhook:{made['id']}"},
        )
    said += [await say(world, tenant) for _ in range(3)]
    await got(receiver, said)


async def test_a_gap_is_sent_as_a_gap(world: World, receiver: Receiver, tenant: str) -> None:
    made = await webhook(world, tenant, receiver.url)
    said = [await say(world, tenant)]
    await got(receiver, said)
    await world.call("pause_webhook", (tenant,), id="hook")
    await shows(world, made["id"], state="PAUSED")
    await say(world, tenant)
    js = world.bus.jetstream()
    lost = await js.get_last_msg("EVT_identity", f"evt.*.{tenant}.identity.>")

    async def gathered() -> bool:
        return (await js.get_last_msg("EVT", f"evt.*.{tenant}.identity.>")).data == lost.data

    await eventually(gathered)
    await js.delete_msg("EVT", int((await js.get_last_msg("EVT", f"evt.*.{tenant}.identity.>")).seq or 0))
    after = await say(world, tenant)
    await world.call("enable_webhook", (tenant,), id="hook")

    async def both() -> bool:
        return len(receiver.got) == 3

    await eventually(both, within_seconds=30)
    gap = next(one.event for one in receiver.got if one.event["type"] == "slipway.subscription.gap")
    assert gap["data"] == {"of": f"{tenant}/identity", "first": 2, "last": 2}
    assert after in receiver.ids


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"url": "ftp://example.com/x"}, "https"),
        ({"url": "https://user:pw@example.com/x"}, "user or a password"),
        ({"url": "https://10.0.0.1/x"}, "not a public address"),
        ({"url": "https://169.254.169.254/latest/meta-data"}, "not a public address"),
        ({"url": "https://[::ffff:10.0.0.1]/x"}, "not a public address"),
        ({"url": "https://[fd00::1]/x"}, "not a public address"),
        ({"url": "https:///x"}, "names no host"),
        ({"services": ["weather"]}, "must be one of"),
        ({"signature": "rot13"}, "hmac"),
    ],
)
async def test_bad_input_is_refused_by_name(world: World, params: dict[str, Any], words: str) -> None:
    asked = {"name": "bad", "tenant": "acme-research", "url": "https://example.com/x", **params}
    answer = await world.call("create_webhook", ("acme-research",), **asked)
    assert answer.status == 422
    assert words in json.dumps(answer.body)


async def test_another_tenants_webhook_answers_like_one_that_does_not_exist(
    world: World, receiver: Receiver, tenant: str
) -> None:
    made = await webhook(world, tenant, receiver.url)
    for name in ("get_webhook", "list_deliveries"):
        assert (await world.query(name, ("other",), id=made["id"])).status == 404
    for name in ("test_webhook", "delete_webhook", "rotate_webhook", "pause_webhook"):
        assert (await world.call(name, ("other",), id=made["id"])).status == 404
