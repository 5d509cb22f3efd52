"""The processes of replay.million: `python -m bench.replay_parts ROLE NATS …`.

`fill`: publishes the events as a relay does, without outbox. `rebuild`: the service's rebuild job, alone in its
process. `bare`: takes messages of the same stream, and nothing else.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import nats
from nats.js import JetStreamContext

from bench.event_parts import OWNER, emit
from bench.servers import figures_only, say, told_to_go
from libs.bus.context import Context
from libs.bus.reading import open_reader
from libs.bus.topology import event_stream
from libs.contracts.envelope import sequence_text
from libs.contracts.inventory import MachineState
from libs.projection import Rebuild
from libs.runtime.broker import connect
from libs.runtime.collector import ease_collector
from libs.runtime.database import Database
from libs.runtime.settings import ServiceSettings
from services.reservation.projections import POOL

MODULE = "bench.replay_parts"
READER = "reservation"
MACHINES = 10_000
WINDOW = 1000  # Published before an acknowledgement is waited for; the server buffers 10,000.
LOOK_SECONDS = 0.1
LIMIT_SECONDS = 230.0


def template() -> tuple[str, bytes]:
    """An event's subject, and its bytes with places for id, sequence, machine and version (printf)."""
    ctx = Context(None, OWNER)  # type: ignore[arg-type]  # It only collects here.
    emit(ctx, "THE-MACHINE", 987_654_321, MachineState.AVAILABLE)
    row = ctx.outgoing[0]
    payload: bytes = row["payload"].replace(b"%", b"%%")
    payload = payload.replace(row["message_id"].encode(), b"%(id)s").replace(b"987654321", b"%(version)d")
    payload = payload.replace(b"THE-MACHINE", b"m%(machine)d")
    return row["subject"], payload[:-1] + b',"sequence":"%(sequence)s","tenantsequence":"%(sequence)s"}'


async def fill(nats_url: str, count: int) -> None:
    """Every machine in turn, each a version further every time round."""
    client = await nats.connect(nats_url)
    js: JetStreamContext = client.jetstream()
    subject, payload = template()
    say(ready=True)
    await told_to_go()
    for first in range(0, count, WINDOW):
        end = min(first + WINDOW, count)
        for number in range(first, end):
            id_ = f"{number:036d}"
            version, machine = divmod(number, MACHINES)
            sequence = sequence_text(number + 1).encode()
            values = {b"id": id_.encode(), b"version": version + 1, b"machine": machine, b"sequence": sequence}
            headers = {"Nats-Msg-Id": id_, "Nats-Expected-Last-Sequence": str(number)}
            publish = js.publish if number == end - 1 else client.publish
            await publish(subject, payload % values, headers=headers)
    say(done=True)
    await client.close()


async def rebuild(nats_url: str, database_url: str) -> None:
    """Rebuild the pool of machines and put it in the place of the live one, as a service does when it is told to."""
    client = await connect(ServiceSettings(nats_url=nats_url), READER)
    database = Database(database_url, application_name="bench-rebuild")
    job = Rebuild(READER, POOL, database, client.jetstream(), "bench")
    say(ready=True)
    await told_to_go()
    began, cpu = time.monotonic(), time.process_time()
    row: Mapping[str, Any] | None = await job.start("user:bench", swap=True)
    running = asyncio.create_task(job.run())
    while row is not None and row["state"] == "running" and time.monotonic() < began + LIMIT_SECONDS:
        await asyncio.sleep(LOOK_SECONDS)
        row = await job.status()
    ended = time.monotonic()
    running.cancel()
    assert row is not None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts it in KiB.
    say(
        began=began,
        ended=ended,
        state=row["state"],
        error=row["error"],
        events=row["events"],
        changes=row["changes"],
        mebibytes=most,
        cpu=time.process_time() - cpu,
    )


async def bare(nats_url: str, count: int) -> None:
    """Take the first `count` messages."""
    client = await nats.connect(nats_url)
    say(ready=True)
    await told_to_go()
    began, seen = time.monotonic(), 0
    async with await open_reader(client.jetstream(), event_stream(OWNER), 1) as reader:
        while seen < count:
            seen += len(await reader.next_batch(5.0))
    say(began=began, ended=time.monotonic(), count=seen)
    await client.close()


def main() -> None:
    role, nats_url, last = sys.argv[1:]
    figures_only()
    ease_collector()  # As a service does; the peer gains by it, too.
    match role:
        case "fill":
            asyncio.run(fill(nats_url, int(last)))
        case "rebuild":
            asyncio.run(rebuild(nats_url, last))
        case "bare":
            asyncio.run(bare(nats_url, int(last)))


if __name__ == "__main__":
    main()
