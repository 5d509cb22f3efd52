"""Read events with credentials of `slipway subscribers create`. Needs nats-py, and nothing of Slipway.

    pip install nats-py
    python subscriber.py billing.json state.json

One line an event on standard output. `state.json` keeps which events were handled and the newest number of each
publisher: an event that comes again is left out, a number that is missing is told. Stop it, start it again: it goes on
where it was.
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
import nats.js.errors

BATCH = 50
REMEMBERED = 1000  # More than one batch: only what is not acknowledged yet can come again.
State = dict[str, Any]  # handled: the ids of the last events; numbers: publisher and tenant → highest and missing ones.


def load(path: Path) -> State:
    return json.loads(path.read_text()) if path.exists() else {"handled": [], "numbers": {}}


def save(path: Path, state: State) -> None:
    """Whole or not at all: a crash leaves the old file."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(state))
    os.replace(draft, path)


def handle(event: dict[str, Any]) -> None:
    """Your work. When it raises, the event is not acknowledged and comes again, after others that came meanwhile."""
    print(json.dumps({"id": event["id"], "type": event["type"], "subject": event["subject"]}), flush=True)


def take(event: dict[str, Any], state: State) -> None:
    """Handle an event once. By its id: one that comes again may be older than the newest number."""
    if event["id"] in state["handled"]:
        return  # The acknowledgement was lost, or we were started again.
    handle(event)
    state["handled"] = [*state["handled"], event["id"]][-REMEMBERED:]
    notice_gaps(event, state["numbers"])


def notice_gaps(event: dict[str, Any], numbers: dict[str, Any]) -> None:
    """Tell numbers that are missing before this event, once. One that only comes late is told when it comes.

    Numbers are gapless for each publisher and tenant. This only holds for whole services: a subscriber that filters by
    entity or event type sees numbers left out that are none of its business.
    """
    key, number = f"{event['tenant']} {event['source']}", int(event["tenantsequence"])
    known = numbers.setdefault(key, {"highest": number - 1, "missing": []})
    first, last = known["highest"] + 1, number - 1
    if first <= last:
        print(json.dumps({"gap": key, "first": first, "last": last}), flush=True)
        known["missing"] = [*known["missing"], *range(first, last + 1)][-REMEMBERED:]
    elif number in known["missing"]:
        known["missing"].remove(number)
        print(json.dumps({"late": key, "number": number}), flush=True)
    known["highest"] = max(known["highest"], number)


async def read(credentials: dict[str, str], path: Path) -> None:
    """Read until the connection is lost for good."""
    client = await nats.connect(
        credentials["server"],
        user=credentials["user"],
        password=credentials["password"],
        inbox_prefix=credentials["inbox_prefix"].encode(),
        max_reconnect_attempts=-1,
    )
    state = load(path)
    # Bind: these credentials may ask for the next events and acknowledge them, and nothing else.
    pull = await client.jetstream().pull_subscribe_bind(credentials["consumer"], credentials["stream"])
    try:
        while not client.is_closed:
            try:
                messages = await pull.fetch(BATCH, timeout=20)
            except TimeoutError:
                continue  # Nothing happened.
            for message in messages:
                take(json.loads(message.data), state)
            save(path, state)  # What is acknowledged must never be handled again: keep that first.
            # Confirmed, before the next batch: so no more than a batch can ever come again.
            await asyncio.gather(*(message.ack_sync() for message in messages))
    finally:
        await client.close()


async def main() -> None:
    credentials = json.loads(Path(sys.argv[1]).read_text())
    path = Path(sys.argv[2])
    while True:
        try:
            await read(credentials, path)
        except (nats.errors.Error, nats.js.errors.Error, OSError) as error:
            print(f"connection lost ({type(error).__name__}: {error}); trying again", file=sys.stderr)
        await asyncio.sleep(2)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
