"""Secrets and signatures as Standard Webhooks has them: HMAC-SHA256 (`v1`) or Ed25519 (`v1a`) over id, time and body.

A webhook's secret is derived from the installation's key, its id and its generation: it is stored nowhere.
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from libs.contracts.subscription import Signature

SECRET_PREFIX, PUBLIC_PREFIX = "whsec_", "whpk_"


def _derived(key: str, webhook_id: str, generation: int, use: Signature) -> bytes:
    return hmac.new(key.encode(), f"webhook/{use}/{webhook_id}/{generation}".encode(), hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def receiver_key(key: str, webhook_id: str, generation: int, use: Signature) -> str:
    """What the receiver checks with: `whsec_…` (to be kept secret) or the public key `whpk_…`."""
    raw = _derived(key, webhook_id, generation, use)
    if use is Signature.HMAC:
        return SECRET_PREFIX + _text(raw)
    public = Ed25519PrivateKey.from_private_bytes(raw).public_key()
    return PUBLIC_PREFIX + _text(public.public_bytes(Encoding.Raw, PublicFormat.Raw))


def signed_headers(
    key: str, webhook_id: str, generations: Sequence[int], use: Signature, message_id: str, now: datetime, body: bytes
) -> dict[str, str]:
    """The three headers; with two generations, a signature of each, so that a secret is replaced without a gap."""
    stamp = str(int(now.timestamp()))
    content = f"{message_id}.{stamp}.".encode() + body
    signatures = [_signature(_derived(key, webhook_id, number, use), use, content) for number in generations]
    return {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": " ".join(signatures)}


def _signature(raw: bytes, use: Signature, content: bytes) -> str:
    if use is Signature.HMAC:
        return "v1," + _text(hmac.new(raw, content, hashlib.sha256).digest())
    return "v1a," + _text(Ed25519PrivateKey.from_private_bytes(raw).sign(content))


def new_password() -> str:
    """A subscriber's password, 256 bits; long enough that a plain digest of it can be kept."""
    return secrets.token_urlsafe(32)


def password_digest(password: str) -> str:
    return hashlib.sha256(b"subscriber/" + password.encode()).hexdigest()


def inbox_prefix(password: str) -> str:
    """Where a subscriber's answers go: only who knows the password can guess it."""
    return "_INBOX_" + hashlib.sha256(b"inbox/" + password.encode()).hexdigest()[:24]
