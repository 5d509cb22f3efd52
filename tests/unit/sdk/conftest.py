"""A stand-in for the API and its identity provider: real HTTP on a loopback port, answers set by the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

MISSING = (404, {"code": "test.no_route", "detail": "The test set no answer.", "next_step": "Set one."})


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@dataclass
class Api:
    """Answers by (method, path); a list is used up one by one, its last answer stays."""

    url: str
    replies: dict[tuple[str, str], list[Reply | Callable[[Request], Reply]]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def on(self, method: str, path: str, *replies: Reply | Callable[[Request], Reply]) -> None:
        self.replies[method, path] = list(replies)

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        known = self.replies.get((request.method, request.path))
        if not known:
            return MISSING
        reply = known.pop(0) if len(known) > 1 else known[0]
        return reply(request) if callable(reply) else reply

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]


@pytest.fixture
def api() -> Iterator[Api]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            parts = urlsplit(self.path)
            form = (self.headers.get("Content-Type") or "").startswith("application/x-www-form-urlencoded")
            body = parse_qs(raw.decode()) if form else json.loads(raw) if raw else None
            request = Request(
                self.command, parts.path, parse_qs(parts.query, keep_blank_values=True), dict(self.headers), body
            )
            status, document, *more = stand_in.answer(request)
            payload = b"" if document is None else json.dumps(document).encode()
            headers = dict(more[0]) if more else {}
            if self.headers.get("Accept") == "application/x-ndjson" and status == 200:
                # As the gateway does it: a page as lines, the cursor in a header.
                payload = b"".join(json.dumps(i, ensure_ascii=False).encode() + b"\n" for i in document["items"])
                headers |= {"X-Next-Cursor": cursor} if (cursor := document.get("next_cursor")) else {}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    stand_in = Api(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield stand_in
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def configured(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file for the stand-in; SLIPWAY_TOKEN signs in."""
    path = tmp_path / "config.json"
    context = {"tenant_url": f"{api.url}/v1", "operator_url": f"{api.url}/operator/v1", "issuer": api.url}
    path.write_text(json.dumps({"current": "test", "contexts": {"test": context}}))
    for name in ("SLIPWAY_TENANT_URL", "SLIPWAY_OPERATOR_URL", "SLIPWAY_OIDC_ISSUER", "SLIPWAY_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPWAY_CONFIG", str(path))
    monkeypatch.setenv("SLIPWAY_TOKEN", "token-1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return path
