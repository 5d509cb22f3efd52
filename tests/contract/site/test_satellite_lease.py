"""The lease and the hub's clock, on a real JetStream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from libs.contracts.envelope import now_utc
from libs.runtime.embedded import EmbeddedNats
from services.satellite import hub_clock
from services.satellite.errors import LeaseLost
from services.satellite.lease import BUCKET, KEY, Lease


@pytest.fixture
async def client(nats_server: EmbeddedNats) -> AsyncIterator[Client]:
    client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
    try:
        yield client
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await client.jetstream().delete_stream(f"KV_{BUCKET}")
    finally:
        await client.close()


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lease(client: Client, holder: str, clock: Clock) -> Lease:
    return Lease(client.jetstream(), holder, ttl_seconds=3, clock=clock)


async def test_a_lease_has_one_holder_and_its_owner_takes_it_again_at_once(client: Client) -> None:
    clock = Clock()
    first, second, again = lease(client, "a", clock), lease(client, "b", clock), lease(client, "a", clock)

    assert await first._take() == ""
    assert await second._take() == "a"
    assert await again._take() == ""

    assert (first.valid, second.valid, again.valid) == (True, False, True)
    assert again.revision > first.revision


async def test_a_holder_trusts_its_lease_no_longer_than_it_lasts(client: Client) -> None:
    clock = Clock()
    held = lease(client, "a", clock)
    await held._take()

    clock.now += 3

    assert not held.valid


async def test_a_holder_whose_lease_another_took_ends(client: Client) -> None:
    clock = Clock()
    first, second = lease(client, "a", clock), lease(client, "b", clock)
    await first._take()
    bucket = await client.jetstream().key_value(BUCKET)
    await bucket.delete(KEY)
    await second._take()

    with pytest.raises(LeaseLost):
        await asyncio.wait_for(first.hold(lambda: None), 10)


async def test_a_clock_is_compared_with_the_hubs(client: Client) -> None:
    await client.jetstream().add_stream(StreamConfig(name="SITE_clock", subjects=["site.clock.>"]))
    try:
        right = await hub_clock.measure(client, "hub", "SITE_clock")
        slow = await hub_clock.measure(
            client, "hub", "SITE_clock", clock=lambda: now_utc() - timedelta(seconds=hub_clock.ALLOWED_SECONDS + 5)
        )
    finally:
        await client.jetstream().delete_stream("SITE_clock")

    assert abs(right.seconds) < 5
    assert right.allowed
    assert slow.seconds < -hub_clock.ALLOWED_SECONDS
    assert not slow.allowed
