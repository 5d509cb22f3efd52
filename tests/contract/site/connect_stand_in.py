"""A stand-in of the 1Password Connect REST API (no Connect server can be had here): vaults' items in memory.

It follows the published description of the API, version 1.8: bearer token, filter by title, items with fields and a
version that rises, 404 as {"status", "message"}. `mode` makes it slow, sick or deny everybody.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "connect-token"
VAULT = "v" * 26


class ConnectStandIn:
    """Serves on 127.0.0.1 on a port of its own choice until `close`."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.mode = "well"  # or "slow", "sick", "denying", "gibberish"
        self.lock = threading.Lock()
        stand_in = self

        class Handler(_Handler):
            connect = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def edit(self, title: str, fields: dict[str, str]) -> None:
        """What a person does in 1Password: change the item's fields, or make one more item of this title."""
        with self.lock:
            for item in self.items.values():
                if item["title"] == title:
                    item.update(fields=_labelled(fields), version=item["version"] + 1)
                    return
            self.add(title, fields)

    def add(self, title: str, fields: dict[str, str]) -> None:
        item_id = uuid.uuid4().hex[:26]
        self.items[item_id] = _item(item_id, {"title": title, "fields": _labelled(fields), "category": "LOGIN"}, 1)


def _labelled(fields: dict[str, str]) -> list[dict[str, Any]]:
    notes = {"id": "notesPlain", "label": "notesPlain", "type": "STRING", "purpose": "NOTES"}
    return [{"id": name, "label": name, "value": value, "type": "STRING"} for name, value in fields.items()] + [notes]


def _item(item_id: str, given: dict[str, Any], version: int) -> dict[str, Any]:
    return {**given, "id": item_id, "vault": {"id": VAULT}, "version": version}


class _Handler(BaseHTTPRequestHandler):
    connect: ConnectStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _answer(self, status: int, body: object) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        if self.connect.mode == "gibberish":
            content = b"<html>"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        given = json.loads(self.rfile.read(length)) if length else None
        if self.connect.mode == "slow":
            time.sleep(1.5)
        if self.connect.mode == "sick":
            return self._answer(500, {"status": 500, "message": "Internal error"})
        if self.connect.mode == "denying" or self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"status": 401, "message": "Invalid token"})
        parts = urlsplit(self.path)
        names = parts.path.strip("/").split("/")
        if names[:2] != ["v1", "vaults"] or names[2:4] != [VAULT, "items"]:
            return self._answer(404, {"status": 404, "message": "Not found"})
        with self.connect.lock:
            return self._items(names[4] if len(names) > 4 else "", parts.query, given)

    def _items(self, item_id: str, query: str, given: Any) -> None:
        items = self.connect.items
        if not item_id and self.command == "GET":
            wanted = unquote((parse_qs(query).get("filter") or [""])[0]).removeprefix('title eq "').removesuffix('"')
            found = [item for item in items.values() if wanted in ("", item["title"])]
            return self._answer(200, [{k: v for k, v in item.items() if k != "fields"} for item in found])
        if not item_id and self.command == "POST":
            made = uuid.uuid4().hex[:26]
            items[made] = _item(made, given, 1)
            return self._answer(200, items[made])
        if item_id not in items:
            return self._answer(404, {"status": 404, "message": f"item {item_id} not found"})
        if self.command == "GET":
            return self._answer(200, items[item_id])
        if self.command == "PUT":
            items[item_id] = _item(item_id, given, items[item_id]["version"] + 1)
            return self._answer(200, items[item_id])
        del items[item_id]
        return self._answer(204, None)

    do_GET = do_POST = do_PUT = do_DELETE = _handle
