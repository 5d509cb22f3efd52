"""Violations of invariants: where two systems disagree about a machine, or nobody works on what should be worked on."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from libs.contracts.message import Message, event


class Severity(StrEnum):
    """`critical`: somebody may lose data or a machine. `warning`: the next step of somebody would fail."""

    CRITICAL = "critical"
    WARNING = "warning"


class ViolationFacts(Message):
    """One occurrence: the invariant, whom it is about, what should be (`ours`) and what is (`theirs`).

    `subject` is the machine's id, or the node's when no machine of ours is that node. `repair` names the workflow that
    `POST /violations/{id}/repair` starts.
    """

    id: str
    invariant: str
    severity: Severity
    site: str
    subject: str
    name: str
    ours: str
    theirs: str
    repair: str
    first_seen_at: datetime
    opened_at: datetime
    cleared_at: datetime | None = None
    repaired_by: str = ""
    repair_operation_id: str | None = None
    version: int


class _ViolationEvent(Message):
    violation: ViolationFacts

    def key(self) -> str:
        return self.violation.id


@event("inventory", "violation", "opened")
class ViolationOpened(_ViolationEvent):
    """An invariant did not hold for longer than its grace period."""


@event("inventory", "violation", "cleared")
class ViolationCleared(_ViolationEvent):
    """It was seen to hold again; no source that is only silent clears it."""
