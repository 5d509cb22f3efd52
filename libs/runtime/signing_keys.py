"""The public keys of the one identity provider that we trust, kept fresh and bounded.

Discovery (OpenID Connect Discovery 1.0 §4) and the key set (RFC 7517) are read again every few
minutes; an unknown key id reads them at once, but never more often than the cool-down, so that
made-up ids cannot turn us into a flood. A key that was withdrawn stops working within the maximum
age. While the provider is away the last keys serve for a bounded time, then sign-in is unavailable:
closed, never open. A provider that is down when we start is not an error, a malformed issuer is.
What a token must say is `tokens.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

log = structlog.get_logger(__name__)

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
DISCOVERY_PATH = "/.well-known/openid-configuration"
MAX_DOCUMENT_BYTES = 1_000_000  # Real key sets are below 20 kB; more is a wrong address or an attack.
LEAST_RSA_BITS = 2048  # RFC 7518 §3.3.
CLOCK_STEP_SECONDS = 60  # A kept set dated further ahead than this comes from a wrong clock.


class InvalidIssuer(ValueError):
    """The configured issuer cannot be an issuer; the message names it and says why."""


class SignInUnavailable(RuntimeError):
    """We have no usable keys, so no token can be judged. Answer 503 with Retry-After; a later try may work."""

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class DiscoveryError(RuntimeError):
    """The provider's documents are not what they must be; the message says which and what to correct."""


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
class SigningKey:
    """A public key, its id (None when the provider gave none) and the algorithms it may verify."""

    key_id: str | None
    algorithms: frozenset[str]
    key: Key


@dataclass(frozen=True)
class KeySnapshot:
    """What the provider said at `fetched_at` (Unix seconds): its literal issuer and its keys."""

    issuer: str
    keys: tuple[SigningKey, ...]
    fetched_at: float
    document: Mapping[str, Any]  # The key set as published, to be kept on disk.


def check_issuer(issuer: str, *, allow_plain_http: bool = False) -> str:
    """`issuer` itself when it is an issuer URL (OpenID Connect Core §2: https, no query, no fragment).

    Plain http is right on the loopback address only, or where the deployment says so (a private
    container network). Raises InvalidIssuer.
    """
    try:
        parts = urlsplit(issuer)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidIssuer(f"issuer {issuer!r} is not a URL: {error}") from error
    if issuer != issuer.strip() or any(c.isspace() or not c.isprintable() for c in issuer):
        raise InvalidIssuer(f"issuer {issuer!r} contains blanks or control characters; remove them")
    if parts.scheme not in ("https", "http") or not host:
        raise InvalidIssuer(f"issuer {issuer!r} must be a URL such as https://sso.example.org/realms/fleet")
    if parts.scheme == "http" and host not in LOOPBACK_HOSTS and not allow_plain_http:
        raise InvalidIssuer(f"issuer {issuer!r} must use https: over http anybody on the way can sign anybody in")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidIssuer(f"issuer {issuer!r} must not have a query, a fragment or a user name")
    if ".." in parts.path.split("/"):
        raise InvalidIssuer(f"issuer {issuer!r} must not contain '..'")
    return issuer


def pin_issuer(configured: str, discovered: object) -> str:
    """The literal issuer to compare tokens with, byte by byte: the discovered one.

    It may differ from the configured one by one trailing slash, else DiscoveryError with both.
    """
    if not isinstance(discovered, str) or not discovered:
        raise DiscoveryError(f"the discovery document of {configured!r} names no issuer")
    if discovered not in (configured, configured + "/") and discovered + "/" != configured:
        raise DiscoveryError(
            f"the issuer is configured as {configured!r} but its discovery document says {discovered!r}; "
            f"configure the latter, if that is the provider you trust"
        )
    return discovered


def parse_keys(document: object) -> tuple[SigningKey, ...]:
    """The keys of a JWK Set that can verify our algorithms. Others are left out one by one, as RFC 7517 §5 asks.

    An empty set is an answer (all keys withdrawn). Anything but a set raises DiscoveryError.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise DiscoveryError("the provider's key set has no list named 'keys'")
    parsed = (_parse_key(entry) for entry in entries if isinstance(entry, dict))
    return tuple(key for key in parsed if key is not None)


def _parse_key(entry: Mapping[str, Any]) -> SigningKey | None:
    key_id, use, algorithm = entry.get("kid"), entry.get("use", "sig"), entry.get("alg")
    if use != "sig" or not (key_id is None or isinstance(key_id, str)):
        return None
    key: Key
    # Only public members are read: a symmetric key is never a candidate, a private one is not kept.
    public = {name: entry[name] for name in ("kty", "crv", "n", "e", "x", "y") if name in entry}
    try:
        match public.get("kty"), public.get("crv"):
            case "RSA", _:
                key, algorithms = RSAKey.import_key(public), {"RS256"}
                if key.public_key.key_size < LEAST_RSA_BITS:
                    return None
            case "EC", "P-256":
                key, algorithms = ECKey.import_key(public), {"ES256"}
            case "OKP", "Ed25519":
                key, algorithms = OKPKey.import_key(public), {"EdDSA", "Ed25519"}
            case _:
                return None
        _ = key.public_key  # Imported on first use otherwise, and a broken key would fail a request.
    except (JoseError, ValueError, TypeError, KeyError) as error:
        log.warning("signing_key_unreadable", key_id=key_id, error=type(error).__name__)
        return None
    if algorithm is not None and algorithm not in algorithms:
        return None
    return SigningKey(key_id, frozenset(algorithms), key)


def select_keys(keys: tuple[SigningKey, ...], key_id: str | None, algorithm: str) -> tuple[Key, ...]:
    """The candidates for a token: by id and algorithm; without an id, the only key of the algorithm or none."""
    same_algorithm = [key for key in keys if algorithm in key.algorithms]
    if key_id is None:
        return (same_algorithm[0].key,) if len(same_algorithm) == 1 else ()
    return tuple(key.key for key in same_algorithm if key.key_id == key_id)


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
        "jwks": {"keys": [entry.key.as_dict(private=False) | _labels(entry) for entry in snapshot.keys]},
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

    `issuer` is checked here (InvalidIssuer); nothing is fetched before the first use or `keep_fresh`.
    """
