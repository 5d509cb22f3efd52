"""The key that checkpoints and removals are signed with: Ed25519, one private file, made by a person once.

`python -m services.audit.signing FILE` makes it. Every replica uses the same one. A new key may take its place at any
time: the public halves of all keys that ever signed stay in the database and are published.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from slipway.proof import key_id, unpadded


class NoSigningKey(ValueError):
    """The file is no key of ours; the message names it and what to do."""


@dataclass(frozen=True)
class Signer:
    """Signs statements. `public_key` is a JWK (RFC 8037)."""

    key: Ed25519PrivateKey
    key_id: str
    public_key: dict[str, Any]

    def sign(self, statement: str) -> str:
        """The signature of the statement's UTF-8 bytes, base64url without padding."""
        return unpadded(self.key.sign(statement.encode()))


Signers = Callable[[], Signer | None]
"""Gives the key, None when this installation has none."""


def signer_of(key: Ed25519PrivateKey) -> Signer:
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    public: dict[str, Any] = {"kty": "OKP", "crv": "Ed25519", "x": unpadded(raw)}
    name = key_id(public)
    return Signer(key, name, {**public, "kid": name, "use": "sig", "alg": "EdDSA"})


def read_signer(path: Path) -> Signer:
    """The key in a PEM file. Raises NoSigningKey."""
    remedy = f"Make one with: python -m services.audit.signing {path}"
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise NoSigningKey(f"{path} can't be read: {error.strerror}. {remedy}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise NoSigningKey(f"{path} is no private key in PEM form: {error}. {remedy}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise NoSigningKey(f"{path} is a {type(key).__name__}, not an Ed25519 key. {remedy}")
    return signer_of(key)


def make_key(path: Path) -> bool:
    """Make a key that only the file's owner can read; false when there is a file already, which stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # Unlike a rename, this never replaces a key.
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m services.audit.signing FILE", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    made = make_key(path)
    print(f"{path}: {'made' if made else 'kept as it was'}, key id {read_signer(path).key_id}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
