"""What crosses a site's link is what its permission list says (docs/architecture/bus.md), on two real servers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
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
from tests.conftest import eventually

MARK = "_INBOX.mark"  # Crosses in both directions; sent last, so that what was sent before it has come or never will.
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
    for base in range(28_000, 31_000, 20):
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
    var, ports = servers
    hub = await nats.connect(
        f"nats://127.0.0.1:{ports.hub}", user="services", password=nats_servers.secret(var, "nats-services")
    )
    site = await nats.connect(
        f"nats://127.0.0.1:{ports.leaf}", user="satellite", password=nats_servers.secret(var, f"nats-satellite-{SITE}")
    )
    yield Linked(hub, site)
    await site.close()
    await hub.close()


async def _crossing(sender: Client, receiver: Client, subjects: tuple[str, ...]) -> set[str]:
    """Which of `subjects`, published by `sender`, arrive at `receiver`."""
    arrived: set[str] = set()
    marks: set[bytes] = set()

    async def note(message: Msg) -> None:
        if message.subject == MARK:
            marks.add(message.data)
        else:
            arrived.add(message.subject)

    for subject in (*subjects, MARK):
        await receiver.subscribe(subject, cb=note)
    await receiver.flush()

    async def marked(mark: bytes) -> bool:
        await sender.publish(MARK, mark)
        await sender.flush()
        return mark in marks

    await eventually(lambda: marked(b"begin"), what="the link is up")
    for subject in subjects:
        await sender.publish(subject, b"")
    # In order behind the subjects: what has not arrived before this mark does not cross.
    await eventually(lambda: marked(b"end"), what="the mark crossed")
    return arrived


async def test_a_site_says_its_own_words_to_the_hub_and_no_others(linked: Linked) -> None:
    own = f"local.{SITE}.ironic.node.v1"
    assert await _crossing(linked.site, linked.hub, (*FOREIGN, own)) == {own}


async def test_a_site_overhears_nothing_of_the_hub(linked: Linked) -> None:
    assert await _crossing(linked.hub, linked.site, FOREIGN) == set()


async def test_a_site_can_neither_delete_nor_read_a_stream_of_the_hub(linked: Linked) -> None:
    await linked.hub.jetstream().add_stream(name="EVT_inventory", subjects=["evt.*.*.inventory.>"])
    await linked.hub.jetstream().add_stream(name=f"SITE_{SITE}", subjects=[f"site.{SITE}.>"])
    reach = linked.site.jetstream(domain="hub", timeout=1.0)
    assert (await reach.stream_info(f"SITE_{SITE}")).config.name == f"SITE_{SITE}"
    with pytest.raises(_UNHEARD):
        await reach.delete_stream("EVT_inventory")
    with pytest.raises(_UNHEARD):
        await reach.get_msg("EVT_inventory", 1)
    assert (await linked.hub.jetstream().stream_info("EVT_inventory")).config.name == "EVT_inventory"
