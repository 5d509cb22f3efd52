"""SSH public keys as people paste them: parsed strictly, fingerprinted, never a private one.

A pasted private key is refused without repeating any of it, and must be considered known to others. Options
(`command=…`, `from=…`) are refused: on a tenant's node the key's owner is its administrator.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import warnings
from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from libs.contracts.text import display_name
from services.provisioning.errors import BAD_KEY, PRIVATE_KEY

MAX_KEY_LENGTH = 16 * 1024  # OpenSSH's own limit for a line of authorized_keys is of this order.
MAX_COMMENT_LENGTH = 200
MIN_RSA_BITS = 2048  # NIST SP 800-131A: less is disallowed.
KEY_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
_PRIVATE_MARKS = ("PRIVATE KEY", "PuTTY-User-Key-File", "openssh-key-v1")
# How the unencrypted body of a new-format private key begins, without its armour: base64 of "openssh-key-v1".
_PRIVATE_BODY = "b3BlbnNzaC1rZXktdjE"


class BadKey(ValueError):
    """Not an acceptable public key. The text never contains the key."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class PublicKey:
    """`line` is the normalised line for authorized_keys; `fingerprint` as `ssh-keygen -l` shows it (SHA256:…)."""

    line: str
    fingerprint: str


def parse_public_key(text: str) -> PublicKey:
    """One OpenSSH public key: type, base64, optional comment. Raises BadKey."""
    _refuse_private(text)
    text = text.strip()
    if not text:
        raise BadKey(BAD_KEY, "is blank; paste the content of a .pub file, e.g. ~/.ssh/id_ed25519.pub")
    if len(text) > MAX_KEY_LENGTH:
        raise BadKey(BAD_KEY, f"has {len(text)} characters; a public key has at most {MAX_KEY_LENGTH}")
    if any(ord(char) < 0x20 and char != "\t" for char in text):
        raise BadKey(BAD_KEY, "has more than one line or a control character; give one key in each entry")
    kind, _, rest = text.replace("\t", " ").partition(" ")
    if kind not in KEY_TYPES:
        raise BadKey(BAD_KEY, f"must begin with the key's type ({', '.join(KEY_TYPES)}); options before it, "
                     "certificates and DSA keys are not accepted")  # fmt: skip
    body, _, comment = rest.strip().partition(" ")
    blob = _blob(body)
    _check(kind, body)
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return PublicKey(line=" ".join(filter(None, (kind, body, _comment(comment)))), fingerprint=f"SHA256:{digest}")


def _refuse_private(text: str) -> None:
    if any(mark in text for mark in _PRIVATE_MARKS) or _PRIVATE_BODY in text:
        raise BadKey(
            PRIVATE_KEY,
            "is a PRIVATE key. It was not stored, but it has left your computer: treat it as known to others, make a "
            "new pair (ssh-keygen -t ed25519), remove the old one everywhere, and send the content of the .pub file",
        )


def _blob(body: str) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadKey(BAD_KEY, "is cut off or damaged: the part after the type is no base64") from error


def _check(kind: str, body: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            key = load_ssh_public_key(f"{kind} {body}".encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(BAD_KEY, f"is no valid {kind} key: it is cut off, damaged or of another type") from error
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise BadKey(BAD_KEY, f"is an RSA key of {key.key_size} bits; at least {MIN_RSA_BITS} are needed")


def _comment(comment: str) -> str:
    if not comment.strip():
        return ""
    try:
        return display_name(comment, max_length=MAX_COMMENT_LENGTH)
    except ValueError as error:
        raise BadKey(BAD_KEY, f"has a comment that can't be kept: {error}") from error
