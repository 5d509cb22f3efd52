"""A machine as lists and shows give it, made from its row without building the whole model: a page has up to 200.

Invariant: the same as `machine_body` of the whole machine; a test compares them. Values that an older release did not
write have their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic_core import to_jsonable_python

from libs.contracts.inventory import Health, MachineFacts, MachineState
from services.inventory.model.machine import Machine, objections

_OWN = ("rack_id", "deadline_at", "fault", "source_problem")
_NAMES = (*MachineFacts.model_fields, *_OWN)
_DEFAULTS: dict[str, Any] = {
    name: to_jsonable_python(field.get_default(call_default_factory=True))
    for name, field in Machine.model_fields.items()
    if name in _NAMES and not field.is_required()
}


def listed_body(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of the machine whose stored facts these are."""
    body = {name: facts[name] if name in facts else _DEFAULTS[name] for name in _NAMES}
    deadline = _time(body["deadline_at"])
    body["deadline_at"] = deadline.isoformat() if deadline else None
    body["objections"] = list(objections(_judged(facts)))
    return body


@dataclass(frozen=True, slots=True)
class _Hold:
    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Row:
    """As much of a machine as `objections` looks at."""

    state: MachineState
    holds: tuple[_Hold, ...]
    health: Health
    claim_id: str | None
    profile: str | None
    sanitised_at: datetime | None
    validated_at: datetime | None
    proof_after: datetime


def _judged(facts: Mapping[str, Any]) -> _Row:
    return _Row(
        state=MachineState(facts["state"]),
        holds=tuple(_Hold(hold["owner"], hold["reason"]) for hold in facts.get("holds") or ()),
        health=Health(facts.get("health") or Health.UNKNOWN),
        claim_id=facts.get("claim_id"),
        profile=facts.get("profile"),
        sanitised_at=_time(facts.get("sanitised_at")),
        validated_at=_time(facts.get("validated_at")),
        proof_after=datetime.fromisoformat(facts["proof_after"]),
    )


def _time(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value) if value else None
