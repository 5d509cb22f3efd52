"""Read events with credentials of `slipway subscribers create`. Needs nats-py, and nothing of Slipway.

    pip install nats-py
    python subscriber.py billing.json state.json

One line an event on standard output. `state.json` keeps the newest number of each publisher: an event that comes again
is left out, a number that is missing is told. Stop it, start it again: it goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import nats
import nats.errors

BATCH = 50


def load(path: Path) -> dict[str, int]:
    return json.loads(path.read_text()) if path.exists() else {}


def save(path: Path, seen: dict[str, int]) -> None:
    """Whole or not at all: a crash leaves the old file."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(seen))
    os.replace(draft, path)


def handle(event: dict[str, Any]) -> None:
    """Your work. When it raises, the event is not acknowledged and comes again."""
    print(json.dumps({"id": event["id"], "type": event["type"], "subject": event["subject"]}), flush=True)


def take(event: dict[str, Any], seen: dict[str, int]) -> None:
    """Handle an event once, and notice what is missing before it.

    Numbers are gapless for each publisher and tenant. This only holds for whole services: a subscriber that filters by
    entity or event type sees numbers left out that are none of its business.
    """
    key = f"{event['tenant']} {event['source']}"
    number, last = int(event["tenantsequence"]), seen.get(key)
    if last is not None and number <= last:
        return  # It came again: the acknowledgement was lost, or we were started again.
    if last is not None and number > last + 1:
        print(json.dumps({"gap": key, "first": last + 1, "last": number - 1}), flush=True)
    handle(event)
    seen[key] = number


async def read(credentials: dict[str, str], state: Path) -> None:
    """Read until the connection is lost for good."""
    client = await nats.connect(
        credentials["server"],
        user=credentials["user"],
        password=credentials["password"],
        inbox_prefix=credentials["inbox_prefix"].encode(),
        max_reconnect_attempts=-1,
    )
    seen = load(state)
    # Bind: these credentials may ask for the next events and acknowledge them, and nothing else.
    pull = await client.jetstream().pull_subscribe_bind(credentials["consumer"], credentials["stream"])
    try:
        while not client.is_closed:
            try:
                messages = await pull.fetch(BATCH, timeout=20)
            except nats.errors.TimeoutError:
                continue  # Nothing happened.
            for message in messages:
                take(json.loads(message.data), seen)
            save(state, seen)  # What is acknowledged must never be handled again: keep that first.
            for message in messages:
                await message.ack()
    finally:
        await client.close()


async def main() -> None:
    credentials = json.loads(Path(sys.argv[1]).read_text())
    state = Path(sys.argv[2])
    while True:
        try:
            await read(credentials, state)
        except (nats.errors.Error, OSError) as error:
            print(f"connection lost ({error}); trying again", file=sys.stderr)
        await asyncio.sleep(2)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
