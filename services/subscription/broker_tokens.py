"""NATS JWTs by which the broker is told who a subscriber is and what it may do (ADR-26, auth callout).

`python -m services.subscription.broker_tokens FILE` makes the key that signs them: the seed in FILE is the service's
SLIPWAY_SUBSCRIBERS_ISSUER_SEED; the public key that it prints is `auth_callout.issuer` in the broker's configuration.
https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-26.md
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys

ACCOUNT = "SUBSCRIBERS"  # As deploy/nats/hub.conf.template names it.
LIFE_SECONDS = 3600  # A connection ends then and signs in again; a replaced password is refused from there on.
SUBSCRIPTIONS = 16
PAYLOAD_BYTES = 1024  # Requests for the next messages, and acknowledgements.
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


class Unreadable(ValueError):
    """The broker's request is none."""


@dataclass(frozen=True)
class SignIn:
    """What the broker asks: a client of `user_key` says it is `user` with `password`."""

    server_id: str
    user_key: str
    user: str
    password: str
    host: str


def parse_request(token: bytes) -> SignIn:
    """The broker's question. Raises Unreadable. Only the broker can publish below $SYS, so it needs no proof."""
    try:
        claims = json.loads(_decoded(token.decode().split(".")[1]))["nats"]
        options = claims["connect_opts"]
        return SignIn(
            server_id=str(claims["server_id"]["id"]),
            user_key=str(claims["user_nkey"]),
            user=str(options.get("user") or ""),
            password=str(options.get("pass") or ""),
            host=str(claims.get("client_info", {}).get("host") or ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise Unreadable("this is no authorization request") from None


class Issuer:
    """Signs for the broker. Raises ValueError when `seed` is no seed of an account."""

    def __init__(self, seed: str) -> None:
        try:
            self._pair = nkeys.from_seed(bytearray(seed.encode()))
        except Exception:
            raise ValueError("subscribers_issuer_seed is no NATS seed (SA…)") from None
        self.public: str = self._pair.public_key.decode()

    def allowed(self, request: SignIn, consumer: str, inbox: str, now: int, until: int | None) -> bytes:
        """Yes: next and acknowledgement of one consumer, and one private inbox, until `until` at most."""
        expires = now + LIFE_SECONDS if until is None else min(until, now + LIFE_SECONDS)
        permissions = {
            "pub": {"allow": [f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", f"$JS.ACK.{consumer}.>"]},
            "sub": {"allow": [f"{inbox}.>"]},
        }
        user = self._signed(
            {
                "iat": now,
                "exp": expires,
                "iss": self.public,
                "sub": request.user_key,
                "aud": ACCOUNT,
                "name": request.user,
                "nats": {
                    **permissions,
                    "subs": SUBSCRIPTIONS,
                    "data": -1,
                    "payload": PAYLOAD_BYTES,
                    "type": "user",
                    "version": 2,
                },
            }
        )
        return self._answer(request, now, {"jwt": user})

    def refused(self, request: SignIn, now: int, reason: str) -> bytes:
        """No. The reason is for the broker's log; the client learns only that it was refused."""
        return self._answer(request, now, {"error": reason})

    def _answer(self, request: SignIn, now: int, content: dict[str, str]) -> bytes:
        nats = {**content, "type": "authorization_response", "version": 2}
        claims = {"iat": now, "iss": self.public, "sub": request.user_key, "aud": request.server_id, "nats": nats}
        return self._signed(claims).encode()

    def _signed(self, claims: dict[str, Any]) -> str:
        digest = hashlib.new("sha512_256", _compact(claims)).digest()
        identified = {**claims, "jti": base64.b32encode(digest).decode().rstrip("=")}
        head, body = _encoded(_compact(_HEADER)), _encoded(_compact(identified))
        return f"{head}.{body}.{_encoded(self._pair.sign(f'{head}.{body}'.encode()))}"


def make_seed(path: Path) -> str:
    """A new seed in `path`, readable by its owner only; returns the public key. Raises FileExistsError."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_ACCOUNT)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(seed)
    return Issuer(seed.decode()).public


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m services.subscription.broker_tokens FILE")
    try:
        print(make_seed(Path(sys.argv[1])))
    except OSError as problem:
        raise SystemExit(f"{sys.argv[1]}: {problem.strerror}; name a new file in a folder that exists") from None
