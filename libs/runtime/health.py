"""/healthz, /readyz and /metrics of a process, on a thread of its own so that a stuck event loop still answers.

/healthz answers 200 while the event loop turns; /readyz 200 when nothing that the process needs is missing,
else 503 with the names of what is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

LOOP_STUCK_SECONDS = 15.0


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; they are no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Health:
    """`problems` returns what is missing right now; `beat` is called by the event loop."""

    def __init__(self, host: str, port: int, problems: Callable[[], Iterable[str]]) -> None:
        self._problems = problems
        self._beat = time.monotonic()
        self._metrics = make_wsgi_app()
        self._server = make_server(host, port, self._answer, server_class=_Server, handler_class=_QuietHandler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def beat(self) -> None:
        self._beat = time.monotonic()

    def _answer(self, environ: Any, start_response: Any) -> Any:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path not in ("/healthz", "/readyz"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"try /healthz, /readyz or /metrics\n"]
        stuck = time.monotonic() - self._beat > LOOP_STUCK_SECONDS
        problems = ["the event loop is stuck"] if stuck else []
        if path == "/readyz":
            problems += self._problems()
        start_response("503 Service Unavailable" if problems else "200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"ok": not problems, "problems": problems}).encode() + b"\n"]
