"""A subscriber gets its events and can do nothing else, on the broker's real configuration."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from sqlalchemy import text

from libs.contracts.identity import TenantFacts, TenantUpdated
from tests.conftest import eventually
from tests.contract.subscription.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
REFUSED = r"(?i)authorization"
ACME, GLOBEX = "acme-research", "globex-ml"
FOREIGN_SUBJECTS = (
    "evt.-.acme-research.identity.tenant.updated.v1",
    "cmd.inventory.enrol_machines.v1",
    "obs.fra1.ironic.node.v1",
    "site.fra1.ironic.deploy.v1",
    "qry.identity.resolve",
    "call.identity.create_grant",
    "$JS.API.STREAM.INFO.EVT",
    "$JS.API.STREAM.DELETE.EVT",
    "$JS.API.STREAM.MSG.GET.EVT",
    "$JS.API.DIRECT.GET.EVT",
    "$JS.API.CONSUMER.CREATE.EVT",
    "$JS.API.CONSUMER.NAMES.EVT",
    "$JS.API.CONSUMER.DELETE.EVT.{other}",
    "$JS.API.CONSUMER.MSG.NEXT.EVT.{other}",
    "$JS.API.CONSUMER.MSG.NEXT.CMD_identity.identity_inbox",
    "$JS.ACK.EVT.{other}.1.1.1.1.1",
    "$SYS.REQ.USER.AUTH",
)


async def say(world: World, tenant: str = ACME, name: str = "x") -> str:
    facts = TenantFacts(id=tenant, organization_id="acme", name=name, version=1)
    return (await world.publisher.say(TenantUpdated(tenant=facts), tenant, tenant=tenant)).id


async def signed_in(credentials: dict[str, Any], errors: list[str] | None = None) -> Client:
    async def note(error: Exception) -> None:
        if errors is not None:
            errors.append(str(error).lower())

    return await nats.connect(
        credentials["server"],
        user=credentials["user"],
        password=credentials["password"],
        inbox_prefix=credentials["inbox_prefix"].encode(),
        allow_reconnect=False,
        error_cb=note,
    )


async def taken(client: Client, credentials: dict[str, Any], count: int, *, ack: bool = True) -> list[str]:
    """The ids of the next `count` events."""
    pull = await client.jetstream().pull_subscribe_bind(credentials["consumer"], credentials["stream"])
    found: list[str] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            for message in await pull.fetch(count - len(found), timeout=20):
                found.append(json.loads(message.data)["id"])
                if ack:
                    await message.ack()
    await pull.unsubscribe()
    await client.flush()
    return found


async def test_a_tenants_subscriber_gets_its_events_in_order_and_no_other_tenants(world: World) -> None:
    credentials = await world.subscriber("reader", (ACME,), tenant=ACME)
    await say(world, GLOBEX)
    said = [await say(world) for _ in range(5)]
    client = await signed_in(credentials)
    assert await taken(client, credentials, 5) == said
    await client.close()


async def test_what_was_acknowledged_is_not_given_again_and_what_was_not_is(world: World) -> None:
    credentials = await world.subscriber("careful", (ACME,), tenant=ACME, ack_wait_seconds=1)
    said = [await say(world) for _ in range(3)]
    client = await signed_in(credentials)
    assert await taken(client, credentials, 1) == said[:1]
    assert await taken(client, credentials, 2, ack=False) == said[1:]
    await client.close()
    again = await signed_in(credentials)
    assert await taken(again, credentials, 2) == said[1:]
    await again.close()


async def test_it_can_do_nothing_else(world: World) -> None:
    other = await world.subscriber("other", (GLOBEX,), tenant=GLOBEX)
    mine = await world.subscriber("mine", (ACME,), tenant=ACME)
    errors: list[str] = []
    client = await signed_in(mine, errors)
    heard: list[str] = []
    for subject in ("evt.>", "cmd.>", "obs.>", "site.>", "qry.>", "call.>", "$JS.ACK.>", "_INBOX.>", ">"):
        before = len(errors)

        async def note(message: Any) -> None:
            heard.append(message.subject)

        await client.subscribe(subject, cb=note)
        await client.flush()
        await eventually(_grew(errors, before), what=f"subscribing to {subject} is refused")
    for subject in FOREIGN_SUBJECTS:
        before = len(errors)
        await client.publish(subject.format(other=other["consumer"]), b"{}", reply=f"{mine['inbox_prefix']}.x")
        await client.flush()
        await eventually(_grew(errors, before), what=f"publishing to {subject} is refused")
    assert heard == []
    assert all("permissions violation" in error for error in errors)
    await client.close()


def _grew(errors: list[str], before: int) -> Any:
    async def check() -> bool:
        return len(errors) > before

    return check


async def test_it_cannot_make_the_broker_speak_in_its_place(world: World) -> None:
    """The broker delivers to whatever reply subject a request names; it must not be one of the hub's."""
    credentials = await world.subscriber("deputy", (ACME,), tenant=ACME, ack_wait_seconds=1)
    said = await say(world)
    heard: list[str] = []

    async def note(message: Any) -> None:
        heard.append(message.subject)

    targets = ("cmd.inventory.enrol_machines.v1", "evt.-.-.inventory.machine.updated.v1", "obs.fra1.ironic.node.v1")
    listeners = [await world.bus.subscribe(target, cb=note) for target in targets]
    await world.bus.flush()
    client = await signed_in(credentials)
    for target in targets:
        request = json.dumps({"batch": 1, "expires": 200_000_000}).encode()
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.EVT.{credentials['consumer']}", request, reply=target)
        await client.flush()
    assert await taken(client, credentials, 1) == [said]  # The broker has answered all of them by now.
    await world.bus.flush()
    assert heard == []
    for listener in listeners:
        await listener.unsubscribe()
    await client.close()


@pytest.mark.parametrize("change", [{"password": "guess"}, {"user": "sbr-unknown"}, {"password": ""}])
async def test_wrong_credentials_are_refused(world: World, change: dict[str, str]) -> None:
    credentials = await world.subscriber(f"refused-{len(change['password']) if 'password' in change else 'u'}")
    with pytest.raises(nats.errors.Error, match=REFUSED):
        await signed_in({**credentials, **change})


async def test_new_credentials_end_the_old_at_once_and_keep_the_place(world: World) -> None:
    old = await world.subscriber("rotated", (ACME,), tenant=ACME)
    said = [await say(world) for _ in range(3)]
    client = await signed_in(old)
    assert await taken(client, old, 1) == said[:1]
    rotated = await world.call("rotate_subscriber", (ACME,), id="rotated")
    new = rotated.body["credentials"]
    await world.active(rotated.body["id"])
    with pytest.raises((nats.errors.TimeoutError, TimeoutError, nats.errors.Error)):
        await asyncio.wait_for(taken(client, old, 1), 3)  # Its connection still stands, its consumer is gone.
    with pytest.raises(nats.errors.Error, match=REFUSED):
        await signed_in(old)
    fresh = await signed_in(new)
    assert await taken(fresh, new, 2) == said[1:]
    await fresh.close()
    await client.close()


async def test_with_a_grace_both_passwords_are_good_until_it_ends(world: World) -> None:
    old = await world.subscriber("graceful", (ACME,), tenant=ACME)
    rotated = await world.call("rotate_subscriber", (ACME,), id="graceful", grace_seconds=3600)
    new = rotated.body["credentials"]
    assert new["consumer"] == old["consumer"]
    said = await say(world)
    first, second = await signed_in(old), await signed_in(new)
    assert await taken(first, old, 1) == [said]
    await first.close()
    await second.close()
    async with world.app.read() as conn:
        await conn.execute(
            text("UPDATE subscription.subscriber SET old_password_until = now() WHERE old_password_until > now()")
        )
    with pytest.raises(nats.errors.Error, match=REFUSED):
        await signed_in(old)


async def test_a_deleted_subscriber_gets_nothing_and_its_name_is_free_again(world: World) -> None:
    credentials = await world.subscriber("gone", (ACME,), tenant=ACME)
    client = await signed_in(credentials)
    deleted = await world.call("delete_subscriber", (ACME,), id="gone")
    assert deleted.body["state"] == "DELETED"

    async def no_consumer() -> bool:
        names = [info.name for info in await world.bus.jetstream().consumers_info("EVT")]
        return credentials["consumer"] not in names

    await eventually(no_consumer, within_seconds=30)
    await say(world)
    with pytest.raises((nats.errors.TimeoutError, TimeoutError, nats.errors.Error)):
        await asyncio.wait_for(taken(client, credentials, 1), 3)
    with pytest.raises(nats.errors.Error, match=REFUSED):
        await signed_in(credentials)
    assert (await world.query("get_subscriber", (ACME,), id="gone")).status == 404
    await world.subscriber("gone", (ACME,), tenant=ACME)
    await client.close()


async def test_a_consumer_that_the_broker_lost_is_made_again_where_it_stood(world: World) -> None:
    credentials = await world.subscriber("lost", (ACME,), tenant=ACME)
    said = [await say(world) for _ in range(2)]
    client = await signed_in(credentials)
    assert await taken(client, credentials, 1) == said[:1]

    async def measured() -> bool:
        return bool((await world.query("get_subscriber", (ACME,), id="lost")).body["acknowledged_at"])

    await eventually(measured, within_seconds=30, what="its place was measured")
    js = world.bus.jetstream()
    await js.delete_consumer("EVT", credentials["consumer"])

    async def made_again() -> bool:
        return credentials["consumer"] in [info.name for info in await js.consumers_info("EVT")]

    await eventually(made_again, within_seconds=30)
    got: list[str] = []
    async with asyncio.timeout(30):
        while said[1] not in got:  # Before it may come what it had already: at least once, never less.
            got += await taken(client, credentials, 1)
    await client.close()


async def test_a_list_shows_how_far_behind_each_is_and_when_it_was_seen(world: World) -> None:
    credentials = await world.subscriber("slow", (GLOBEX,), tenant=GLOBEX)
    for _ in range(4):
        await say(world, GLOBEX)
    client = await signed_in(credentials)
    await taken(client, credentials, 1)
    await client.close()

    async def shown() -> bool:
        body = (await world.query("get_subscriber", (GLOBEX,), id="slow")).body
        return bool(body["behind"] == 3 and body["last_seen_at"] and body["measured_at"])

    await eventually(shown, within_seconds=30)
    names = [item["name"] for item in (await world.query("list_subscribers", (GLOBEX,))).body["items"]]
    assert "slow" in names
    assert "reader" not in names  # Of another tenant.


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"subjects": ["evt.>"]}, "reaches beyond tenant"),
        ({"subjects": [f"evt.*.{GLOBEX}.>"]}, "reaches beyond tenant"),
        ({"subjects": ["cmd.inventory.>"]}, "only events"),
        ({"subjects": [f"evt.*.{ACME}.>", f"evt.*.{ACME}.identity.>"]}, "overlap"),
        ({"subjects": [f"evt.*.{ACME}.bad subject"]}, "is no subject"),
        ({"subjects": [f"evt.*.{ACME}.>.x"]}, "is no subject"),
        ({"max_ack_pending": 100_000}, "less than or equal to 5000"),
        ({"name": "Bad Name"}, "a-z"),
        ({"begin": "yesterday"}, "begin"),
    ],
)
async def test_bad_input_is_refused_by_name(world: World, params: dict[str, Any], words: str) -> None:
    answer = await world.call("create_subscriber", (ACME,), **{"name": "bad", "tenant": ACME, **params})
    assert answer.status == 422
    assert words in json.dumps(answer.body)


async def test_a_tenant_has_only_so_many(world: World) -> None:
    tenant = "small-tenant"
    small = world.settings.subscribers_per_tenant
    for number in range(small):
        assert (await world.call("create_subscriber", (tenant,), name=f"s{number}", tenant=tenant)).status == 201
    refused = await world.call("create_subscriber", (tenant,), name="one-more", tenant=tenant)
    assert (refused.status, refused.body["code"]) == (409, "subscriber.too_many")


async def test_a_repeated_request_makes_one_and_never_tells_the_password_again(world: World) -> None:
    asked = {"name": "repeated", "tenant": ACME, "idempotency_key": "key-1"}
    first, second = [await world.call("create_subscriber", (ACME,), **asked) for _ in range(2)]
    assert first.body["id"] == second.body["id"]
    assert first.body["credentials"]["password"]
    assert second.body["credentials"] is None
    async with world.app.read() as conn:
        kept = str((await conn.execute(text("SELECT answer::text FROM subscription.idempotency"))).all())
    assert first.body["credentials"]["password"] not in kept
