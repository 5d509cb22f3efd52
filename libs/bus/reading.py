"""Read a stream from a sequence on, without leaving anything behind at the broker."""

from __future__ import annotations

from datetime import datetime

from nats.js import JetStreamContext, api

from libs.bus.pull import Puller, client_of

BATCH = 500
INACTIVE_SECONDS = 30


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
