"""The state of one saga, as it is kept in its row: everything needed to go on after a crash, nothing in memory."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from libs.contracts.operations import OperationFacts, OperationStatus, OperationStep, StepStatus
from libs.contracts.replies import Problem

Phase = Literal["running", "undoing", "parked", "finished"]
Role = Literal["do", "undo", "swap", "retry", "retry_undo"]


class Pending(BaseModel):
    """Something awaited: the reply to a command, or (roles retry…) the time to send it again."""

    role: Role
    step: int
    item: str
    attempt: int


class Track(BaseModel):
    """How far one item is: `at` is the step it needs next, `started` the steps begun for it, `undone` those undone."""

    at: int
    started: list[int] = Field(default_factory=list)
    undone: list[int] = Field(default_factory=list)
    attempt: int = 1


class SagaState(BaseModel):
    """`step` is the step the saga is at; `tracks` has "" for steps that run once and one entry an item."""

    id: str
    kind: str
    data: dict[str, Any]
    phase: Phase = "running"
    parked_from: Phase = "running"
    step: int = 0
    tracks: dict[str, Track] = Field(default_factory=dict)
    pending: dict[str, Pending] = Field(default_factory=dict)
    records: list[OperationStep] = Field(default_factory=list)
    swaps: int = 0
    resumes: int = 0
    status: OperationStatus = OperationStatus.RUNNING
    waiting_for: str = ""
    problem: Problem | None = None
    cancelled: bool = False
    answered: bool = False
    notes: list[str] = Field(default_factory=list)
    result: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime

    def set_record(self, index: int, **changes: Any) -> None:
        self.records[index] = self.records[index].model_copy(update=changes)

    def data_with_problem(self) -> dict[str, Any]:
        """The data that undo functions see: data["problem"] says why, data["cancelled"] whether it was asked for."""
        problem = self.problem.model_dump(mode="json") if self.problem else None
        return {**self.data, "problem": problem, "cancelled": self.cancelled}

    def facts(
        self, *, service: str, target_kind: str, target_id: str, correlation_id: str, now: datetime
    ) -> OperationFacts:
        """The operation as others see it."""
        return OperationFacts(
            id=self.id,
            service=service,
            kind=self.kind,
            target_kind=target_kind,
            target_id=target_id,
            tenant=str(self.data.get("tenant", "-")),
            site=str(self.data.get("site", "-")),
            actor=str(self.data.get("actor", "")),
            correlation_id=correlation_id,
            status=self.status,
            waiting_for=self.waiting_for,
            compensating=self.phase == "undoing" or (self.phase == "parked" and self.parked_from == "undoing"),
            steps=tuple(self.records),
            problem=self.problem,
            notes=tuple(self.notes[-20:]),
            created_at=self.created_at,
            updated_at=now,
            result=self.result,
        )


__all__ = ["OperationStatus", "OperationStep", "Pending", "Phase", "SagaState", "StepStatus", "Track"]
