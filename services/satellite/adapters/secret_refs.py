"""What all secret stores share: which references are well formed, and the words of their errors.

An error names the reference and the store, never a value, and says what a person does about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from services.satellite.errors import Failure, Unanswered

_REF = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}(/[a-z0-9][a-z0-9._-]{0,99}){0,3}")


def check_ref(ref: str) -> str:
    """`ref` when it is well formed, e.g. bmc/fra1-r1-gpu-01; raises Failure "secret_missing" otherwise."""
    if not _REF.fullmatch(ref) or ".." in ref:
        raise Failure("secret_missing", f"{ref!r} is not the reference of a secret.", "Correct the reference.")
    return ref


def well_formed(ref: str) -> bool:
    """Whether `ref` could name a secret of ours; what others keep beside them is not listed."""
    return bool(_REF.fullmatch(ref)) and ".." not in ref


def text_fields(ref: str, found: Any) -> dict[str, str]:
    """`found` as names and texts. Raises Failure "secret_unreadable" for anything else."""
    if isinstance(found, Mapping) and found and all(isinstance(value, str) for value in found.values()):
        return {str(name): str(value) for name, value in found.items()}
    raise Failure(
        "secret_unreadable",
        f"The secret {ref!r} does not hold named texts such as username and password.",
        "Store it again at the site.",
    )


def parsed_fields(ref: str, value: bytes) -> dict[str, str]:
    """The fields of a secret that is kept as one JSON object. Raises Failure "secret_unreadable"."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None  # The parser's own words would quote the secret.
    return text_fields(ref, found)


def missing(ref: str, store: str) -> Failure:
    return Failure("secret_missing", f"{store} has no secret {ref!r}.", "Store it at the site, then retry.")


def denied(ref: str, store: str, remedy: str) -> Failure:
    return Failure("secret_denied", f"{store} does not let this satellite use {ref!r}.", remedy)


def conflict(ref: str, store: str) -> Failure:
    return Failure(
        "secret_conflict",
        f"{store}: {ref!r} was written by somebody else since it was read.",
        "Find out who writes the site's secrets beside this satellite, then retry.",
    )


def unreachable(ref: str, store: str, why: str, *, writing: bool) -> Failure | Unanswered:
    """The store did not answer in time: a read failed, of a write nobody knows."""
    if writing:
        return Unanswered(
            "secret_write_unanswered",
            f"{store} did not say whether it stored {ref!r}: {why}.",
            "It is read again before anything else is done; look at the store when this lasts.",
        )
    return Failure(
        "secret_store_unreachable",
        f"{store} did not answer for {ref!r}: {why}.",
        "Look at the store and the network between it and the satellite.",
    )
