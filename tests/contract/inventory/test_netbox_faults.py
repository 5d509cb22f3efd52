"""A server in NetBox's place that answers badly: nothing may be concluded from any of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from services.inventory.adapters.netbox import RestNetBox
from services.inventory.adapters.netbox_fields import CUSTOM_FIELDS
from services.inventory.adapters.netbox_twin import NetBoxTwin
from services.inventory.adapters.source import SourceUnavailable, Write

ROLES = ("gpu-node",)
Answer = tuple[int, object]


def page(*results: object, count: int | None = None, following: str | None = None) -> Answer:
    return 200, {"count": len(results) if count is None else count, "next": following, "results": list(results)}


def custom_field(number: int, name: str, kind: object) -> dict[str, object]:
    return {"id": number, "name": name, "type": {"value": kind}, "object_types": ["dcim.device"]}


def healthy(path: str) -> Answer:
    """A NetBox with nothing in it but what we need."""
    if path.endswith("device-roles/"):
        return page({"id": 1, "slug": "gpu-node"})
    if path.endswith("custom-fields/"):
        return page(*(custom_field(number, name, kind) for number, (name, kind, _) in enumerate(CUSTOM_FIELDS, 1)))
    return page()


@pytest.fixture
def serve() -> Iterator[Callable[..., RestNetBox]]:
    servers: list[ThreadingHTTPServer] = []

    def start(
        answer: Callable[[str], Answer],
        patch: Callable[[list[dict[str, Any]]], Answer] | None = None,
        with_query: bool = False,
    ) -> RestNetBox:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(answer(self.path if with_query else urlsplit(self.path).path))

            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(patch(body) if patch is not None else (404, {}))

            def _answer(self, answered: Answer) -> None:
                status, body = answered
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return RestNetBox(f"http://127.0.0.1:{server.server_port}", lambda: "t", ROLES, timeout_seconds=0.5)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[..., RestNetBox]


async def test_an_empty_netbox_is_a_whole_walk(serve: Serve) -> None:
    walk = await serve(healthy).read(None)
    assert walk.full and walk.devices == ()


@pytest.mark.parametrize(
    "bad",
    [
        (500, b"<html>Server Error</html>"),
        (502, b""),
        (200, b"<html>maintenance</html>"),
        (200, {"detail": "nothing here"}),
        (200, {"count": 0, "next": None, "results": None}),
        (200, []),
        (200, None),
        (200, "devices"),
        page({"id": None, "name": "x"}),
        page("x"),
        page({"id": 1}, {"id": 1}),
        page({"id": 1}, count=2),
        (429, {"detail": "slow down"}),
        (404, {"detail": "not found"}),
    ],
)
async def test_a_bad_answer_to_the_device_list_is_no_answer(serve: Serve, bad: Answer) -> None:
    source = serve(lambda path: bad if path.endswith("dcim/devices/") else healthy(path))
    with pytest.raises(SourceUnavailable):
        await source.read(None)


async def test_a_netbox_that_is_too_slow_is_unavailable(serve: Serve) -> None:
    wait = threading.Event()

    def slow(path: str) -> Answer:
        wait.wait(2)
        return healthy(path)

    with pytest.raises(SourceUnavailable, match="reached"):
        await serve(slow).read(None)
    wait.set()


def listed(path: str) -> bool:
    return urlsplit(path).path.endswith("dcim/devices/")


def device(number: int) -> dict[str, Any]:
    return {**NetBoxTwin().add(number), "site": {"id": 1, "slug": "fra1"}}


class Fleet:
    """NetBox with devices in pages of two; `meanwhile` happens after the first page was given."""

    def __init__(self, meanwhile: Callable[[dict[int, Any]], object] = lambda devices: None) -> None:
        self.devices = {number: device(number) for number in range(1, 8)}
        self.meanwhile = meanwhile

    def answer(self, path: str) -> Answer:
        parts = urlsplit(path)
        if parts.path.endswith("dcim/sites/"):
            return page({"id": 1, "slug": "fra1", "name": "Frankfurt 1"})
        if not listed(path):
            return healthy(parts.path)
        after = int(parse_qs(parts.query).get("id__gt", ["0"])[0])
        left = [self.devices[number] for number in sorted(self.devices) if number > after]
        if after:
            answer = page(*left[:2], count=len(left), following="more" if len(left) > 2 else None)
        else:
            answer = page(*left[:2], count=len(left), following="more")
            self.meanwhile(self.devices)
        return answer


async def test_a_device_that_is_deleted_while_pages_are_read_hides_no_other(serve: Serve) -> None:
    walk = await serve(Fleet(lambda devices: devices.pop(1)).answer, with_query=True).read(None)
    # By offset, number 3 would have moved onto the page that was read already.
    assert {2, 3, 4, 5, 6, 7} <= {device.netbox_id for device in walk.devices}


async def test_a_device_that_is_added_while_pages_are_read_is_read_once(serve: Serve) -> None:
    walk = await serve(Fleet(lambda devices: devices.update({8: device(8)})).answer, with_query=True).read(None)
    assert [device.netbox_id for device in walk.devices] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_server_that_gives_the_same_page_again_is_found_out(serve: Serve) -> None:
    def stuck(path: str) -> Answer:
        same = page(device(1), device(2), count=9, following="more")
        return same if listed(path) else healthy(urlsplit(path).path)

    with pytest.raises(SourceUnavailable, match="out of order"):
        await serve(stuck, with_query=True).read(None)


async def test_an_empty_page_that_is_not_the_last_is_found_out(serve: Serve) -> None:
    with pytest.raises(SourceUnavailable, match="empty page"):
        await serve(lambda path: page(following="more") if listed(path) else healthy(path)).read(None)


@pytest.mark.parametrize("kind", [{"value": "boolean"}, {"value": "multiobject"}, "select", None])
async def test_a_field_of_ours_that_can_not_hold_it_is_named_and_left_out_of_every_write(
    serve: Serve, kind: object
) -> None:
    def answer(path: str) -> Answer:
        if not path.endswith("custom-fields/"):
            return healthy(path)
        made = [custom_field(number, name, right) for number, (name, right, _) in enumerate(CUSTOM_FIELDS, 1)]
        made[2]["type"] = kind
        # Another tool's field of an unusual type is none of our business.
        made.append({"id": 9, "name": "owners", "type": {"value": "multiobject"}, "object_types": ["dcim.device"]})
        return page(*made)

    sent: list[dict[str, Any]] = []

    def patch(bodies: list[dict[str, Any]]) -> Answer:
        sent.extend(bodies)
        return 200, bodies

    source = serve(answer, patch=patch)
    walk = await source.read(None)
    (problem,) = walk.problems
    assert problem.key == "field:slipway_health" and "its type is" in problem.problem
    assert await source.write([Write(7, {"slipway_state": "AVAILABLE", "slipway_health": "HEALTHY"})]) == [""]
    assert sent == [{"id": 7, "custom_fields": {"slipway_state": "AVAILABLE"}}]


async def test_a_field_that_is_not_for_devices_is_named(serve: Serve) -> None:
    def answer(path: str) -> Answer:
        made = [custom_field(number, name, right) for number, (name, right, _) in enumerate(CUSTOM_FIELDS, 1)]
        made[0]["object_types"] = ["dcim.site"]
        return page(*made) if path.endswith("custom-fields/") else healthy(path)

    (problem,) = (await serve(answer).read(None)).problems
    assert "dcim.device" in problem.problem


async def test_one_refused_device_gets_what_netbox_takes_and_names_the_rest(serve: Serve) -> None:
    kept: dict[int, dict[str, Any]] = {}

    def patch(bodies: list[dict[str, Any]]) -> Answer:
        if any(body["id"] == 7 and "slipway_health" in body["custom_fields"] for body in bodies):
            return 400, {"custom_fields": ["Cannot resolve keyword 'display' into field."]}
        for body in bodies:
            kept.setdefault(body["id"], {}).update(body["custom_fields"])
        return 200, bodies

    fields = {"slipway_state": "AVAILABLE", "slipway_health": "HEALTHY"}
    results = await serve(healthy, patch=patch).write([Write(7, dict(fields)), Write(8, dict(fields))])
    assert results[1] == "" and "not slipway_health" in results[0] and "display" in results[0]
    assert kept == {7: {"slipway_state": "AVAILABLE"}, 8: fields}


@pytest.mark.parametrize("status", [401, 403, 429, 500, 502])
async def test_a_netbox_that_takes_no_writes_is_asked_once_and_not_for_every_piece(serve: Serve, status: int) -> None:
    asked: list[object] = []

    def patch(bodies: list[dict[str, Any]]) -> Answer:
        asked.append(bodies)
        return status, {"detail": "no"}

    source = serve(healthy, patch=patch)
    with pytest.raises(SourceUnavailable):
        await source.write([Write(7, {"slipway_state": "AVAILABLE"}), Write(8, {"slipway_state": "AVAILABLE"})])
    assert len(asked) == 1


async def test_a_netbox_before_4_2_has_no_list_of_macs_and_can_be_polled(serve: Serve) -> None:
    gone = (404, {"detail": "Not found."})
    source = serve(lambda path: gone if path.endswith("mac-addresses/") else healthy(path))
    walk = await source.read(datetime(2026, 3, 1, tzinfo=UTC))
    assert not walk.full and walk.devices == () and walk.newest is not None


async def test_a_poll_that_is_answered_500_is_no_poll(serve: Serve) -> None:
    source = serve(lambda path: (500, b"oops") if path.endswith("mac-addresses/") else healthy(path))
    with pytest.raises(SourceUnavailable, match="500"):
        await source.read(datetime(2026, 3, 1, tzinfo=UTC))
