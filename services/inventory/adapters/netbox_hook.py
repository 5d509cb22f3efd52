"""What a webhook of NetBox points at. A hint, no more: which devices to read again; none of its values is taken.

Payloads of NetBox 3.x name the `model` ("device"), later ones also the `object_type` ("dcim.device"). Snapshots may be
null or missing; the same change may be told several times, late, or after one that came later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LARGEST_ID = 2**63 - 1
# What is part of a device but an object of its own in NetBox.
_ASSIGNED = ("ipaddress", "macaddress")


@dataclass(frozen=True)
class Hint:
    """`netbox_ids`: devices to read again, () when there are none; `why` says what was told, or why it is ignored."""

    netbox_ids: tuple[int, ...]
    why: str


def hint_of(document: object) -> Hint:
    """The devices that a webhook's body is about. Never raises: what can't be read points at nothing."""
    if not isinstance(document, dict):
        return Hint((), "it is no object")
    model = _model(document)
    data = document.get("data")
    found: tuple[int, ...] = ()
    if model == "device":
        found = _number(data)
    elif model == "interface":
        found = _number(_of(data, "device"))
    elif model in _ASSIGNED:
        found = _number(_of(_of(data, "assigned_object"), "device"))
    else:
        return Hint((), f"a {model or 'nameless'} is not read by hints")
    event = document.get("event")
    told = f"{model} {event if isinstance(event, str) else 'changed'}"[:100]
    return Hint(found, told if found else f"{told}, but no device is named")


def _model(document: dict[Any, Any]) -> str:
    for key in ("model", "object_type"):
        value = document.get(key)
        if isinstance(value, str) and value:
            return value.rpartition(".")[2].lower()[:50]
    return ""


def _of(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _number(value: object) -> tuple[int, ...]:
    number = _of(value, "id")
    fine = isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LARGEST_ID
    return (number,) if fine and isinstance(number, int) else ()
