"""Who may speak to which emulated BMC: HTTP basic sign-in, with a user and a password per machine.

A machine's password opens its own system and manager and no other, as on real BMCs. Passwords are compared in
constant time; the file that holds them is readable by its owner only.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# What a BMC shows before sign-in (DSP0266 13.3): the service root.
_OPEN = {"", "/redfish", "/redfish/v1"}

WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


def _given(header: str) -> tuple[str, str] | None:
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if separator else None


def _matches(known: Mapping[str, str], given: tuple[str, str]) -> bool:
    return all(
        hmac.compare_digest(expected.encode(), actual.encode())
        for expected, actual in zip((known["username"], known["password"]), given, strict=True)
    )


class Doors:
    """WSGI middleware. `credentials`: system uuid → {username, password}."""

    def __init__(self, app: WsgiApp, credentials: Mapping[str, Mapping[str, str]]) -> None:
        self._app = app
        self._credentials = credentials

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Pass the request on, or answer 401."""
        path = environ.get("PATH_INFO", "").rstrip("/")
        if path in _OPEN or self._admits(path, environ.get("HTTP_AUTHORIZATION", "")):
            return self._app(environ, start_response)
        message = "Sign in with the user name and password of this BMC"
        body = json.dumps({"error": {"code": "Base.1.0.NoValidSession", "message": message}}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("401 Unauthorized", [*headers, ("WWW-Authenticate", 'Basic realm="BMC"')])
        return [body]

    def _admits(self, path: str, header: str) -> bool:
        given = _given(header)
        if given is None:
            return False
        parts = path.split("/")
        of_one_machine = len(parts) > 4 and parts[3] in ("Systems", "Managers") and parts[4] in self._credentials
        doors = [self._credentials[parts[4]]] if of_one_machine else self._credentials.values()
        return any(_matches(known, given) for known in doors)
