"""The client and `slipway events tail` on a real gateway: they go on by themselves."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from slipway.client import Client
from slipway.doors import Door as ClientDoor
from slipway.errors import ApiError
from slipway.live import Live
from slipway.transport import StaticToken

from tests.conftest import eventually
from tests.unit.services.gateway.conftest import Issuer
from tests.unit.services.gateway.stream_site import ACME, Site, gateway_on, holds, stream_site

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> AsyncIterator[Site]:
    async with stream_site(tmp_path_factory.mktemp("stream"), issuer) as made:
        yield made


def client_of(site: Site, urls: Any = None) -> Client:
    urls = urls or site.urls
    return Client({ClientDoor(door): url for door, url in urls.items()}, StaticToken(site.issuer.token("alice")))


async def test_a_tail_goes_on_behind_the_last_event_after_the_gateway_was_restarted(site: Site) -> None:
    got: list[str] = []
    ports = None

    async def read(client: Client) -> None:
        async for item in client.events.tail(door=ClientDoor.TENANT, after="start"):
            if isinstance(item, Live):
                got.append(item.event.id)

    said = [await site.say()]
    async with gateway_on(site.server, site.issuer) as (_, urls):
        ports = {door: int(url.split(":")[2].split("/")[0]) for door, url in urls.items()}
        client = client_of(site, urls)
        reading = asyncio.create_task(read(client))
        await eventually(holds(lambda: got == said), within_seconds=30)
    said += [await site.say() for _ in range(3)]  # Nobody is listening now.
    async with gateway_on(site.server, site.issuer, ports=ports):
        await eventually(holds(lambda: got == said), within_seconds=60, what="the missed ones")
        said.append(await site.say())
        await eventually(holds(lambda: got == said), within_seconds=30, what="the next one")
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await client.transport.http.aclose()


async def test_a_refusal_is_raised_instead_of_tried_for_ever(site: Site) -> None:
    async with client_of(site) as client:
        with pytest.raises(ApiError) as refused:
            async for _ in client.events.tail(door=ClientDoor.TENANT, after="nonsense"):
                raise AssertionError("nothing can come")
    assert "after" in str(refused.value)


async def test_the_command_prints_a_json_line_an_event_and_goes_on_behind_an_id(site: Site) -> None:
    said = [await site.say() for _ in range(3)]
    first = await _tail(site, "--json", "--after", "start", "-n", "1000", stop_at=said[1])
    assert said[1] in {line["event"]["id"] for line in first}
    last_id = next(line["id"] for line in first if line["event"]["id"] == said[1])
    [after] = await _tail(site, "--json", "--after", last_id, "-n", "1", stop_at=said[2])
    assert after["event"]["id"] == said[2]
    assert after["event"]["tenant"] == ACME


async def _tail(site: Site, *arguments: str, stop_at: str) -> list[dict[str, Any]]:
    """The lines of `slipway events tail` up to the event `stop_at`."""
    environment = {
        **os.environ,
        "SLIPWAY_TENANT_URL": site.urls[next(d for d in site.urls if d == "tenant")],
        "SLIPWAY_OIDC_ISSUER": site.issuer.url,
        "SLIPWAY_TOKEN": site.issuer.token("alice"),
        "SLIPWAY_CONFIG": "/nonexistent/config.json",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slipway.cli", "events", "tail", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        limit=2**22,
    )
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(60):
        while line := await process.stdout.readline():
            lines.append(json.loads(line))
            if lines[-1]["event"]["id"] == stop_at:
                break
    if process.returncode is None:
        process.kill()
    await process.wait()
    return lines
