"""events.ten_subscribers: committed changes → outbox → JetStream → ten programs outside, each with its credentials.

The broker has a deployment's configuration, the subscription service makes the subscribers and signs them in, and each
is a process with nats-py that takes, parses and acknowledges. The peer's ten are the same program on a stream that bare
nats-py fills with as many copies of one of these events, on the same server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext, api

import bench.event_parts
from bench.event_parts import BARE, OWNER
from bench.rows import Row, load_note, pair_ratio
from bench.servers import Part, execute, part, postgres
from bench.subscriber_parts import MODULE
from deploy.local import nats_servers
from deploy.local.layout import Ports
from libs.bus.tables import bus_ddl
from libs.bus.topology import apply_hub, event_stream, load_topology
from libs.contracts.calls import Answer, Call
from libs.contracts.envelope import new_message_id
from libs.runtime.embedded import EmbeddedPostgres

SUBSCRIBERS = 10
WRITE_SECONDS, LONG_SECONDS = 15, 60
TOGETHER = 50  # As in events.end_to_end.
UNACKNOWLEDGED = 5000  # The most that a subscriber may ask for.
GOAL_RATIO = 0.5
PORTS_ABOVE_LOCAL = 420  # Beside the whole system's rows.
PATIENCE_SECONDS, LOOK_SECONDS = 30.0, 0.2


@dataclass(frozen=True)
class Broker:
    """A hub as deployed, and PostgreSQL."""

    postgres: EmbeddedPostgres
    var: Path
    ports: Ports

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self.ports.hub}"

    @property
    def url(self) -> str:
        """With the installation's own user."""
        return f"nats://services:{nats_servers.secret(self.var, 'nats-services')}@127.0.0.1:{self.ports.hub}"

    def settings(self) -> dict[str, Any]:
        """The subscription service's."""
        return {
            "nats_url": self.address,
            "nats_user": "subscription",
            "nats_password": nats_servers.secret(self.var, "nats-subscription"),
            "database_url": self.postgres.url("subscription"),
            "subscribers_issuer_seed": nats_servers.subscribers_seed(self.var),
        }


async def measure(folder: Path, seconds: int = WRITE_SECONDS) -> Sequence[Row]:
    """One pair: written for `seconds`, then everybody reads to the end."""
    with broker(folder) as made:
        client = await nats.connect(made.url)
        try:
            await apply_hub(client.jetstream(), load_topology(), ())
            own, count, note = await _ours(made, client, seconds)
            peer = await _bare(made, client, folder, count)
        finally:
            await client.close()
    value, peer_value, of_peer = pair_ratio([(own, peer)])
    return [
        Row(
            id="events.ten_subscribers",
            what=f"committed state changes ({TOGETHER} a transaction) → outbox → JetStream → each of {SUBSCRIBERS} "
            "subscribers outside, acknowledged",
            value=round(value),
            unit="events/s to each",
            goal=f">= {GOAL_RATIO} of bare, lag returns to 0",
            met=of_peer >= GOAL_RATIO,
            peer=f"bare nats-py: pipelined publish of as many, {SUBSCRIBERS} durable consumers, the same program reads",
            peer_value=round(peer_value),
            ratio=of_peer,
            note=f"written for {seconds} s; {note}; {load_note()}",
        )
    ]


@contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """Start both below `folder`."""
    with postgres(folder) as database, tempfile.TemporaryDirectory(dir=folder) as name:
        made = Broker(database, Path(name), Ports(Ports.from_environment().base + PORTS_ABOVE_LOCAL))
        server = nats_servers.hub(made.var, made.ports)
        process = server.start()
        try:
            yield made
        finally:
            process.stop()


async def _ours(made: Broker, client: Client, seconds: int) -> tuple[float, int, str]:
    """Events a second to each subscriber, how many there were, and how the lag went."""
    await execute(made.postgres.url(), "CREATE DATABASE bench", "CREATE DATABASE subscription")
    database_url = made.postgres.url("bench")
    schemas = [f"CREATE SCHEMA {name}" for name in (OWNER, bench.event_parts.READER)]
    await execute(database_url, *schemas, *bus_ddl(OWNER), *bench.event_parts.TABLES)
    async with part(MODULE, "serve", json.dumps(made.settings())):
        await _answers(client)
        found = [await _subscriber(client, made, f"reader-{number}") for number in range(SUBSCRIBERS)]
        produce = part(bench.event_parts.MODULE, "produce", made.url, database_url, str(seconds), str(TOGETHER))
        async with _readers(found) as readers, produce as writer:
            await writer.go()
            wrote = await writer.said()
            behind = await _behind(client.jetstream(), found)
            ended, repeated = await _all_read(readers, int(wrote["count"]))
        left = await _behind(client.jetstream(), found)
    if left or repeated:
        raise RuntimeError(f"{left} events are still to be taken or acknowledged, {repeated} were delivered twice")
    count = int(wrote["count"])
    rate = count / (wrote["committed"] - wrote["began"])
    note = f"{count} events, {rate:.0f}/s; then at most {behind} behind, 0 after {ended - wrote['committed']:.1f} s"
    return count / (ended - wrote["began"]), count, note


async def _bare(made: Broker, client: Client, folder: Path, count: int) -> float:
    """The same of the peer."""
    js = client.jetstream()
    sample = folder / "sample.json"
    sample.write_bytes((await js.get_last_msg(event_stream(OWNER), "evt.>")).data or b"")
    await js.add_stream(name=BARE, subjects=["bare.>"], duplicate_window=120)
    found = []
    for number in range(SUBSCRIBERS):
        config = api.ConsumerConfig(
            durable_name=f"bare_{number}", ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=UNACKNOWLEDGED
        )
        await js.add_consumer(BARE, config)
        found.append({"server": made.url, "stream": BARE, "consumer": f"bare_{number}", "numbered": False})
    publish = part(MODULE, "publish", made.url, str(count), str(sample))
    async with _readers(found) as readers, publish as writer:
        await writer.go()
        wrote = await writer.said()
        ended, _ = await _all_read(readers, count)
    return float(count / (ended - wrote["began"]))


async def _subscriber(client: Client, made: Broker, name: str) -> dict[str, Any]:
    """Make one as the API does, wait until its consumer is there; returns its credentials."""
    wanted = {"name": name, "subjects": [f"evt.*.*.{OWNER}.>"], "max_ack_pending": UNACKNOWLEDGED}
    body = await _ask(client, "call", "create_subscriber", wanted)
    async with asyncio.timeout(PATIENCE_SECONDS):
        state = "PENDING"
        while state != "ACTIVE":
            await asyncio.sleep(LOOK_SECONDS)
            state = (await _ask(client, "qry", "get_subscriber", {"id": body["id"]}))["state"]
    return {**body["credentials"], "server": made.address, "numbered": True}


async def _answers(client: Client) -> None:
    """Wait until the service has said at the broker what it answers."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(nats.errors.NoRespondersError):
                await _ask(client, "qry", "list_subscribers", {})
                return
            await asyncio.sleep(LOOK_SECONDS)


async def _ask(client: Client, kind: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Ask the service as the gateway does, for an operator. Raises RuntimeError when it refuses."""
    call = Call(name=name, actor="user:bench", correlation_id=new_message_id(), params=params)
    reply = await client.request(f"{kind}.subscription.{name}", call.model_dump_json().encode(), PATIENCE_SECONDS)
    answer = Answer.model_validate_json(reply.data)
    if answer.status >= 300 or not isinstance(answer.body, dict):
        raise RuntimeError(f"{name} was answered {answer.status}: {answer.body}")
    body: dict[str, Any] = answer.body
    return body


@asynccontextmanager
async def _readers(found: Sequence[dict[str, Any]]) -> AsyncIterator[list[Part]]:
    """A process for each of the credentials, ready."""
    async with AsyncExitStack() as stack:
        starting = [stack.enter_async_context(part(MODULE, "read", json.dumps(each))) for each in found]
        yield [await each for each in starting]


async def _all_read(readers: Sequence[Part], count: int) -> tuple[float, int]:
    """Tell all how many there are; when the last was done with its last one, and how many came twice."""
    for reader in readers:
        await reader.go(str(count))
    said = [await reader.said() for reader in readers]
    return max(each["ended"] for each in said), sum(each["repeated"] for each in said)


async def _behind(js: JetStreamContext, found: Sequence[dict[str, Any]]) -> int:
    """How many events the slowest has not taken and acknowledged, as the broker says."""
    most = 0
    for each in found:
        info = await js.consumer_info(each["stream"], each["consumer"])
        most = max(most, (info.num_pending or 0) + (info.num_ack_pending or 0))
    return most
