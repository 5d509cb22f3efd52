"""A service's user at the broker can speak in nobody else's name (deploy/local/nats_users.py), on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from deploy.local import nats_servers
from deploy.local.layout import Ports
from deploy.local.nats_users import USERS, hears, publishes, secret_name
from libs.bus.pull import Puller
from libs.bus.topology import (
    EVENT_SERVICES,
    apply_hub,
    load_topology,
    restore_inbox_consumer,
    restore_satellite_consumer,
)
from tests.architecture.test_leaf_permissions import _free_block
from tests.conftest import eventually

OF = {name: f"evt.-.-.{name}.thing.happened.v1" for name in EVENT_SERVICES}
NOBODYS = (
    "obs.fra1.ironic.node.v1",
    "local.fra1.ironic.node.v1",
    "_INBOX_gateway.x",
    "$JS.API.STREAM.DELETE.EVT_cost",
    "$JS.API.STREAM.PURGE.EVT_cost",
    "$JS.API.STREAM.UPDATE.EVT_cost",
    "$JS.API.CONSUMER.DELETE.CMD_cost.cost_inbox",
    "$JS.API.STREAM.MSG.DELETE.EVT_cost",
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Ports]]:
    var, ports = tmp_path_factory.mktemp("users"), _free_block()
    server = nats_servers.hub(var, ports).start()
    yield var, ports
    server.stop()


@asynccontextmanager
async def signed_in(hub: tuple[Path, Ports], user: str, refusals: list[str] | None = None) -> AsyncIterator[Client]:
    var, ports = hub

    async def note(error: Exception) -> None:
        if refusals is not None:
            refusals.append(str(error))

    client = await nats.connect(
        f"nats://127.0.0.1:{ports.hub}",
        user=user,
        password=nats_servers.secret(var, secret_name(user)),
        inbox_prefix=f"_INBOX_{user}",
        error_cb=note,
    )
    try:
        yield client
    finally:
        await client.close()


async def heard(hub: tuple[Path, Ports], user: str, subjects: tuple[str, ...]) -> set[str]:
    """Which of `subjects`, published by `user`, anybody hears."""
    arrived: set[str] = set()

    async def note(message: Msg) -> None:
        arrived.add(message.subject)

    refusals: list[str] = []
    async with signed_in(hub, "services") as all_hearing, signed_in(hub, user, refusals) as client:
        for subject in subjects:
            await all_hearing.subscribe(subject, cb=note)
        await all_hearing.flush()

        async def all_judged() -> bool:
            # Again and again: nothing is acknowledged here, and the broker drops one in thousands on a new connection.
            for subject in subjects:
                await client.publish(subject, b"")
            await client.flush()
            await all_hearing.flush()
            return len(arrived) + len({text for text in refusals if "publish" in text.lower()}) >= len(subjects)

        await eventually(all_judged, what=f"every subject came or was refused: {arrived} {refusals}")
        return arrived


@pytest.mark.parametrize("user", USERS)
async def test_a_service_publishes_its_own_events_and_nobody_elses(hub: tuple[Path, Ports], user: str) -> None:
    own = {OF[user]} if user in OF else set()
    assert await heard(hub, user, (*OF.values(), *NOBODYS)) == own


async def test_only_those_that_work_with_sites_send_commands_to_them(hub: tuple[Path, Ports]) -> None:
    subject = "site.fra1.ironic.deploy.v1"
    may = {user for user in USERS if await heard(hub, user, (subject,))}
    assert may == {"inventory", "provisioning", "validation"}


async def test_only_the_gateway_asks_for_changes_and_a_service_asks_the_archive_alone(hub: tuple[Path, Ports]) -> None:
    subjects = ("call.identity.create_grant", "qry.identity.get_me", "qry.audit.archived")
    assert await heard(hub, "gateway", subjects) == set(subjects)
    assert await heard(hub, "cost", subjects) == {"qry.audit.archived"}


async def test_a_service_hears_neither_others_commands_nor_others_answers(hub: tuple[Path, Ports]) -> None:
    refusals: list[str] = []
    async with signed_in(hub, "cost", refusals) as client:
        for subject in ("cmd.>", "_INBOX.>", "_INBOX_gateway.>", "call.identity.*", "$SYS.REQ.USER.AUTH", ">"):
            await client.subscribe(subject)
        await client.flush()

        async def six() -> bool:
            return len(refusals) == 6

        await eventually(six, what=f"each is refused: {refusals}")


async def test_a_service_takes_from_its_own_durable_and_from_no_other(hub: tuple[Path, Ports]) -> None:
    async with signed_in(hub, "services") as admin:
        await apply_hub(admin.jetstream(), load_topology(), ("fra1",))
        await admin.publish("cmd.cost.x.v1", b"1")
        await admin.publish("cmd.identity.x.v1", b"1")
        await admin.flush()
    refusals: list[str] = []
    async with signed_in(hub, "cost", refusals) as client:
        async with Puller(client, "CMD_cost", "cost_inbox") as own:
            (message,) = await own.next_batch(60)
            assert message.data == b"1" and message.subject == "cmd.cost.x.v1"
            await message.ack()
        async with Puller(client, "CMD_identity", "identity_inbox") as foreign:
            assert await foreign.next_batch(0.5) == []
        assert any("cmd_identity" in text.lower() for text in refusals)


async def test_a_service_makes_its_own_durables_again_and_nobody_elses(hub: tuple[Path, Ports]) -> None:
    async with signed_in(hub, "services") as admin:
        js = admin.jetstream()
        await apply_hub(js, load_topology(), ("fra1",))
        for stream, durable in (("CMD_cost", "cost_inbox"), ("OBS", "cost_inbox"), ("SITE_fra1", "satellite")):
            await js.delete_consumer(stream, durable)
        refusals: list[str] = []
        async with signed_in(hub, "cost", refusals) as client:
            own = client.jetstream(timeout=20)
            assert await restore_inbox_consumer(own, "cost", "CMD_cost")
            assert await restore_inbox_consumer(own, "cost", "OBS")
            assert not await restore_inbox_consumer(own, "cost", "CMD_cost")
            foreign = client.jetstream(timeout=0.5)
            with pytest.raises(nats.errors.TimeoutError):
                await restore_inbox_consumer(foreign, "identity", "CMD_identity")
            with pytest.raises(nats.errors.TimeoutError):
                await restore_satellite_consumer(foreign, "SITE_fra1")
        async with signed_in(hub, "inventory") as client:
            assert await restore_satellite_consumer(client.jetstream(timeout=20), "SITE_fra1")


def test_every_service_with_events_has_a_user_and_no_list_allows_everything() -> None:
    assert set(USERS) == {*EVENT_SERVICES, "gateway"}
    for user in USERS:
        for subject in (*publishes(user), *hears(user)):
            assert subject not in (">", "$JS.>", "$JS.API.>", "evt.>", "_INBOX.>", "*.>"), (user, subject)
