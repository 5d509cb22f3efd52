"""Redfish's AccountService for the emulated BMCs, which sushy-tools has not: one account each, with a lock-out.

All BMCs share one address here, so the service answers for the BMC whose password opened it (`doors.py` says which).
Passwords live in `credentials.json` (mode 600), which is replaced as a whole. Faults, below "bmc" → "accounts":
"ignore" says yes and does nothing, "refuse" says no and quotes the password as some firmware does, "lose" takes it and
answers 500.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask

SERVICE = "/redfish/v1/AccountService"
ACCOUNT = f"{SERVICE}/Accounts/2"  # Slot 1 is empty, as on iDRAC, where it is reserved.
LOCKOUT_AFTER, LOCKOUT_SECONDS = 5, 30
MIN_LENGTH, MAX_LENGTH = 8, 20  # IPMI 2.0's limit.


class Accounts:
    """The passwords of all BMCs by system uuid, and which BMC has refused how often."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._known: dict[str, dict[str, str]] = json.loads(path.read_text())
        self._refused: dict[str, int] = {}
        self._locked_until: dict[str, float] = {}

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._known

    def uuids(self) -> list[str]:
        return list(self._known)

    def of(self, uuid: str) -> dict[str, str]:
        return self._known[uuid]

    def locked(self, uuid: str) -> bool:
        return self._locked_until.get(uuid, 0.0) > time.time()

    def judged(self, uuid: str, admitted: bool) -> None:
        """Count an attempt at this BMC's own resources."""
        with self._lock:
            self._refused[uuid] = 0 if admitted else self._refused.get(uuid, 0) + 1
            if self._refused[uuid] >= LOCKOUT_AFTER:
                self._locked_until[uuid] = time.time() + LOCKOUT_SECONDS

    def set_password(self, uuid: str, password: str) -> None:
        """Change it, on disk first."""
        with self._lock:
            known = {**self._known, uuid: {**self._known[uuid], "password": password}}
            partial = self._path.with_name(f".{self._path.name}.emulator")
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                json.dump(known, file, indent=1)
            partial.replace(self._path)
            self._known = known


def add_accounts(app: flask.Flask, accounts: Accounts, faults: Callable[[str], dict[str, Any]]) -> None:
    """Answer for the service, its accounts and a change of password."""

    def bmc() -> str:
        return str(flask.request.environ["lab.bmc"])

    def service() -> Any:
        return {
            "@odata.id": SERVICE,
            "@odata.type": "#AccountService.v1_10_0.AccountService",
            "Id": "AccountService",
            "Name": "Account Service",
            "AccountLockoutThreshold": LOCKOUT_AFTER,
            "AccountLockoutDuration": LOCKOUT_SECONDS,
            "AccountLockoutCounterResetAfter": LOCKOUT_SECONDS,
            "MinPasswordLength": MIN_LENGTH,
            "MaxPasswordLength": MAX_LENGTH,
            "Accounts": {"@odata.id": f"{SERVICE}/Accounts"},
        }

    def collection() -> Any:
        slots = [f"{SERVICE}/Accounts/1", ACCOUNT]
        return {
            "@odata.id": f"{SERVICE}/Accounts",
            "@odata.type": "#ManagerAccountCollection.ManagerAccountCollection",
            "Name": "Accounts Collection",
            "Members@odata.count": len(slots),
            "Members": [{"@odata.id": slot} for slot in slots],
        }

    def account(slot: str) -> Any:
        if slot not in ("1", "2"):
            return _error(404, "ResourceMissingAtURI", "no such account")
        name = accounts.of(bmc())["username"] if slot == "2" else ""
        etag = f'W/"{_mark(accounts.of(bmc())["password"])}"'
        if flask.request.method == "PATCH":
            return change(slot, etag)
        body = {
            "@odata.id": f"{SERVICE}/Accounts/{slot}",
            "@odata.type": "#ManagerAccount.v1_8_0.ManagerAccount",
            "Id": slot,
            "Name": "User Account",
            "UserName": name,
            "Password": None,
            "Enabled": slot == "2",
            "RoleId": "Administrator",
        }
        return flask.jsonify(body), 200, {"ETag": etag}

    def change(slot: str, etag: str) -> Any:
        if flask.request.headers.get("If-Match") not in (etag, "*"):
            return _error(412, "PreconditionFailed", "send If-Match with the account's ETag")
        password = (flask.request.get_json(silent=True) or {}).get("Password")
        if slot != "2" or not isinstance(password, str) or not MIN_LENGTH <= len(password) <= MAX_LENGTH:
            return _error(400, "PropertyValueFormatError", f"the value {password} for Password is not allowed")
        fault = faults(bmc()).get("bmc", {}).get("accounts", "")
        if fault == "refuse":
            return _error(400, "PropertyValueError", f"the value {password} for Password was used before")
        if fault != "ignore":
            accounts.set_password(bmc(), password)
        return _error(500, "InternalError", "the request failed") if fault == "lose" else ("", 204)

    app.add_url_rule(SERVICE, "lab accounts", service)
    app.add_url_rule(f"{SERVICE}/Accounts", "lab account list", collection)
    app.add_url_rule(f"{SERVICE}/Accounts/<slot>", "lab account", account, methods=["GET", "PATCH"])


def _mark(password: str) -> str:
    """Changes with the password and says nothing about it."""
    return f"{hash(password) & 0xFFFFFFFF:08x}"


def _error(status: int, code: str, message: str) -> Any:
    info = [{"MessageId": f"Base.1.8.{code}", "Message": message}]
    return flask.jsonify(error={"code": f"Base.1.8.{code}", "message": message, "@Message.ExtendedInfo": info}), status
