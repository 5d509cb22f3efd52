"""Our custom fields in NetBox: made where they are missing, left out of what is written where they can't hold it."""

from __future__ import annotations

from collections.abc import Sequence

from pynetbox.core.query import RequestError

from services.inventory.adapters.netbox_rest import Rest, translated
from services.inventory.adapters.records import Document
from services.inventory.adapters.source import SourceMisconfigured
from services.inventory.model.source import DeviceProblem

DEVICE = "dcim.device"
CUSTOM_FIELDS = (
    ("slipway_machine_id", "text", "Slipway's id of this machine"),
    ("slipway_state", "text", "Where the machine is in its life"),
    ("slipway_health", "text", "What is proven about the machine's health"),
    ("slipway_validated_at", "datetime", "When the machine last passed validation"),
)
# A longer text holds the same words.
_HOLDS = {"text": ("text", "longtext"), "datetime": ("datetime",)}


def unusable_fields(rest: Rest) -> dict[str, str]:
    """Make what is missing. Returns what can't be written, by name, and why; reading goes on without it."""
    known = {str(made.get("name")): made for made in rest.every("extras/custom-fields")}
    wrong: dict[str, str] = {}
    for name, kind, description in CUSTOM_FIELDS:
        problem = _wrong(known[name], kind) if name in known else _make(rest, name, kind, description)
        if problem:
            wrong[name] = f"custom field {name}: {problem}; until then it is not written"
    return wrong


def field_problems(wrong: dict[str, str]) -> tuple[DeviceProblem, ...]:
    return tuple(DeviceProblem(f"field:{name}", None, name, words) for name, words in sorted(wrong.items()))


def _wrong(made: Document, kind: str) -> str:
    # NetBox 3.x calls the list of models content_types; a type is {"value", "label"}, in old releases a word.
    shown = made.get("type")
    found = shown.get("value") if isinstance(shown, dict) else shown
    if found not in _HOLDS[kind]:
        return f"its type is {found!r}, not {kind!r}: remove the field in NetBox, Slipway makes it again"
    models: Sequence[object] = made.get("object_types") or made.get("content_types") or ()
    if DEVICE not in models:
        return f"it is not for {DEVICE}: add that to its object types"
    return ""


def _make(rest: Rest, name: str, kind: str, description: str) -> str:
    try:
        rest.api.extras.custom_fields.create(
            name=name,
            type=kind,
            label=name.removeprefix("slipway_").replace("_", " ").capitalize(),
            description=description,
            group_name="Slipway",
            object_types=[DEVICE],
        )
    except RequestError as error:
        fault = translated(error)
        if not isinstance(fault, SourceMisconfigured):
            raise fault from error
        return f"it is missing and can't be made ({fault})"
    return ""
