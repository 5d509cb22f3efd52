"""Secrets in OpenBao or HashiCorp Vault: KV version 2, signed in to with AppRole, over hvac.

A reference is a path below the mount and prefix; its fields are the fields that people see there. The token lives in
memory only, is renewed when two thirds of its life are over, and is asked for anew when the server refuses it. A
server that is sealed, not yet set up, or standing by without an active one is told apart from one that denies us.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import hvac
import requests
from hvac import exceptions

from services.satellite.adapters import secret_refs
from services.satellite.adapters.secret_refs import check_ref
from services.satellite.errors import Failure, SiteError
from services.satellite.ports import Secret

V = TypeVar("V")
_STORE = "OpenBao"
_RENEW_AFTER = 2 / 3  # Of a token's life: late enough to be rare, early enough to be tried again.
_UNSEAL = "Unseal it (bao operator unseal), then retry."
# What GET sys/health answers, by the API's own page ("Read health information").
_HEALTH = {
    429: ("secret_store_standby", "stands by and no active server takes its place", "Look at the cluster's leader."),
    472: ("secret_store_standby", "is a recovery replica", "Give the satellite the active cluster's address."),
    473: ("secret_store_standby", "is a performance standby", "Give the satellite the active server's address."),
    501: ("secret_store_sealed", "was never initialized", "Initialize it (bao operator init), then retry."),
    503: ("secret_store_sealed", "is sealed", _UNSEAL),
}


@dataclass(frozen=True)
class BaoAddress:
    """Where secrets are kept and how to sign in. `secret_id_file` holds the AppRole's secret id, mode 600."""

    url: str
    role_id: str
    secret_id_file: Path
    mount: str = "secret"
    prefix: str = "slipway"
    namespace: str = ""
    ca_file: Path | None = None
    timeout_seconds: float = 10.0


class OpenBaoSecrets:
    """See `services.satellite.ports.Secrets`. hvac blocks, so every request has a thread of its own."""

    def __init__(self, address: BaoAddress, clock: Callable[[], float] = time.monotonic) -> None:
        self._at = address
        self._clock = clock
        self._signing_in = asyncio.Lock()
        self._token = ""
        self._renew_at = 0.0

    async def read(self, ref: str) -> Secret:
        """See the port."""
        path = self._path(ref)
        answer = await self._ask(
            ref,
            lambda client: client.secrets.kv.v2.read_secret_version(
                path, mount_point=self._at.mount, raise_on_deleted_version=True
            ),
        )
        data = answer["data"]
        return Secret(secret_refs.text_fields(ref, data.get("data")), str(data["metadata"]["version"]))

    async def write(self, ref: str, fields: Mapping[str, str], *, replaces: str | None) -> str:
        """See the port, by KV's own check-and-set."""
        path = self._path(ref)
        cas = await self._last_version(ref, path) if replaces is None else int(replaces)
        answer = await self._ask(
            ref,
            lambda client: client.secrets.kv.v2.create_or_update_secret(
                path, dict(fields), cas=cas, mount_point=self._at.mount
            ),
            writing=True,
        )
        return str(answer["data"]["version"])

    async def _last_version(self, ref: str, path: str) -> int:
        """What check-and-set must name where no secret is: 0, or a deleted version's number."""
        try:
            answer = await self._ask(
                ref, lambda client: client.secrets.kv.v2.read_secret_metadata(path, mount_point=self._at.mount)
            )
        except Failure as failure:
            if failure.code == "secret_missing":
                return 0
            raise
        newest = int(answer["data"]["current_version"])
        found = answer["data"]["versions"].get(str(newest)) or {}
        if newest and not found.get("deletion_time") and not found.get("destroyed"):
            raise secret_refs.conflict(ref, _STORE)
        return newest

    async def refs(self, prefix: str = "") -> tuple[str, ...]:
        """See the port. KV lists one folder at a time."""
        found: list[str] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            for name in await self._names(folder):
                path = folder + name
                if name.endswith("/"):
                    if path.startswith(prefix[: len(path)]):
                        folders.append(path)
                elif path.startswith(prefix) and secret_refs.well_formed(path):
                    found.append(path)
        return tuple(sorted(found))

    async def _names(self, folder: str) -> list[str]:
        path = f"{self._at.prefix}/{folder}".rstrip("/")
        try:
            answer = await self._ask(
                folder or "/", lambda client: client.secrets.kv.v2.list_secrets(path, mount_point=self._at.mount)
            )
        except Failure as failure:
            if failure.code == "secret_missing":  # A folder that was emptied while we looked.
                return []
            raise
        return [str(name) for name in answer["data"]["keys"]]

    async def remove(self, ref: str) -> None:
        """See the port: the versions and what is known about them."""
        path = self._path(ref)
        await self._ask(
            ref,
            lambda client: client.secrets.kv.v2.delete_metadata_and_all_versions(path, mount_point=self._at.mount),
            writing=True,
        )

    def _path(self, ref: str) -> str:
        return f"{self._at.prefix}/{check_ref(ref)}"

    # -- signing in and asking -------------------------------------------------------------------

    def _client(self, token: str = "") -> hvac.Client:
        return hvac.Client(
            url=self._at.url,
            token=token,
            namespace=self._at.namespace or None,
            verify=str(self._at.ca_file) if self._at.ca_file else True,
            timeout=self._at.timeout_seconds,
        )

    async def _ask(self, ref: str, question: Callable[[Any], Any], *, writing: bool = False) -> Any:
        """The server's answer, signed in; once more with a new token when the one we had is refused."""
        for attempt in (1, 2):
            token = await self._signed_in(ref)
            try:
                return await self._answer(ref, token, question, writing=writing)
            except exceptions.Forbidden as error:
                if self._token == token:
                    self._token = ""
                if attempt == 2:
                    raise secret_refs.denied(ref, _STORE, "Give the AppRole's policy a right on this path.") from error
        raise AssertionError("unreachable")

    async def _answer(self, ref: str, token: str, question: Callable[[Any], V], *, writing: bool = False) -> V:
        """One question in a thread. Raises Forbidden, and SiteErrors for everything else that can go wrong."""
        try:
            async with asyncio.timeout(self._at.timeout_seconds):  # hvac's own limit is for each byte, not the whole.
                return await asyncio.to_thread(lambda: question(self._client(token)))
        except exceptions.Forbidden:
            raise
        except exceptions.InvalidPath as error:
            raise secret_refs.missing(ref, _STORE) from error
        except exceptions.InvalidRequest as error:
            if writing:  # KV answers 400 to a check-and-set that names another version.
                raise secret_refs.conflict(ref, _STORE) from error
            raise _refused(ref, error) from error
        except (TimeoutError, requests.RequestException, exceptions.VaultError) as error:
            raise await self._why(ref, error, writing) from error

    async def _why(self, ref: str, error: Exception, writing: bool) -> SiteError:
        """A server that can't answer says in its health what it is; the error's own text is not looked at.

        What it refused did not happen; a write that it did not answer at all may have.
        """
        try:
            async with asyncio.timeout(self._at.timeout_seconds):
                status = await asyncio.to_thread(self._health)
        except (TimeoutError, requests.RequestException):
            status = 0
        code, words, remedy = _HEALTH.get(status, ("", _words(error), ""))
        if not code or (writing and not isinstance(error, exceptions.VaultError)):
            return secret_refs.unreachable(ref, _STORE, words, writing=writing)
        return Failure(code, f"{_STORE} at {self._at.url} {words}; {ref!r} can't be used.", remedy)

    def _health(self) -> int:
        """The status of the server's health; hvac gives its body only."""
        verify = str(self._at.ca_file) if self._at.ca_file else True
        url = f"{self._at.url}/v1/sys/health"
        return requests.get(url, timeout=self._at.timeout_seconds, verify=verify, allow_redirects=False).status_code

    async def _signed_in(self, ref: str) -> str:
        """A token that should be good; renewed or asked for when it is time."""
        async with self._signing_in:
            if self._token and self._clock() >= self._renew_at:
                await self._renew(ref)
            if not self._token:
                await self._log_in(ref)
            return self._token

    async def _log_in(self, ref: str) -> None:
        try:
            secret_id = self._at.secret_id_file.read_text().strip()
        except OSError as error:
            raise secret_refs.denied(ref, _STORE, f"{self._at.secret_id_file}: {error.strerror}.") from error
        remedy = "Give the satellite a valid role id and secret id of its AppRole."
        try:
            answer = await self._answer(
                ref, "", lambda client: client.auth.approle.login(self._at.role_id, secret_id, use_token=False)
            )
        except (exceptions.Forbidden, _Refused) as error:
            raise secret_refs.denied(ref, _STORE, remedy) from error
        self._keep(answer["auth"])

    async def _renew(self, ref: str) -> None:
        """Prolong the token; one that can't be prolonged is forgotten, and the next thing is to sign in."""
        token, self._token = self._token, ""
        try:
            answer = await self._answer(ref, token, lambda client: client.auth.token.renew_self())
        except (exceptions.Forbidden, _Refused):
            return
        self._keep(answer["auth"])

    def _keep(self, auth: Mapping[str, Any]) -> None:
        self._token = str(auth["client_token"])
        self._renew_at = self._clock() + float(auth["lease_duration"]) * _RENEW_AFTER


class _Refused(Failure):
    """The server understood and said no; which no it was depends on the question."""


def _refused(ref: str, error: Exception) -> _Refused:
    return _Refused("secret_unreadable", f"{_STORE} refused the request for {ref!r}.", "Look at the server's log.")


def _words(error: Exception) -> str:
    """Requests' errors quote the address; what they are is enough."""
    return "it took too long" if isinstance(error, TimeoutError | requests.Timeout) else type(error).__name__
