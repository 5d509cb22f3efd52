"""The peer of the event measurements: bare nats-py on the same server, no database, no order, no duplicates refused."""

from __future__ import annotations

import nats
from nats.js import api

from bench.event_parts import BARE, MODULE
from bench.servers import Servers, part
from libs.bus.topology import inbox_consumer


async def bare(made: Servers, count: int, size: int) -> float:
    """`count` messages of `size` bytes, pipelined publish and consumption side by side: messages a second."""
    await _stream(made)
    consume = part(MODULE, "bare_consume", made.nats_url, str(count))
    publish = part(MODULE, "bare_publish", made.nats_url, str(count), str(size))
    async with consume as reader, publish as writer:
        await writer.go()
        wrote, read = await writer.said(), await reader.said()
    return float(count / (read["ended"] - wrote["began"]))


async def bare_halves(made: Servers, count: int, size: int) -> tuple[float, float]:
    """The same one after the other: messages a second published, then taken and acknowledged."""
    await _stream(made)
    async with part(MODULE, "bare_publish", made.nats_url, str(count), str(size)) as writer:
        await writer.go()
        wrote = await writer.said()
    async with part(MODULE, "bare_consume", made.nats_url, str(count)) as reader:
        read = await reader.said()
    return count / (wrote["committed"] - wrote["began"]), count / (read["ended"] - read["began"])


async def _stream(made: Servers) -> None:
    client = await nats.connect(made.nats_url)
    js = client.jetstream()
    await js.add_stream(name=BARE, subjects=["bare.>"], duplicate_window=120)
    await js.add_consumer(BARE, durable(inbox_consumer("bare")))
    await client.close()


def durable(name: str) -> api.ConsumerConfig:
    return api.ConsumerConfig(durable_name=name, ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=20_000)
