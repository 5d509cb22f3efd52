"""The live stream at both doors: who sees what, going on after a break, gaps, slow clients, limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from httpx_sse import aconnect_sse

from libs.bus.topology import apply_hub, load_topology
from services.gateway.routes import Door
from tests.conftest import eventually
from tests.unit.services.gateway.conftest import PEOPLE, Issuer
from tests.unit.services.gateway.stream_site import (
    ACME,
    GLOBEX,
    Site,
    Stream,
    gateway_on,
    holds,
    stream_site,
    updated,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> AsyncIterator[Site]:
    async with stream_site(tmp_path_factory.mktemp("stream"), issuer) as made:
        yield made


async def test_a_tenant_sees_its_own_events_and_no_number_of_the_others(site: Site) -> None:
    async with site.stream("alice") as stream:
        await stream.opened()
        await site.say(GLOBEX)
        mine = await site.say(ACME)
        event = json.loads((await stream.next()).data)
    assert event["id"] == mine
    assert event["tenant"] == ACME
    assert int(event["tenantsequence"]) == 1
    assert "sequence" not in event


async def test_an_operator_sees_every_tenant_with_the_publishers_numbers(site: Site) -> None:
    async with site.stream("operator") as stream:
        await stream.opened()
        said = [await site.say(GLOBEX), await site.say(ACME)]
        events = [json.loads((await stream.next()).data) for _ in said]
    assert [event["id"] for event in events] == said
    assert int(events[1]["sequence"]) == int(events[0]["sequence"]) + 1


async def test_the_last_id_goes_on_exactly_behind_it(site: Site) -> None:
    async with site.stream("alice") as stream:
        await stream.opened()
        first = await site.say()
        assert await stream.ids(1) == [first]
        last_id = stream.last_id
    missed = [await site.say(name=f"n{number}") for number in range(3)]
    async with site.stream("alice", last_id) as stream:
        assert await stream.ids(3) == missed
    async with site.stream("alice", after=last_id) as stream:
        assert await stream.ids(3) == missed


async def test_an_id_is_good_after_the_stream_was_lost_and_filled_again(site: Site) -> None:
    async with site.stream("alice") as stream:
        await stream.opened()
        assert await stream.ids(0) == []
        await site.say()
        await stream.ids(1)
        last_id = stream.last_id
    missed = await site.say()
    js = site.bus.jetstream()
    await js.delete_stream("EVT")
    await apply_hub(js, load_topology(), ())
    await eventually(_async(lambda: site.publisher.gathered(), len(site.publisher.published)), within_seconds=30)
    async with site.stream("alice", last_id) as stream:
        assert await stream.ids(1) == [missed]


def _async(count: Any, wanted: int) -> Any:
    async def reached() -> bool:
        return bool(await count() >= wanted)

    return reached


async def test_everything_that_is_kept_can_be_read_from_the_start(site: Site) -> None:
    said = [envelope.id for envelope in site.publisher.published if envelope.tenant == ACME]
    said.append(await site.say())
    async with site.stream("alice", after="start") as stream:
        assert await stream.ids(len(said)) == said


async def test_a_missing_number_is_told_as_a_gap(site: Site) -> None:
    async with site.stream("alice") as stream:
        await stream.opened()
        await site.say()
        await stream.ids(1)
        last_id = stream.last_id
    lost = await site.publisher.say(updated(ACME), ACME, tenant=ACME)
    after = await site.say()
    js = site.bus.jetstream()
    await eventually(_async(site.publisher.gathered, len(site.publisher.published)))
    kept = await js.get_last_msg("EVT", f"evt.*.{ACME}.identity.>")
    await js.delete_msg("EVT", int(kept.seq or 0) - 1)
    async with site.stream("alice", last_id) as stream:
        gap = await stream.next()
        assert gap.event == "gap"
        told = json.loads(gap.data)
        assert (told["of"], told["first"], told["last"]) == (
            f"{ACME}/identity",
            int(lost.tenantsequence or 0),
            int(lost.tenantsequence or 0),
        )
        assert await stream.ids(1) == [after]


async def test_filters_leave_out_what_does_not_match_and_the_id_moves_on_all_the_same(site: Site) -> None:
    async with site.stream("alice", entity_id="wanted") as stream:
        await stream.opened()
        await site.say(entity="other")
        wanted = await site.say(entity="wanted")
        assert await stream.ids(1) == [wanted]
        await site.say(entity="other")
        async with asyncio.timeout(20):
            before = stream.last_id
            while stream.last_id == before:
                stream.last_id = (await anext(stream.events)).id or before
        last_id = stream.last_id
    after = await site.say(entity="other")
    async with site.stream("alice", last_id) as stream:
        assert await stream.ids(1) == [after]


@pytest.mark.parametrize(
    ("query", "field_name"),
    [
        ({"after": "nonsense"}, "after"),
        ({"since": "yesterday"}, "since"),
        ({"service": "weather"}, "service.0"),
        ({"tenant": GLOBEX}, "tenant"),
        ({"nothing": "x"}, "nothing"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_name(site: Site, query: dict[str, str], field_name: str) -> None:
    url = f"{site.urls[Door.TENANT]}/events/stream"
    answer = await site.http.get(url, headers=site.headers("alice"), params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field_name


async def test_an_id_of_the_other_door_is_refused_with_the_reason(site: Site) -> None:
    async with site.stream("operator") as stream:
        await stream.opened()
    url = f"{site.urls[Door.TENANT]}/events/stream"
    answer = await site.http.get(url, headers=site.headers("alice", stream.last_id))
    assert answer.status_code == 422
    assert "another kind" in answer.json()["detail"]


async def test_one_caller_has_only_so_many_streams(site: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        kept = [await (await stack.enter_async_context(site.stream("bob"))).opened() for _ in range(3)]
        url = f"{site.urls[Door.TENANT]}/events/stream"
        refused = await site.http.get(url, headers=site.headers("bob"))
        assert refused.status_code == 429
        assert refused.json()["code"] == "gateway.too_many_streams"
        assert refused.headers["Retry-After"]
        assert len(kept) == 3  # A stream that nobody refers to any more would be closed.
    async with site.stream("bob") as stream:  # A place is free again.
        await stream.opened()


async def test_a_stream_ends_when_the_callers_access_does(site: Site) -> None:
    site.owners.people["alice"] = PEOPLE["alice"]
    async with site.stream("alice") as stream:
        await stream.opened()
        site.owners.people["alice"] = PEOPLE["stranger"]
        await site.gateway.access.forget()
        goodbye = await stream.next()
        site.owners.people["alice"] = PEOPLE["alice"]
        await site.gateway.access.forget()
    assert goodbye.event == "goodbye"
    assert json.loads(goodbye.data)["code"] == "stream.access_changed"


async def test_a_stream_ends_with_its_token(site: Site) -> None:
    async with site.stream("alice", claims={"exp": int(time.time()) + 2}) as stream:
        await stream.opened()
        goodbye = await stream.next()
    assert json.loads(goodbye.data)["code"] == "stream.token_expired"


async def test_a_client_that_takes_nothing_is_cut_and_can_go_on(site: Site) -> None:
    big = "x" * 100_000
    host, port = site.urls[Door.TENANT].removeprefix("http://").removesuffix("/v1").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, (host, int(port)))
    headers = "".join(f"{name}: {value}\r\n" for name, value in site.headers("alice").items())
    await loop.sock_sendall(raw, f"GET /v1/events/stream HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
    opened = b""
    while b"\nid: " not in opened or not opened.endswith(b"\n\n\r\n"):
        opened += await loop.sock_recv(raw, 4096)
    begin = opened.rpartition(b"id: ")[2].split(b"\n")[0].decode()
    said = [await site.say(name=big) for _ in range(60)]
    caller = "user:alice"
    await eventually(holds(lambda: site.gateway.streams._by_caller[caller] == 0), within_seconds=30, what="cut")
    raw.close()
    async with site.stream("alice", begin) as stream:
        assert await stream.ids(len(said)) == said


async def _answers(site: Site) -> bool:
    try:
        return await site.publisher.gathered() > 0
    except Exception:
        return False


async def test_a_stream_goes_on_after_the_broker_was_killed(site: Site) -> None:
    async with site.stream("alice") as stream:
        await stream.opened()
        await site.say()
        await stream.ids(1)
        last_id = stream.last_id
        process = site.server.process()
        process.kill()
        process.start()
        await eventually(lambda: _answers(site), within_seconds=30)
        goodbye_or_event = asyncio.create_task(stream.next(60))
        said = await site.say()
        frame = await goodbye_or_event
    if frame.event == "goodbye":  # It noticed the break: the client comes back with its id.
        assert json.loads(frame.data)["code"] in {"stream.bus_unavailable", "stream.access_unknown"}
        await eventually(holds(lambda: not site.gateway.problems()), within_seconds=30)
        async with site.stream("alice", last_id) as again:
            assert await again.ids(1) == [said]
    else:
        assert json.loads(frame.data)["id"] == said


async def test_streams_end_with_a_word_when_the_gateway_stops(site: Site) -> None:
    async with gateway_on(site.server, site.issuer) as (gateway, urls):
        url = f"{urls[Door.TENANT]}/events/stream"
        async with aconnect_sse(site.http, "GET", url, headers=site.headers("alice")) as source:
            stream = await Stream(source.aiter_sse()).opened()
            gateway.streams.close()
            goodbye = await stream.next()
    assert json.loads(goodbye.data)["code"] == "stream.restarting"
