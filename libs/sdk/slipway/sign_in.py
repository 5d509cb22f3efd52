"""Signing in at the identity provider: programs by their secret, people by the device flow.

OAuth 2.0 client credentials (RFC 6749 §4.4), device authorization (RFC 8628) and refresh tokens; a token
is asked for one door's resource (RFC 8707). Tokens are kept in one file, owner-only; a lock makes sure
that two commands at once never use up one refresh token twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from slipway.doors import Door
from slipway.errors import NotSignedIn, Unavailable
from slipway.private_file import write_private

EARLY_SECONDS = 30  # A token that ends sooner is renewed, so that it does not end on the way.
TIMEOUT_SECONDS = 10.0
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
SIGN_IN_AGAIN = "Run: slipway login"


@dataclass(frozen=True)
class Account:
    """Who signs in at one door, and for what: providers look at `resource` (RFC 8707) or at `audience`."""

    client_id: str
    secret: str | None
    resource: str
    audience: str
    scope: str


@dataclass(frozen=True)
class DeviceCode:
    """What a person must do: open `url` and confirm `user_code`, within `expires_in_seconds`."""

    url: str
    user_code: str
    expires_in_seconds: int


@dataclass
class SignIn:
    """Tokens of one context. `tokens_file` is shared by all contexts."""

    context: str
    issuer: str | None
    accounts: Mapping[Door, Account]
    tokens_file: Path
    clock: Callable[[], float] = time.time
    http: httpx.AsyncClient | None = None
    _documents: dict[str, Any] = field(default_factory=dict)

    async def token(self, door: Door, *, fresh: bool = False) -> str:
        """A token for `door`, kept, renewed or new. Raises NotSignedIn or Unavailable."""
        if not fresh and (kept := self._kept(door)):
            return kept
        async with self._locked():
            # Whoever waited for the lock may find what the other one fetched.
            if not fresh and (kept := self._kept(door)):
                return kept
            account = self._account(door)
            if account.secret is not None:
                grant = {"grant_type": "client_credentials", "scope": account.scope}
                return self._keep(door, await self._ask(account, grant))
            refresh = self._load().get(self.context, {}).get("refresh_token")
            if not refresh:
                raise NotSignedIn("You are not signed in.", SIGN_IN_AGAIN)
            return self._keep(door, await self._ask(account, {"grant_type": "refresh_token", "refresh_token": refresh}))

    async def device_flow(self, show: Callable[[DeviceCode], Awaitable[None]]) -> None:
        """Sign a person in: `show` tells them what to do, then wait until they did it. Raises NotSignedIn."""
        door, account = next(iter(self.accounts.items()))
        metadata = await self._metadata()
        endpoint = metadata.get("device_authorization_endpoint")
        if not isinstance(endpoint, str):
            raise NotSignedIn(
                f"The identity provider {self.issuer} has no device flow.",
                "Set a client_secret_file in the configuration instead.",
            )
        form = {
            "client_id": account.client_id,
            "scope": f"openid offline_access {account.scope}",
            "resource": [each.resource for each in self.accounts.values()],
        }
        started = await self._post(endpoint, form)
        code = DeviceCode(
            str(started.get("verification_uri_complete") or started["verification_uri"]),
            str(started["user_code"]),
            int(started.get("expires_in", 600)),
        )
        await show(code)
        answer = await self._poll(account, started, code)
        async with self._locked():
            self._keep(door, answer)

    def forget(self) -> None:
        """Drop this context's tokens."""
        kept = self._load()
        if kept.pop(self.context, None) is not None:
            self._store(kept)

    async def _poll(self, account: Account, started: Mapping[str, Any], code: DeviceCode) -> dict[str, Any]:
        wait_seconds = float(started.get("interval", 5))
        ends = self.clock() + code.expires_in_seconds
        grant = {"grant_type": DEVICE_GRANT, "device_code": str(started["device_code"])}
        while self.clock() < ends:
            await asyncio.sleep(wait_seconds)
            try:
                return await self._ask(account, grant)
            except _Pending as pending:
                wait_seconds += 5 if pending.slow_down else 0  # RFC 8628 §3.5.
        raise NotSignedIn("The sign-in was not confirmed in time.", SIGN_IN_AGAIN)

    def _account(self, door: Door) -> Account:
        if door not in self.accounts:
            raise NotSignedIn(f"Nobody is configured for the {door} door.", "Set its address and client.")
        return self.accounts[door]

    async def _ask(self, account: Account, grant: Mapping[str, str]) -> dict[str, Any]:
        endpoint = (await self._metadata()).get("token_endpoint")
        form = {**grant, "resource": account.resource, "audience": account.audience}
        if account.secret is None:
            form["client_id"] = account.client_id
        auth = None if account.secret is None else httpx.BasicAuth(account.client_id, account.secret)
        return await self._post(str(endpoint), form, auth)

    async def _metadata(self) -> dict[str, Any]:
        if self.issuer is None:
            raise NotSignedIn("No identity provider is configured.", "Set issuer in the configuration file.")
        if not self._documents:
            url = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
            self._documents = await self._send(httpx.Request("GET", url))
        return self._documents

    async def _post(self, url: str, form: Mapping[str, Any], auth: httpx.Auth | None = None) -> dict[str, Any]:
        return await self._send(httpx.Request("POST", url, data=form), auth)

    async def _send(self, request: httpx.Request, auth: httpx.Auth | None = None) -> dict[str, Any]:
        try:
            async with self._client() as http:
                answer = await http.send(request, auth=auth or httpx.USE_CLIENT_DEFAULT)
            document = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(
                f"The identity provider {self.issuer} does not answer: {str(error) or type(error).__name__}.",
                "Try again in a moment; 'make up' starts a local one.",
            ) from None
        if answer.is_success and isinstance(document, dict):
            return document
        raise _refused(answer.status_code, document if isinstance(document, dict) else {}, self.issuer)

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        if self.http is not None:
            yield self.http
            return
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as http:
            yield http

    def _kept(self, door: Door) -> str | None:
        kept = self._load().get(self.context, {}).get(door.value)
        if not isinstance(kept, dict) or kept.get("account") != self._fingerprint(door):
            return None
        still_good = float(kept.get("expires_at", 0)) - EARLY_SECONDS > self.clock()
        return str(kept["access_token"]) if still_good else None

    def _fingerprint(self, door: Door) -> list[str | None]:
        """Whose token it is: one kept for another account must not be used after a change of configuration."""
        account = self._account(door)
        return [self.issuer, account.client_id, account.resource]

    def _keep(self, door: Door, answer: Mapping[str, Any]) -> str:
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise NotSignedIn(f"The identity provider {self.issuer} gave no access token.", SIGN_IN_AGAIN)
        kept = self._load()
        mine = kept.setdefault(self.context, {})
        mine[door.value] = {
            "access_token": token,
            "expires_at": self.clock() + float(answer.get("expires_in", 60)),
            "account": self._fingerprint(door),
        }
        if isinstance(answer.get("refresh_token"), str):
            mine["refresh_token"] = answer["refresh_token"]
        self._store(kept)
        return token

    def _load(self) -> dict[str, Any]:
        try:
            kept = json.loads(self.tokens_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}  # Kept tokens are a convenience: without them one signs in again.
        if not isinstance(kept, dict):
            return {}
        return {name: mine for name, mine in kept.items() if isinstance(mine, dict)}

    def _store(self, kept: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # A read-only home still lets this command run.
            write_private(self.tokens_file, kept)

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        try:
            self.tokens_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.tokens_file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield
            return
        try:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class _Pending(Exception):
    def __init__(self, *, slow_down: bool) -> None:
        super().__init__("the person has not confirmed yet")
        self.slow_down = slow_down


def _refused(status: int, document: Mapping[str, Any], issuer: str | None) -> Exception:
    """RFC 6749 §5.2 and RFC 8628 §3.5 errors."""
    error = str(document.get("error", ""))
    if error in ("authorization_pending", "slow_down"):
        return _Pending(slow_down=error == "slow_down")
    if status >= 500:
        return Unavailable(f"The identity provider {issuer} answered {status}.", "Try again in a moment.")
    reason = str(document.get("error_description") or error or f"HTTP {status}")
    return NotSignedIn(f"The identity provider {issuer} refused: {reason}.", SIGN_IN_AGAIN)
