"""What a decision of the saga core asks for. The engine carries it out in the transaction that keeps the new state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from libs.contracts.message import Message
from libs.contracts.replies import Reply


@dataclass(frozen=True)
class Send:
    """A command to put on the bus. `site` is None for a command to a service; not `awaited`: fire and forget."""

    id: str
    message: Message
    site: str | None
    deadline: datetime
    awaited: bool


@dataclass(frozen=True)
class Timer:
    """Fire `token` at `due_at` unless it is no longer awaited."""

    token: str
    due_at: datetime


@dataclass(frozen=True)
class Answer:
    """Answer the command that started the saga."""

    reply: Reply


Effect = Send | Timer | Answer
