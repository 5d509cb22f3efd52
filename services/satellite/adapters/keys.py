"""SSH keys: the satellite's own management key, and the fingerprints of other people's public keys."""

from __future__ import annotations

import os
from pathlib import Path

import asyncssh

from services.satellite.errors import Failure


def fingerprint(key: str) -> str:
    """ "SHA256:…" of one authorized_keys line. Raises Failure "key_invalid" for a line that is none."""
    try:
        return str(asyncssh.import_public_key(key).get_fingerprint("sha256"))
    except (asyncssh.KeyImportError, ValueError) as error:
        raise Failure(
            "key_invalid", f"{key[:40]!r} is not an SSH public key: {error}", "Give keys as in a .pub file."
        ) from error


def management_key(path: Path) -> asyncssh.SSHKey:
    """The satellite's private key, made at the first start, mode 600."""
    if not path.exists():
        key = asyncssh.generate_private_key("ssh-ed25519", comment="slipway-satellite")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(key.export_private_key())
        partial.replace(path)
    return asyncssh.read_private_key(str(path))
