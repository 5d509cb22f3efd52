"""Read a stream from a sequence on, without leaving anything behind at the broker."""

from __future__ import annotations

from datetime import datetime

from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from libs.bus.pull import Puller, client_of

BATCH = 500
INACTIVE_SECONDS = 30
_ACKNOWLEDGE = ["$JS", "ACK"]


async def open_reader(js: JetStreamContext, stream: str, start: int, *, since: datetime | None = None) -> Puller:
    """A puller of an ephemeral consumer over a stream, from sequence `start` or from what was stored at `since` on."""
    config = api.ConsumerConfig(
        deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=max(start, 1),
        ack_policy=api.AckPolicy.NONE,
        inactive_threshold=INACTIVE_SECONDS,
        mem_storage=True,
    )
    if since is not None:
        config.deliver_policy, config.opt_start_seq = api.DeliverPolicy.BY_START_TIME, None
        config.opt_start_time = since
    made = await js.add_consumer(stream, config)
    return Puller(client_of(js), stream, made.name, batch=BATCH)


def place(message: Msg) -> int:
    """The message's sequence in its stream. What `metadata` says, without parsing the rest of it for each message."""
    tokens = message.reply.split(".", 8)
    if tokens[:2] != _ACKNOWLEDGE or len(tokens) < 9:
        return int(message.metadata.sequence.stream)  # Raises what nats-py says of a message that is of no stream.
    # $JS.ACK.<stream>.<consumer>.<delivered>.<place>.…, with a domain and an account before the stream since ADR-15.
    return int(tokens[7] if "." in tokens[8] else tokens[5])
