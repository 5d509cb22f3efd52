"""What crosses a site's link is what its permission list says (docs/architecture/bus.md), on two real servers."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from deploy.local import nats_servers
from deploy.local.layout import SITE, Ports
from libs.bus.pull import Puller
from libs.bus.topology import SOURCING_CONSUMER, apply_hub, apply_site, load_topology, restore_sourcing_consumer
from tests.conftest import eventually

# What crosses, sent last: what was sent before it has come by then or never will.
TO_HUB, TO_SITE = f"sourced.{SITE}", f"$JS.FC.SAT_{SITE}.mark"
# A subject of each kind that a hostile or mistaken site might speak in, and the services' own that it might listen to.
FOREIGN = (
    "evt.fra1.-.inventory.machine.updated.v1",
    "cmd.inventory.accept_machine.v1",
    "cmd.reservation.reply.v1",
    f"obs.{SITE}.ironic.node.v1",
    f"obs.{SITE}.reply.inventory.v1",
    f"site.{SITE}.ironic.sanitize.v1",
    "site.other.ironic.deploy.v1",
    "local.other.ironic.node.v1",
    "qry.identity.resolve",
    "call.identity.create_grant",
    "dlq.inventory.x",
    "$JS.API.STREAM.DELETE.EVT_inventory",
    "$JS.hub.API.STREAM.DELETE.EVT_inventory",
    "$JS.hub.API.CONSUMER.MSG.NEXT.SITE_other.satellite",
    "$JS.hub.API.CONSUMER.MSG.NEXT.CMD_inventory.inventory_inbox",
    "$JS.ACK.CMD_inventory.inventory_inbox.1.1.1.1.1",
)


# How it shows that nobody at the hub heard a request.
_UNHEARD = (nats.errors.TimeoutError, nats.errors.NoRespondersError, nats.js.errors.ServiceUnavailableError)


@dataclass(frozen=True)
class Linked:
    """A client of the hub's services and one of the site's satellite."""

    hub: Client
    site: Client


def _free_block() -> Ports:
    """Begins at a place of the process's own: two that look at once would find the same block free."""
    blocks = range(28_000, 31_000, 20)
    first = os.getpid() % len(blocks)
    for base in (*blocks[first:], *blocks[:first]):
        ports = Ports(base)
        try:
            for port in (ports.hub, ports.hub_leaf_listen, ports.leaf, ports.hub_monitor):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return ports
    raise AssertionError("no free block of ports")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Ports]]:
    var, ports = tmp_path_factory.mktemp("leaf"), _free_block()
    hub = nats_servers.hub(var, ports).start()
    leaf = nats_servers.leaf(var, ports).start()
    yield var, ports
    leaf.stop()
    hub.stop()


@pytest.fixture
async def linked(servers: tuple[Path, Ports]) -> AsyncIterator[Linked]:
    async with _both(*servers) as linked:
        yield linked


async def _crossing(sender: Client, receiver: Client, mark_on: str, subjects: tuple[str, ...]) -> set[str]:
    """Which of `subjects`, published by `sender`, arrive at `receiver`."""
    arrived: set[str] = set()
    marks: set[bytes] = set()

    async def note(message: Msg) -> None:
        if message.subject == mark_on:
            marks.add(message.data)
        else:
            arrived.add(message.subject)

    for subject in (*subjects, mark_on):
        await receiver.subscribe(subject, cb=note)
    await receiver.flush()

    async def marked(mark: bytes) -> bool:
        await sender.publish(mark_on, mark)
        await sender.flush()
        return mark in marks

    await eventually(lambda: marked(b"begin"), what="the link is up")
    for subject in subjects:
        await sender.publish(subject, b"")
    # In order behind the subjects: what has not arrived before this mark does not cross.
    await eventually(lambda: marked(b"end"), what="the mark crossed")
    return arrived


async def test_of_what_a_site_says_the_hub_hears_what_is_handed_to_its_observations(linked: Linked) -> None:
    """Its own words are on its own stream, which the hub reads by way of `TO_HUB`; inboxes do not cross, either."""
    own = (f"local.{SITE}.ironic.node.v1", "_INBOX.guessed", "_INBOX_gateway.guessed")
    assert await _crossing(linked.site, linked.hub, TO_HUB, (*FOREIGN, *own)) == set()


async def test_a_site_overhears_nothing_of_the_hub(linked: Linked) -> None:
    assert await _crossing(linked.hub, linked.site, TO_SITE, (*FOREIGN, "_INBOX.guessed")) == set()


async def test_a_site_can_neither_delete_nor_read_a_stream_of_the_hub(linked: Linked) -> None:
    await _declared(linked)
    reach = linked.site.jetstream(domain="hub", timeout=1.0)
    await eventually(lambda: _reaches(linked), what="the link is up")
    assert (await reach.stream_info(f"SITE_{SITE}")).config.name == f"SITE_{SITE}"
    with pytest.raises(_UNHEARD):
        await reach.delete_stream("EVT_inventory")
    with pytest.raises(_UNHEARD):
        await reach.get_msg("EVT_inventory", 1)
    assert (await linked.hub.jetstream().stream_info("EVT_inventory")).config.name == "EVT_inventory"


async def _declared(linked: Linked) -> None:
    await apply_site(linked.site.jetstream(), load_topology(), SITE)
    await apply_hub(linked.hub.jetstream(), load_topology(), (SITE,))


async def _reaches(linked: Linked) -> bool:
    try:
        await linked.site.jetstream(domain="hub", timeout=1.0).stream_info(f"SITE_{SITE}")
    except _UNHEARD:
        return False
    return True


# Where the broker itself would put an answer if it were asked to, in the account of the hub.
REPLIES = (
    "evt.-.-.inventory.machine.updated.v1",
    "cmd.inventory.enrol_machine.v1",
    "site.other.ironic.deploy.v1",
    "call.identity.create_grant",
    "_INBOX_gateway.guessed",
    "$JS.API.STREAM.PURGE.EVT_inventory",
    "$JS.API.STREAM.DELETE.EVT_inventory",
    "$JS.API.CONSUMER.DELETE.CMD_inventory.inventory_inbox",
)


async def test_an_answer_stays_with_the_site_whatever_subject_it_names_for_it(linked: Linked) -> None:
    """The broker does not ask whether who names a subject for the answer may publish there, and an empty answer is a
    valid request to delete a stream."""
    await _declared(linked)
    await eventually(lambda: _reaches(linked), what="the link is up")
    js = linked.hub.jetstream()
    await js.publish("evt.-.-.inventory.thing.happened.v1", b"kept")
    await js.publish("cmd.inventory.thing.v1", b"kept")
    heard: list[str] = []

    async def note(message: Msg) -> None:
        heard.append(message.subject)

    for reply in REPLIES:
        await linked.hub.subscribe(reply, cb=note)
    await linked.hub.flush()
    nothing_there = b'{"batch":1,"no_wait":true}'
    for reply in REPLIES:
        await linked.site.publish(f"$JS.hub.API.CONSUMER.MSG.NEXT.SITE_{SITE}.satellite", nothing_there, reply=reply)
        await linked.site.publish(f"$JS.hub.API.STREAM.INFO.SITE_{SITE}", b"", reply=reply)
        await linked.site.publish(f"$JS.ACK.SITE_{SITE}.satellite.1.1.1.1.1", b"", reply=reply)
    assert await _reaches(linked), "answered in order: the answers before it were given"
    await linked.hub.flush()
    assert heard == []
    for stream in ("EVT_inventory", "CMD_inventory"):
        state = (await js.stream_info(stream)).state
        assert (state.messages, state.last_seq) == (1, 1)
    assert (await js.consumer_info("CMD_inventory", "inventory_inbox")).name == "inventory_inbox"


async def test_what_a_site_says_is_observed_and_what_it_is_told_is_taken_and_acknowledged(linked: Linked) -> None:
    await _declared(linked)
    await eventually(lambda: _reaches(linked), what="the link is up")
    js = linked.hub.jetstream()
    await js.publish(f"site.{SITE}.ironic.deploy.v1", b"told")
    async with Puller(linked.site, f"SITE_{SITE}", "satellite", domain="hub") as puller:
        (message,) = await puller.waiting(10)
        assert message.data == b"told"
        await message.ack()
        assert await puller.waiting(10) == []
    for number in range(300):
        await linked.site.jetstream().publish(f"local.{SITE}.ironic.node.v1", f"{number} ".encode() * 500)

    async def observed(count: int) -> bool:
        state = (await js.stream_info("OBS")).state
        consumer = await js.consumer_info(f"SITE_{SITE}", "satellite")
        return bool(state.messages == count and consumer.num_ack_pending == 0)

    await eventually(lambda: observed(300), within_seconds=30, what="all came, and the command is acknowledged")
    at_site = linked.site.jetstream()
    await at_site.delete_consumer(f"SAT_{SITE}", SOURCING_CONSUMER)
    await at_site.publish(f"local.{SITE}.ironic.node.v1", b"meanwhile")
    assert await restore_sourcing_consumer(at_site, SITE) and not await restore_sourcing_consumer(at_site, SITE)
    await eventually(lambda: observed(301), within_seconds=60, what="it goes on where it was, nothing twice")


@pytest.mark.slow
async def test_what_a_site_said_comes_again_when_the_hub_was_killed_or_lost_it(tmp_path: Path) -> None:
    ports = _free_block()
    hub, leaf = nats_servers.hub(tmp_path, ports).start(), nats_servers.leaf(tmp_path, ports).start()
    store = tmp_path / "nats" / "nats-hub" / "js" / "jetstream" / "HUB" / "streams" / "OBS"
    try:
        async with _both(tmp_path, ports) as linked:
            await _declared(linked)
            await _said(linked, 5)
            await eventually(lambda: _observations(linked, 5), within_seconds=30)
        hub.kill()
        shutil.copytree(store, tmp_path / "older")
        hub = nats_servers.hub(tmp_path, ports).start()
        async with _both(tmp_path, ports) as linked:
            await _said(linked, 20)  # While the link is not up yet.
            await eventually(lambda: _observations(linked, 25), within_seconds=60, what="nothing is left out")
        hub.kill()
        shutil.rmtree(store)
        (tmp_path / "older").rename(store)
        hub = nats_servers.hub(tmp_path, ports).start()
        async with _both(tmp_path, ports) as linked:
            await eventually(lambda: _observations(linked, 25), within_seconds=60, what="what was lost comes again")
    finally:
        leaf.stop()
        hub.stop()


@asynccontextmanager
async def _both(var: Path, ports: Ports) -> AsyncIterator[Linked]:
    hub = await nats.connect(
        f"nats://127.0.0.1:{ports.hub}", user="services", password=nats_servers.secret(var, "nats-services")
    )
    site = await nats.connect(
        f"nats://127.0.0.1:{ports.leaf}", user="satellite", password=nats_servers.secret(var, f"nats-satellite-{SITE}")
    )
    try:
        yield Linked(hub, site)
    finally:
        await site.close()
        await hub.close()


async def _said(linked: Linked, count: int) -> None:
    for _ in range(count):
        await linked.site.jetstream().publish(f"local.{SITE}.ironic.node.v1", b"seen")


async def _observations(linked: Linked, count: int) -> bool:
    return bool((await linked.hub.jetstream().stream_info("OBS")).state.messages == count)
