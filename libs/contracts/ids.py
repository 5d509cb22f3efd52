"""Identifiers. New ones are UUIDv7, so that they sort by time; those of API objects name their owner.

`op-inv-0190…` is an operation that inventory owns: a look-up by id is one call to that service.
Machine ids and claim ids are plain UUIDs because Ironic keeps them (node uuid, instance_uuid).
"""

from __future__ import annotations

import re
import uuid

import uuid_utils

OWNER_CODES = {
    "inventory": "inv",
    "reservation": "res",
    "provisioning": "prv",
    "validation": "val",
    "cost": "cst",
    "identity": "idn",
    "audit": "aud",
    "subscription": "sub",
    "gateway": "gwy",
}
OWNERS = {code: service for service, code in OWNER_CODES.items()}
_OPERATION = re.compile(r"^op-([a-z]{3})-[0-9a-f]{32}\Z")
_PREFIXED = re.compile(r"^[a-z]{3,4}-[0-9a-f]{32}\Z")
_SLUG = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
# A fixed namespace for ids that are derived from others (a command of a saga's step, a machine of a NetBox device).
NAMESPACE = uuid.UUID("6f0a4c0e-51b9-5c55-9d0f-5a3f0f1f7a11")


def new_uuid() -> str:
    """A new UUIDv7 as text."""
    return str(uuid_utils.uuid7())


def new_id(prefix: str) -> str:
    """A new prefixed id, e.g. new_id("clu") -> "clu-0190…" (32 hex digits)."""
    return f"{prefix}-{uuid_utils.uuid7().hex}"


def new_operation_id(service: str) -> str:
    """A new operation id that names its owner."""
    return f"op-{OWNER_CODES[service]}-{uuid_utils.uuid7().hex}"


def operation_owner(operation_id: str) -> str | None:
    """The service that owns the operation; None when the id has not the form of one."""
    match = _OPERATION.match(operation_id)
    return OWNERS.get(match.group(1)) if match else None


def derived_uuid(*parts: str) -> str:
    """The UUIDv5 of `parts`: the same parts always give the same id."""
    return str(uuid.uuid5(NAMESPACE, "\x1f".join(parts)))


def is_uuid(text: str) -> bool:
    """Whether `text` is a UUID in its canonical form."""
    try:
        return str(uuid.UUID(text)) == text
    except (ValueError, AttributeError, TypeError):
        return False


def is_prefixed(text: str, prefix: str) -> bool:
    """Whether `text` is an id made by new_id(prefix)."""
    return text.startswith(f"{prefix}-") and _PREFIXED.match(text) is not None


def is_slug(text: str) -> bool:
    """Whether `text` is a slug: 1-63 of a-z, 0-9 and inner dashes. Safe as one NATS subject token."""
    return _SLUG.match(text) is not None
