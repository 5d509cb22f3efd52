"""The client: one key over all tries, patience with 503, problems as errors, pages to the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from slipway import ApiError, Client, ConfigurationError, Door, NotSignedIn, StaticToken, Unavailable
from slipway import transport as transport_module

from tests.unit.sdk.conftest import Api, Reply, Request
from tests.unit.sdk.documents import CLUSTER, CLUSTER_ID, MACHINES, OPERATION_ID, operation

KEY = "ssh-ed25519 AAAA alice"
STARTED: Reply = (202, {"cluster_id": CLUSTER_ID, "operation_id": OPERATION_ID})
BUSY: Reply = (503, {"code": "gateway.owner_unavailable", "detail": "away"}, {"Retry-After": "0"})


@pytest.fixture
async def client(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(transport_module, "FIRST_WAIT_SECONDS", 0.001)
    urls = {Door.TENANT: f"{api.url}/v1", Door.OPERATOR: f"{api.url}/operator/v1"}
    async with Client(urls, StaticToken("token-1")) as opened:
        yield opened


async def test_a_write_that_nobody_answered_is_sent_again_with_the_same_key(client: Client, api: Api) -> None:
    api.on("POST", "/v1/clusters", BUSY, BUSY, STARTED)
    started = await client.clusters.create(name="train-1", profile="h100", node_count=1, keys=[KEY])
    assert started.operation_id == OPERATION_ID
    keys = [request.headers["Idempotency-Key"] for request in api.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert api.requests[0].body == {
        "name": "train-1",
        "profile": "h100",
        "node_count": 1,
        "ssh_authorized_keys": [KEY],
    }


async def test_two_writes_have_two_keys_and_one_of_your_own_is_kept(client: Client, api: Api) -> None:
    api.on("POST", "/v1/clusters", STARTED)
    for key in (None, None, "mine"):
        await client.clusters.create(name="a", profile="p", node_count=1, keys=[KEY], idempotency_key=key)
    keys = [request.headers["Idempotency-Key"] for request in api.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


async def test_what_stays_away_is_unavailable_after_some_tries(client: Client, api: Api) -> None:
    api.on("GET", "/v1/clusters/c", BUSY)
    with pytest.raises(Unavailable, match="away"):
        await client.clusters.get("c")
    assert len(api.requests) == 5


async def test_an_address_where_nobody_listens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "FIRST_WAIT_SECONDS", 0.001)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with Client({Door.TENANT: f"http://127.0.0.1:{port}/v1"}, StaticToken("t"), tries=2) as client:
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
            await client.clusters.get("c")


async def test_a_refusal_is_raised_at_once_with_all_that_the_api_said(client: Client, api: Api) -> None:
    document = {
        "code": "gateway.invalid_request",
        "detail": "body field 'name' is missing.",
        "next_step": "Correct it.",
        "correlation_id": "corr-1",
        "errors": [{"field": "name", "message": "is missing"}],
    }
    api.on("POST", "/v1/clusters", (422, document))
    with pytest.raises(ApiError) as caught:
        await client.clusters.create(name="", profile="p", node_count=1, keys=[])
    error = caught.value
    assert (error.status, error.code, error.next_step) == (422, "gateway.invalid_request", "Correct it.")
    assert error.correlation_id == "corr-1"
    assert error.errors == [("name", "is missing")]
    assert len(api.requests) == 1


@pytest.mark.parametrize("document", [None, [], "text", {"detail": None}])
async def test_an_error_that_is_no_problem_document_is_still_an_error(
    client: Client, api: Api, document: object
) -> None:
    api.on("GET", "/v1/clusters/c", (418, document))
    with pytest.raises(ApiError) as caught:
        await client.clusters.get("c")
    assert caught.value.status == 418


async def test_a_refused_token_is_replaced_once(api: Api) -> None:
    class Renewing:
        async def token(self, door: Door, *, fresh: bool = False) -> str:
            return "new" if fresh else "old"

    def needs_new(request: Request) -> Reply:
        return (200, CLUSTER) if request.headers["Authorization"] == "Bearer new" else (401, {"detail": "expired"})

    api.on("GET", "/v1/clusters/c", needs_new)
    async with Client({Door.TENANT: f"{api.url}/v1"}, Renewing()) as client:
        assert (await client.clusters.get("c")).name == "train-1"
    api.on("GET", "/v1/clusters/c", (401, {"detail": "never"}))
    async with Client({Door.TENANT: f"{api.url}/v1"}, Renewing()) as client:
        with pytest.raises(NotSignedIn, match="never"):
            await client.clusters.get("c")


async def test_a_list_goes_to_its_last_page_with_every_filter(client: Client, api: Api) -> None:
    api.on(
        "GET",
        "/operator/v1/machines",
        (200, {"items": MACHINES[:1], "next_cursor": "abc", "as_of": None}),
        (200, {"items": MACHINES[1:], "next_cursor": None, "as_of": None}),
    )
    names = [machine.name async for machine in client.machines.list(state=["AVAILABLE", "FAILED"], rack="r1")]
    assert names == ["fra1-r1-u01", "fra1-r1-u02"]
    first, second = api.requests
    assert first.query == {"state": ["AVAILABLE", "FAILED"], "rack": ["r1"]}
    assert second.query == {**first.query, "cursor": ["abc"]}


async def test_a_document_of_a_newer_server_can_be_read_and_is_kept_whole(client: Client, api: Api) -> None:
    api.on("GET", "/operator/v1/machines/m", (200, {**MACHINES[0], "state": "DANCING", "new": {"a": 1}}))
    machine = await client.machines.get("m")
    assert machine.state == "DANCING"
    assert machine.raw["new"] == {"a": 1}


async def test_an_id_with_a_slash_stays_one_segment(client: Client, api: Api) -> None:
    api.on("GET", "/operator/v1/machines/a%2F..%2Fb", (200, MACHINES[0]))
    assert (await client.machines.get("a/../b")).name == "fra1-r1-u01"


async def test_watching_gives_every_change_and_survives_an_api_that_is_away(client: Client, api: Api) -> None:
    path = f"/v1/operations/{OPERATION_ID}"
    client.transport.tries = 1
    api.on(
        "GET",
        path,
        (200, operation("RUNNING"), {"ETag": '"1"'}),
        (304, None),
        BUSY,
        (200, operation("SUCCEEDED"), {"ETag": '"2"'}),
    )
    seen = [o.status async for o in client.operations.watch(OPERATION_ID, every_seconds=0.001)]
    assert seen == ["RUNNING", "SUCCEEDED"]
    assert [request.headers.get("If-None-Match") for request in api.requests] == [None, '"1"', '"1"', '"1"']


async def test_waiting_has_a_limit(client: Client, api: Api) -> None:
    api.on("GET", f"/v1/operations/{OPERATION_ID}", (200, operation("RUNNING")))
    with pytest.raises(TimeoutError, match="still RUNNING"):
        await asyncio.wait_for(client.operations.wait(OPERATION_ID, within_seconds=0), timeout=10)


async def test_a_door_that_does_not_offer_a_thing_is_said_before_anything_is_sent(api: Api) -> None:
    async with Client({Door.TENANT: f"{api.url}/v1"}, StaticToken("t")) as client:
        with pytest.raises(ConfigurationError, match="operator door"):
            await client.machines.get("m")
        with pytest.raises(ConfigurationError, match="does not offer"):
            await client.machines.get("m", door=Door.TENANT)
    assert not api.requests


async def test_putting_into_the_catalog_replaces_the_version_that_is_there(client: Client, api: Api) -> None:
    api.on("GET", "/operator/v1/images/i", (200, {"name": "i"}, {"ETag": '"4"'}), (404, {"code": "image.not_found"}))
    api.on("PUT", "/operator/v1/images/i", (200, {"name": "i"}))
    await client.images.put("i", {"version_label": "2"})
    await client.images.put("i", {"version_label": "2"})
    puts = [request.headers.get("If-Match") for request in api.requests if request.method == "PUT"]
    assert puts == ['"4"', None]
