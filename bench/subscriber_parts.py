"""The processes of events.ten_subscribers: `python -m bench.subscriber_parts ROLE …`.

`serve SETTINGS`: the subscription service. `read CREDENTIALS`: one program outside, with nats-py and its credentials
alone. `publish NATS COUNT FILE`: the peer's publisher.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import nats
from nats.js import JetStreamContext

from bench.event_parts import bare_publish
from bench.servers import figures_only, say
from libs.runtime.database import Database
from libs.runtime.migrations import migrate
from libs.runtime.service import App
from services.subscription.app import make_service
from services.subscription.settings import Settings

MODULE = "bench.subscriber_parts"
BATCH = 500
LOOK_SECONDS = 0.02
SILENCE_SECONDS = 1.0


async def serve(given: str) -> None:
    """The service as it runs in a deployment: makes the consumers, answers the broker who a subscriber is, measures."""
    figures_only()
    settings = Settings(**json.loads(given))
    database_url = settings.database_url.get_secret_value()
    await migrate(database_url, "subscription")
    app = App(make_service(settings), Database(database_url, application_name="bench"))
    running = asyncio.create_task(app.run())
    while app.outbox is None:  # noqa: ASYNC110 (the shell has no event for it, and this is once)
        await asyncio.sleep(LOOK_SECONDS)
    say(ready=True)
    await running


async def read(credentials: dict[str, Any]) -> None:
    """Take, parse, check and acknowledge events until the number that stdin says; then say when the last one was done.

    `numbered`: the event's own numbers must rise by one, repeats are left out. Ours are; the peer's are copies of one.
    """
    options: dict[str, Any] = {name: credentials[name] for name in ("user", "password") if name in credentials}
    if "inbox_prefix" in credentials:
        options["inbox_prefix"] = credentials["inbox_prefix"].encode()
    client = await nats.connect(credentials["server"], **options)
    js: JetStreamContext = client.jetstream()
    pull = await js.pull_subscribe_bind(credentials["consumer"], credentials["stream"])
    say(ready=True)
    told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    seen = repeated = 0
    while not (told.done() and seen >= int(told.result())):
        try:
            messages = await pull.fetch(BATCH, timeout=SILENCE_SECONDS)
        except TimeoutError:  # nats-py raises its own, a kind of this, and sometimes this itself.
            continue
        for message in messages:
            event = json.loads(message.data)
            number = int(event["sequence"]) if credentials["numbered"] else seen + 1
            if number > seen + 1:
                raise RuntimeError(f"event {number} came after {seen}")
            repeated += number <= seen
            seen = max(seen, number)
            await message.ack()
    ended = time.monotonic()
    await client.flush()
    say(ended=ended, repeated=repeated, cpu=time.process_time())
    await client.close()


def main() -> None:
    role, *rest = sys.argv[1:]
    match role:
        case "serve":
            asyncio.run(serve(rest[0]))
        case "read":
            asyncio.run(read(json.loads(rest[0])))
        case "publish":
            asyncio.run(bare_publish(rest[0], int(rest[1]), Path(rest[2]).read_bytes()))


if __name__ == "__main__":
    main()
