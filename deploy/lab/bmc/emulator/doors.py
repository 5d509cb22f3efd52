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

from accounts import Accounts

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
    """WSGI middleware. Which BMC was opened is handed on as "lab.bmc"."""

    def __init__(self, app: WsgiApp, accounts: Accounts) -> None:
        self._app = app
        self._accounts = accounts

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Pass the request on, or answer 401."""
        path = environ.get("PATH_INFO", "").rstrip("/")
        opened = "" if path in _OPEN else self._opened(path, environ.get("HTTP_AUTHORIZATION", ""))
        if opened is not None:
            environ["lab.bmc"] = opened
            return self._app(environ, start_response)
        message = "Sign in with the user name and password of this BMC"
        body = json.dumps({"error": {"code": "Base.1.0.NoValidSession", "message": message}}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("401 Unauthorized", [*headers, ("WWW-Authenticate", 'Basic realm="BMC"')])
        return [body]

    def _opened(self, path: str, header: str) -> str | None:
        """The uuid of the BMC that these credentials open, None for none. A BMC's own resources count failures."""
        given = _given(header)
        if given is None:
            return None
        parts = path.split("/")
        of_one_machine = len(parts) > 4 and parts[3] in ("Systems", "Managers") and parts[4] in self._accounts
        doors = [parts[4]] if of_one_machine else self._accounts.uuids()
        found = [uuid for uuid in doors if _matches(self._accounts.of(uuid), given) and not self._accounts.locked(uuid)]
        if of_one_machine:
            self._accounts.judged(parts[4], bool(found))
        return found[0] if found else None
