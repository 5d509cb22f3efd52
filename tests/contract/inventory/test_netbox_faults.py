"""A server in NetBox's place that answers badly: nothing may be concluded from any of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.inventory.adapters.netbox import RestNetBox
from services.inventory.adapters.source import SourceUnavailable

ROLES = ("gpu-node",)
Answer = tuple[int, object]


def page(*results: object, count: int | None = None, following: str | None = None) -> Answer:
    return 200, {"count": len(results) if count is None else count, "next": following, "results": list(results)}


def healthy(path: str) -> Answer:
    """A NetBox with nothing in it but what we need."""
    if path.endswith("device-roles/"):
        return page({"id": 1, "slug": "gpu-node"})
    if path.endswith("custom-fields/"):
        names = ["slipway_machine_id", "slipway_state", "slipway_health", "slipway_validated_at"]
        return page(*({"id": n, "name": name} for n, name in enumerate(names)))
    return page()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], Answer]], RestNetBox]]:
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Callable[[str], Answer]) -> RestNetBox:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(urlsplit(self.path).path)
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


Serve = Callable[[Callable[[str], Answer]], RestNetBox]


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
