"""Secrets in an encrypted file store: one AES-256-GCM file for each reference, the key outside the store.

A reference is bound into its file's authentication, so files can't be swapped. The key file must be readable by
its owner only; a store whose key others can read is refused, not used. `python -m
services.satellite.adapters.secret_file DIR KEYFILE put REF` writes a secret from standard input.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.satellite.adapters import secret_refs
from services.satellite.adapters.secret_refs import check_ref
from services.satellite.errors import Failure
from services.satellite.ports import Secret

KEY_BYTES = 32
_NONCE_BYTES = 12  # What NIST SP 800-38D recommends for GCM; random is safe far beyond a site's number of writes.


_STORE = "The site's secret store"


def _version(sealed: bytes) -> str:
    return sealed[:_NONCE_BYTES].hex()


def create_key(path: Path) -> None:
    """Make a new key file, mode 600. Raises FileExistsError when there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))


class FileSecrets:
    """The store in `folder`, opened by `key_file`. Raises Failure "secret_store_unsafe" when the key is exposed."""

    def __init__(self, folder: Path, key_file: Path) -> None:
        self._folder = folder
        try:
            mode = stat.S_IMODE(key_file.stat().st_mode)
            key = key_file.read_bytes()
        except OSError as error:
            raise Failure("secret_store_unsafe", f"The key file {key_file} can't be read: {error.strerror}.") from error
        if mode & 0o077 or len(key) != KEY_BYTES:
            raise Failure(
                "secret_store_unsafe",
                f"The key file {key_file} must hold {KEY_BYTES} bytes and be readable by its owner only.",
                f"chmod 600 {key_file}, and change every secret if others could read it.",
            )
        if key_file.resolve().is_relative_to(folder.resolve()):
            raise Failure("secret_store_unsafe", f"The key file {key_file} must not lie inside the store {folder}.")
        self._cipher = AESGCM(key)

    async def read(self, ref: str) -> Secret:
        """See the port. A version is the nonce that the file was sealed with."""
        sealed = self._sealed(ref)
        return Secret(secret_refs.parsed_fields(ref, self._opened(ref, sealed)), _version(sealed))

    async def write(self, ref: str, fields: Mapping[str, str], *, replaces: str | None) -> str:
        """See the port."""
        path = self._path(ref)
        with self._alone():
            there = _version(path.read_bytes()) if path.exists() else None
            if there != replaces:
                raise secret_refs.conflict(ref, _STORE)
            self.put(ref, json.dumps(dict(fields)).encode())
            return _version(path.read_bytes())

    async def refs(self, prefix: str = "") -> tuple[str, ...]:
        """See the port."""
        files = self._folder.rglob("*.sealed")
        names = (str(path.relative_to(self._folder)).removesuffix(".sealed") for path in files)
        return tuple(sorted(name for name in names if name.startswith(prefix) and secret_refs.well_formed(name)))

    async def remove(self, ref: str) -> None:
        """See the port."""
        with self._alone():
            self._path(ref).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Compare and write without another process in between."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / ".lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def get(self, ref: str) -> bytes:
        """The secret as it lies in the store; raises Failure naming the reference only."""
        return self._opened(ref, self._sealed(ref))

    def _sealed(self, ref: str) -> bytes:
        try:
            return self._path(ref).read_bytes()
        except FileNotFoundError as error:
            raise secret_refs.missing(ref, _STORE) from error
        except OSError as error:
            raise secret_refs.denied(ref, _STORE, f"{error.strerror}: make the store readable for it.") from error

    def _opened(self, ref: str, sealed: bytes) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], ref.encode())
        except (InvalidTag, ValueError) as error:
            raise Failure(
                "secret_unreadable",
                f"The secret {ref!r} was sealed with another key or is damaged.",
                "Store it again at the site.",
            ) from error

    def put(self, ref: str, value: bytes) -> None:
        """Write or replace a secret; it is there whole or not at all."""
        path = self._path(ref)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(nonce + self._cipher.encrypt(nonce, value, ref.encode()))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def _path(self, ref: str) -> Path:
        return self._folder / f"{check_ref(ref)}.sealed"


def main(arguments: list[str]) -> int:
    """The command line: DIR KEYFILE init | DIR KEYFILE put REF."""
    match arguments:
        case [_, key_file, "init"]:
            create_key(Path(key_file))
        case [folder, key_file, "put", ref]:
            FileSecrets(Path(folder), Path(key_file)).put(ref, sys.stdin.buffer.read())
        case _:
            print("usage: secret_file DIR KEYFILE init | secret_file DIR KEYFILE put REF < secret", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
