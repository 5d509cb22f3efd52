"""Operations: long-running requests, published by the service whose saga runs them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from libs.contracts.message import Message
from libs.contracts.replies import Problem


class OperationStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self in (OperationStatus.SUCCEEDED, OperationStatus.FAILED, OperationStatus.CANCELLED)


class StepStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNDOING = "UNDOING"
    UNDONE = "UNDONE"
    SKIPPED = "SKIPPED"


class OperationStep(Message):
    """One step. `items` counts what the step does once for each of (machines), (done, all)."""

    name: str
    status: StepStatus = StepStatus.PENDING
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    items_done: int = 0
    items_all: int = 0
    last_error: Problem | None = None


class OperationFacts(Message):
    """The whole operation as of its event. `waiting_for` is "" unless a human or capacity is waited for."""

    id: str
    service: str
    kind: str
    target_kind: str
    target_id: str
    tenant: str = "-"
    site: str = "-"
    actor: str
    correlation_id: str
    status: OperationStatus
    waiting_for: str = ""
    compensating: bool = False
    steps: tuple[OperationStep, ...] = ()
    problem: Problem | None = None
    notes: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime
    result: dict[str, object] = Field(default_factory=dict)

    @property
    def progress(self) -> float:
        """0.0 to 1.0 by finished steps; items of the running step count in part."""
        if self.status is OperationStatus.SUCCEEDED:
            return 1.0
        if not self.steps:
            return 0.0
        done = 0.0
        for step in self.steps:
            if step.status in (StepStatus.SUCCEEDED, StepStatus.SKIPPED):
                done += 1
            elif step.status is StepStatus.RUNNING and step.items_all:
                done += step.items_done / step.items_all
        return round(done / len(self.steps), 4)


# Sagas of every service publish these; each service declares its own types so that one publisher owns each.
OPERATION_EVENTS = ("started", "progressed", "finished")
