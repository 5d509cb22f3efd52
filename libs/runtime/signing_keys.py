"""What we accept as an issuer and as a signing key: pure parsing, no network and no clock.

An issuer is pinned to the letter that its discovery document uses (OpenID Connect Discovery 1.0 §4.3);
of a published key set (RFC 7517) only public keys of our three algorithms are ever candidates.
Fetching and ageing is `issuer_keys.py`; what a token must say is `tokens.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

log = structlog.get_logger(__name__)

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
LEAST_RSA_BITS = 2048  # RFC 7518 §3.3.
BASE64_BITS = 6  # Carried by each character of a JWK's members.


class InvalidIssuer(ValueError):
    """The configured issuer cannot be an issuer; the message names it and says why."""


class DiscoveryError(RuntimeError):
    """The provider's documents are not what they must be; the message says which and what to correct."""


@dataclass(frozen=True)
class SigningKey:
    """A public key, its id (None when the provider gave none) and the algorithms it may verify."""

    key_id: str | None
    algorithms: frozenset[str]
    key: Key


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
    if public.get("kty") == "RSA" and len(str(public.get("n"))) * BASE64_BITS < LEAST_RSA_BITS:
        return None
    try:
        match public.get("kty"), public.get("crv"):
            case "RSA", _:
                key, algorithms = RSAKey.import_key(public), {"RS256"}
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
