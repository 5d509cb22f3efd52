"""The public keys of the one identity provider that we trust, kept fresh and bounded.

Discovery and the key set are read again every few minutes; an unknown key id reads them at once, but
never more often than the cool-down, so that made-up ids cannot turn us into a flood. A key that was
withdrawn stops working within the maximum age. While the provider is away the last keys serve for a
bounded time, then sign-in is unavailable: closed, never open. A provider that is down when we start
is not an error; a malformed issuer is. Parsing is `signing_keys.py`, judging a token `tokens.py`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import structlog
from joserfc.jwk import Key

from libs.runtime.signing_keys import DiscoveryError, SigningKey, check_issuer, parse_keys, pin_issuer, select_keys

log = structlog.get_logger(__name__)

DISCOVERY_PATH = "/.well-known/openid-configuration"
MAX_DOCUMENT_BYTES = 1_000_000  # Real key sets are below 20 kB; more is a wrong address or an attack.
CLOCK_STEP_SECONDS = 60  # A set dated further ahead than this comes from a wrong clock.


class SignInUnavailable(RuntimeError):
    """We have no usable keys, so no token can be judged. Answer 503 with Retry-After; a later try may work."""

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True)
class KeyPolicy:
    """How long keys serve and how often they are asked for."""

    max_age_seconds: float = 300  # A withdrawn key works no longer than this while the provider answers.
    max_stale_seconds: float = 3600  # The usual life of an access token: beyond it none is left to accept.
    cool_down_seconds: float = 30  # Between two fetches caused by unknown key ids.
    first_backoff_seconds: float = 1
    max_backoff_seconds: float = 30
    fetch_timeout_seconds: float = 5


@dataclass(frozen=True)
class KeySnapshot:
    """What the provider said at `fetched_at` (Unix seconds): its literal issuer and its keys."""

    issuer: str
    keys: tuple[SigningKey, ...]
    fetched_at: float
    document: Mapping[str, Any]  # The key set as published, to be kept on disk.


async def _get_json(http: httpx.AsyncClient, url: str, timeout_seconds: float) -> object:
    # Redirects are refused: they would let whoever answers name another source of trust.
    async with http.stream("GET", url, timeout=timeout_seconds, follow_redirects=False) as answer:
        if answer.status_code != httpx.codes.OK:
            raise DiscoveryError(f"{url} answered {answer.status_code}")
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MAX_DOCUMENT_BYTES:
                raise DiscoveryError(f"{url} answered more than {MAX_DOCUMENT_BYTES} bytes")
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"{url} did not answer JSON") from error
    return parsed


async def fetch_snapshot(http: httpx.AsyncClient, configured: str, now: float, timeout_seconds: float) -> KeySnapshot:
    """Read discovery and key set. Raises DiscoveryError, or httpx errors when the provider does not answer."""
    discovery = await _get_json(http, configured.removesuffix("/") + DISCOVERY_PATH, timeout_seconds)
    if not isinstance(discovery, dict):
        raise DiscoveryError(f"the discovery document of {configured!r} is not an object")
    issuer = pin_issuer(configured, discovery.get("issuer"))
    jwks_uri = discovery.get("jwks_uri")
    if not isinstance(jwks_uri, str) or urlsplit(jwks_uri).scheme not in {"https", urlsplit(configured).scheme}:
        raise DiscoveryError(f"the discovery document of {configured!r} has no acceptable jwks_uri ({jwks_uri!r})")
    document = await _get_json(http, jwks_uri, timeout_seconds)
    keys = parse_keys(document)
    assert isinstance(document, dict)  # parse_keys refused all else.
    return KeySnapshot(issuer, keys, now, document)


def load_snapshot(path: Path, configured: str) -> KeySnapshot | None:
    """The snapshot kept at `path` for this configured issuer, None when there is none that can be read."""
    try:
        kept = json.loads(path.read_text())
        if kept["configured_issuer"] != configured:
            return None
        issuer = pin_issuer(configured, kept["issuer"])
        return KeySnapshot(issuer, parse_keys(kept["jwks"]), float(kept["fetched_at"]), kept["jwks"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, DiscoveryError) as error:
        log.warning("kept_signing_keys_unreadable", path=str(path), error=str(error))
        return None


def keep_snapshot(path: Path, configured: str, snapshot: KeySnapshot) -> None:
    """Write the snapshot, owner-only, whole or not at all: who could alter it could sign in as anybody."""
    kept = {
        "configured_issuer": configured,
        "issuer": snapshot.issuer,
        "fetched_at": snapshot.fetched_at,
        "jwks": snapshot.document,
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(kept, file)
        draft.replace(path)
    except OSError as error:  # Sign-in works without it; only a restart during an outage would not.
        log.warning("signing_keys_not_kept", path=str(path), error=str(error))


class IssuerKeys:
    """The provider's current keys, shared by every door of a process.

    Nothing is fetched before the first use or `keep_fresh`. Times are Unix seconds given by the caller.
    Raises InvalidIssuer at construction.
    """

    def __init__(
        self,
        issuer: str,
        http: httpx.AsyncClient,
        *,
        cache_file: Path | None = None,
        policy: KeyPolicy | None = None,
        allow_plain_http: bool = False,
    ) -> None:
        self.configured_issuer = check_issuer(issuer, allow_plain_http=allow_plain_http)
        self.problem: str | None = "the identity provider was not asked yet"
        self._http = http
        self._cache_file = cache_file
        self._policy = policy or KeyPolicy()
        self._snapshot = load_snapshot(cache_file, issuer) if cache_file else None
        self._failures = 0
        self._last_attempt_at = -math.inf
        self._last_unknown_key_fetch_at = -math.inf
        self._fetching = asyncio.Lock()

    def ready(self, now: float | None = None) -> bool:
        """Whether tokens can be judged at `now` (default: this moment); `problem` says what the last fetch met."""
        return self._usable(self._snapshot, time.time() if now is None else now)

    async def find(self, key_id: str | None, algorithm: str, now: float) -> tuple[str, tuple[Key, ...]]:
        """The literal issuer and the keys that may have signed a token; no keys when none is known.

        Raises SignInUnavailable when there are no keys to judge by, or when the id is unknown and the
        provider could not be asked about it.
        """
        snapshot = await self._current(now)
        found = select_keys(snapshot.keys, key_id, algorithm)
        if found or key_id is None:
            return snapshot.issuer, found
        async with self._fetching:
            # Whoever waited here while another fetched looks at its result instead of fetching again.
            if self._snapshot is snapshot and self._elapsed(self._last_unknown_key_fetch_at, now) >= (
                self._policy.cool_down_seconds
            ):
                self._last_unknown_key_fetch_at = now
                await self._fetch(now)
        snapshot = self._usable_or_raise(now)
        found = select_keys(snapshot.keys, key_id, algorithm)
        if not found and self._failures:
            raise self._unavailable(now)
        return snapshot.issuer, found

    async def keep_fresh(self, clock: Callable[[], float] = time.time) -> None:
        """Fetch for ever, before the keys age and with backoff while the provider is away; cancel to end."""
        while True:
            async with self._fetching:
                await self._fetch(clock())
            await asyncio.sleep(self._backoff_seconds() if self._failures else self._policy.max_age_seconds / 2)

    async def _current(self, now: float) -> KeySnapshot:
        # While another call waits for the provider, keys that may still serve do.
        waiting_is_needless = self._fetching.locked() and self._usable(self._snapshot, now)
        if not self._fresh(now) and not waiting_is_needless:
            async with self._fetching:
                retry = not self._failures or self._elapsed(self._last_attempt_at, now) >= self._backoff_seconds()
                if not self._fresh(now) and retry:
                    await self._fetch(now)
        return self._usable_or_raise(now)

    async def _fetch(self, now: float) -> None:
        self._last_attempt_at = now
        try:
            snapshot = await fetch_snapshot(self._http, self.configured_issuer, now, self._policy.fetch_timeout_seconds)
        except (httpx.HTTPError, httpx.InvalidURL, DiscoveryError) as error:
            self._failures += 1
            reason = str(error) or type(error).__name__
            self.problem = f"the identity provider at {self.configured_issuer} gave no keys: {reason}"
            log.warning(
                "signing_keys_not_fetched", issuer=self.configured_issuer, error=reason, failures=self._failures
            )
            return
        if snapshot.issuer != self.configured_issuer and self._issuer() != snapshot.issuer:
            log.warning("issuer_differs_by_slash", configured=self.configured_issuer, discovered=snapshot.issuer)
        self._snapshot, self._failures = snapshot, 0
        self.problem = None if snapshot.keys else f"{self.configured_issuer} publishes no key that we accept"
        if self._cache_file:
            keep_snapshot(self._cache_file, self.configured_issuer, snapshot)

    def _issuer(self) -> str | None:
        return self._snapshot.issuer if self._snapshot else None

    def _elapsed(self, since: float, now: float) -> float:
        # A clock that was set back must not hold up the next fetch until it has caught up.
        return now - since if now >= since else math.inf

    def _backoff_seconds(self) -> float:
        doublings = min(self._failures - 1, 10)  # Enough to reach the maximum; unbounded it would overflow.
        return min(self._policy.max_backoff_seconds, self._policy.first_backoff_seconds * 2.0**doublings)

    def _fresh(self, now: float) -> bool:
        return self._snapshot is not None and 0 <= now - self._snapshot.fetched_at < self._policy.max_age_seconds

    def _usable(self, snapshot: KeySnapshot | None, now: float) -> bool:
        if snapshot is None or not snapshot.keys:
            return False
        return -CLOCK_STEP_SECONDS <= now - snapshot.fetched_at <= self._policy.max_stale_seconds

    def _usable_or_raise(self, now: float) -> KeySnapshot:
        if self._snapshot is None or not self._usable(self._snapshot, now):
            raise self._unavailable(now)
        return self._snapshot

    def _unavailable(self, now: float) -> SignInUnavailable:
        wait = self._backoff_seconds() - self._elapsed(self._last_attempt_at, now) if self._failures else 0
        return SignInUnavailable(f"sign-in is unavailable: {self.problem}", max(1, math.ceil(wait)))
