"""A receiver of webhooks: real HTTP on loopback. It checks signatures by itself and answers as a test says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Answer = int | tuple[int, dict[str, str]]


@dataclass
class Got:
    """One request that was accepted (2xx)."""

    event: dict[str, Any]
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    url: str
    answer: Callable[[dict[str, Any]], Answer] = field(default=lambda event: 204)
    tried: list[dict[str, Any]] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [one.event["id"] for one in self.got]


def signed_by(got: Got, key: str) -> bool:
    """Whether one of the signatures is right for the key, as the specification says."""
    content = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    if abs(time.time() - int(got.headers["webhook-timestamp"])) > 300:
        return False
    for version, _, signature in (part.partition(",") for part in got.headers["webhook-signature"].split()):
        raw = base64.b64decode(signature)
        if version == "v1" and key.startswith("whsec_"):
            secret = base64.b64decode(key.removeprefix("whsec_"))
            if hmac.compare_digest(raw, hmac.new(secret, content, hashlib.sha256).digest()):
                return True
        if version == "v1a" and key.startswith("whpk_"):
            try:
                Ed25519PublicKey.from_public_bytes(base64.b64decode(key.removeprefix("whpk_"))).verify(raw, content)
            except InvalidSignature:
                continue
            return True
    return False


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            event = json.loads(body)
            receiver.tried.append(event)
            answer = receiver.answer(event)
            status, headers = answer if isinstance(answer, tuple) else (answer, {})
            if 200 <= status < 300:
                got = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append(Got(event, got, body))
            text = b"" if status == 204 else b"no"
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}/hook")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
