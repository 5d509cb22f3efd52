"""Bearer tokens: who is calling, or a permanent reason why we do not believe it.

Accepts JWT access tokens (RFC 9068) of one issuer for one audience, signed with an asymmetric
algorithm by a key that the issuer publishes. The signature is judged before any claim; a claim that
is missing or malformed is a refusal, never a default. No error ever contains the token. Roles are not
read from tokens: they live in the identity service, by issuer and subject.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import CompactSignature, JWSRegistry

from libs.runtime.issuer_keys import IssuerKeys, KeyPolicy, SignInUnavailable

__all__ = [
    "Principal",
    "RefusalCode",
    "SignInUnavailable",
    "TokenRefused",
    "TokenVerifier",
    "bearer_token",
    "check_claims",
    "check_header",
]

ALGORITHMS = ("RS256", "ES256", "EdDSA", "Ed25519")  # Ed25519 is EdDSA's fully specified name (RFC 9864).
ACCESS_TOKEN_TYPES = frozenset({"at+jwt", "application/at+jwt"})  # RFC 9068 §2.1.
PLAIN_JWT_TYPES = frozenset({"jwt", "application/jwt"})
MAX_TOKEN_CHARACTERS = 16_384  # Twice what common servers take as all headers together.
MAX_SUBJECT_CHARACTERS = 255  # OpenID Connect Core §2.
LAST_EXPIRY = 253_402_300_799  # The end of the year 9999; beyond it somebody counted milliseconds.
SHOWN_CHARACTERS = 200
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_BEARER = re.compile(r"bearer +([^ ]+) *", re.IGNORECASE)


class RefusalCode(StrEnum):
    """Why a token was refused. Permanent: clients and audit records rely on them."""

    MISSING = "token_missing"
    MALFORMED = "token_malformed"
    ALGORITHM = "token_algorithm_refused"
    TYPE = "token_type_refused"
    KEY_UNKNOWN = "token_key_unknown"
    SIGNATURE = "token_signature_invalid"
    CLAIM_MISSING = "token_claim_missing"
    CLAIM_MALFORMED = "token_claim_malformed"
    ISSUER = "token_issuer_mismatch"
    AUDIENCE = "token_audience_mismatch"
    EXPIRED = "token_expired"
    NOT_YET_VALID = "token_not_yet_valid"


class TokenRefused(Exception):
    """The caller is not believed: answer 401 with `code`. The message never contains the token."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Principal:
    """A caller whose token was believed. Identity is issuer and subject together, nothing else.

    `expires_at` is in Unix seconds. `scopes`, `groups` and `client_id` are what the issuer said and
    may be empty or None; they grant nothing by themselves.
    """

    subject: str
    issuer: str
    audience: str
    expires_at: int
    client_id: str | None
    token_id: str | None
    scopes: frozenset[str]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Expectation:
    """What a token's claims are held against."""

    issuer: str
    audience: str
    leeway_seconds: float


def bearer_token(authorization: str | None) -> str:
    """The token of an Authorization header (RFC 6750 §2.1). Raises TokenRefused."""
    if authorization is None or not authorization.strip():
        raise TokenRefused(RefusalCode.MISSING, "no bearer token was sent; sign in and send 'Authorization: Bearer …'")
    match = _BEARER.fullmatch(authorization)
    if match is None:
        raise TokenRefused(RefusalCode.MALFORMED, "the Authorization header is not 'Bearer' and one token")
    return match[1]


class _Registry(JWSRegistry):
    """joserfc's algorithms, ours only; headers that we do not use are ignored (RFC 7515 §4)."""

    max_header_length = 4096  # Some providers put a certificate chain in the header.

    def __init__(self) -> None:
        super().__init__(algorithms=ALGORITHMS, strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        # The parent warns on the name EdDSA, which providers still use, on every single request.
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(f"Algorithm of '{name}' is not allowed")
        return self.algorithms[name]


_REGISTRY = _Registry()


def parse_token(token: str) -> CompactSignature:
    """The unverified parts of a compact JWS. Raises TokenRefused."""
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise TokenRefused(RefusalCode.MALFORMED, f"the token is longer than {MAX_TOKEN_CHARACTERS} characters")
    if not _COMPACT.fullmatch(token):
        raise TokenRefused(RefusalCode.MALFORMED, "the token is not a signed JWT of three parts")
    try:
        return jws.extract_compact(token.encode("ascii"), registry=_REGISTRY)
    except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
        # The cause is cut off: its text and its frames hold parts of the token.
        raise TokenRefused(RefusalCode.MALFORMED, "the token's header cannot be read") from None


def check_header(header: Mapping[str, Any], *, accept_plain_jwt: bool = False) -> tuple[str | None, str]:
    """The key id and the algorithm that an unverified header claims. Raises TokenRefused."""
    algorithm, kind, key_id = header.get("alg"), header.get("typ"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenRefused(RefusalCode.ALGORITHM, f"the token must be signed with one of {', '.join(ALGORITHMS)}")
    if "crit" in header or "b64" in header:
        raise TokenRefused(RefusalCode.MALFORMED, "the token's header demands an extension that we do not have")
    accepted = ACCESS_TOKEN_TYPES | (PLAIN_JWT_TYPES if accept_plain_jwt else frozenset())
    if not (isinstance(kind, str) and kind.lower() in accepted) and not (accept_plain_jwt and kind is None):
        raise TokenRefused(RefusalCode.TYPE, "the token is not an access token: its 'typ' must be at+jwt (RFC 9068)")
    if not (key_id is None or isinstance(key_id, str)):
        raise TokenRefused(RefusalCode.MALFORMED, "the token's key id is not a string")
    return key_id, str(algorithm)


def check_claims(claims: Mapping[str, Any], expected: Expectation, now: float) -> Principal:
    """The principal of verified claims at `now` (Unix seconds). Raises TokenRefused.

    The issuer is compared byte by byte, the audience as an exact element; times get the leeway, an
    expiry equal to now minus the leeway has passed (RFC 7519 §4.1.4).
    """
    issuer = _text(claims, "iss")
    if issuer != expected.issuer:
        raise TokenRefused(RefusalCode.ISSUER, f"the token is of issuer {_shown(issuer)}, not {expected.issuer!r}")
    if expected.audience not in _audiences(claims):
        raise TokenRefused(RefusalCode.AUDIENCE, f"the token is not for the audience {expected.audience!r}")
    expires_at = _instant(claims, "exp")
    if now >= expires_at + expected.leeway_seconds:
        raise TokenRefused(RefusalCode.EXPIRED, "the token has expired; sign in again")
    for name in ("nbf", "iat"):
        if name in claims and now < _instant(claims, name) - expected.leeway_seconds:
            raise TokenRefused(
                RefusalCode.NOT_YET_VALID, f"the token's {name!r} lies in the future; check the clocks of both sides"
            )
    return Principal(
        subject=_subject(claims),
        issuer=issuer,
        audience=expected.audience,
        expires_at=math.floor(expires_at),
        client_id=_optional_text(claims, "client_id") or _optional_text(claims, "azp"),
        token_id=_optional_text(claims, "jti"),
        scopes=frozenset((_optional_text(claims, "scope") or "").split()),
        groups=_groups(claims),
    )


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    if name not in claims:
        raise TokenRefused(RefusalCode.CLAIM_MISSING, f"the token has no {name!r}")
    return claims[name]


def _malformed(name: str, wanted: str) -> TokenRefused:
    return TokenRefused(RefusalCode.CLAIM_MALFORMED, f"the token's {name!r} is not {wanted}")


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = _claim(claims, name)
    if not isinstance(value, str) or not value.strip():
        raise _malformed(name, "a text that is not blank")
    return value


def _optional_text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    return value if isinstance(value, str) and value.strip() else None


def _subject(claims: Mapping[str, Any]) -> str:
    subject = _text(claims, "sub")
    # An invisible character would make two subjects that nobody can tell apart in a list or a log.
    if len(subject) > MAX_SUBJECT_CHARACTERS or not subject.isprintable() or subject != subject.strip():
        raise _malformed("sub", f"a printable text of at most {MAX_SUBJECT_CHARACTERS} characters")
    return subject


def _audiences(claims: Mapping[str, Any]) -> tuple[str, ...]:
    value = _claim(claims, "aud")
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(element, str) for element in values):
        raise _malformed("aud", "a text or a list of texts")
    return tuple(values)


def _instant(claims: Mapping[str, Any], name: str) -> float:
    value = _claim(claims, name)
    # bool is an int to Python; NaN compares false with everything and would never expire.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LAST_EXPIRY:
        raise _malformed(name, "a time in Unix seconds")
    return value


def _groups(claims: Mapping[str, Any]) -> tuple[str, ...]:
    value = claims.get("groups")
    return tuple(group for group in value if isinstance(group, str)) if isinstance(value, list) else ()


def _shown(value: str) -> str:
    return repr(value[:SHOWN_CHARACTERS])


def _payload_claims(signed: CompactSignature) -> Mapping[str, Any]:
    try:
        claims = json.loads(signed.payload or b"")
    except (ValueError, RecursionError):
        raise TokenRefused(RefusalCode.MALFORMED, "the token's claims are not JSON") from None
    if not isinstance(claims, dict):
        raise TokenRefused(RefusalCode.MALFORMED, "the token's claims are not an object")
    return claims


class TokenVerifier:
    """Judges tokens of one issuer for one audience.

    Raises InvalidIssuer at construction; a provider that is down is no error then, see `ready`.
    `cache_file` keeps the last keys over a restart. `accept_plain_jwt` is for providers that cannot
    mark access tokens as at+jwt.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        http: httpx.AsyncClient,
        *,
        leeway_seconds: float = 60,
        cache_file: Path | None = None,
        accept_plain_jwt: bool = False,
        allow_plain_http: bool = False,
        policy: KeyPolicy | None = None,
        keys: IssuerKeys | None = None,
    ) -> None:
        if not audience.strip():
            raise ValueError("the audience of a token verifier must not be blank")
        self.keys = keys or IssuerKeys(
            issuer, http, cache_file=cache_file, policy=policy, allow_plain_http=allow_plain_http
        )
        self.audience = audience
        self._http = http
        self._leeway_seconds = leeway_seconds
        self._accept_plain_jwt = accept_plain_jwt

    def for_audience(self, audience: str) -> TokenVerifier:
        """The verifier of another door of the same process: same issuer, same keys, fetched once."""
        return TokenVerifier(
            self.keys.configured_issuer,
            audience,
            self._http,
            leeway_seconds=self._leeway_seconds,
            accept_plain_jwt=self._accept_plain_jwt,
            keys=self.keys,
        )

    def ready(self, now: float | None = None) -> bool:
        """Whether tokens can be judged now; `problem` says why not."""
        return self.keys.ready(now)

    @property
    def problem(self) -> str | None:
        """What the last attempt to get keys met, for people; None when it went well."""
        return self.keys.problem

    async def keep_fresh(self) -> None:
        """Run in the background of the process, see IssuerKeys.keep_fresh. Optional: verify fetches by itself too."""
        await self.keys.keep_fresh()

    async def verify(self, token: str, now: float) -> Principal:
        """The principal of `token` at `now` (Unix seconds). Raises TokenRefused (401) or SignInUnavailable (503)."""
        signed = parse_token(token)
        key_id, algorithm = check_header(signed.headers(), accept_plain_jwt=self._accept_plain_jwt)
        issuer, candidates = await self.keys.find(key_id, algorithm, now)
        if not candidates:
            raise TokenRefused(RefusalCode.KEY_UNKNOWN, "the token's signing key is not published by its issuer")
        if not any(_signed_by(signed, key) for key in candidates):
            raise TokenRefused(RefusalCode.SIGNATURE, "the token's signature is wrong")
        return check_claims(_payload_claims(signed), Expectation(issuer, self.audience, self._leeway_seconds), now)


def _signed_by(signed: CompactSignature, key: Any) -> bool:
    try:
        return jws.validate_compact(signed, key, registry=_REGISTRY)
    except (JoseError, ValueError, TypeError):
        return False
