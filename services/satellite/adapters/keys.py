"""SSH keys: the satellite's own management key, and the fingerprints of other people's public keys."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from services.satellite.errors import Failure

_COMMENT = "slipway-satellite"


def fingerprint(key: str) -> str:
    """ "SHA256:…" of one authorized_keys line without options. Raises Failure "key_invalid" for anything else."""
    line = key.strip()
    try:
        if "\n" in line:
            raise ValueError("more than one line")
        load_ssh_public_key(line.encode())
        blob = base64.b64decode(line.split()[1], validate=True)
    except (ValueError, IndexError, UnsupportedAlgorithm) as error:
        raise Failure(
            "key_invalid", f"{line[:40]!r} is not an SSH public key: {error}", "Give keys as in a .pub file."
        ) from error
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def make_management_key(path: Path) -> None:
    """Make the satellite's private key once, mode 600, in OpenSSH's format."""
    if path.exists():
        return
    sealed = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(sealed)
    partial.replace(path)


def public_line(path: Path) -> str:
    """The public half of the private key in `path`, as one authorized_keys line."""
    public = load_ssh_private_key(path.read_bytes(), password=None).public_key()
    return f"{public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} {_COMMENT}"
