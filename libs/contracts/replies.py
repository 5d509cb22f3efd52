"""How a command is answered: one of a closed set of outcomes, with data or a reason.

A reply is a message on the requester's own command stream (`cmd.<service>.reply.v1`) or, from a site, an
observation `obs.<site>.reply.<service>.v1`. It correlates by `causationid` = the command's id.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from libs.contracts.message import Message


class Outcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"  # The owner decided "no": a rule forbids it. Trying again changes nothing.
    FAILED = "failed"  # It was tried and did not work.
    UNKNOWN = "unknown"  # Nobody knows whether it happened: never treated as not happened.
    STALE = "stale"  # The command is about an older version or claim; nothing was done.
    EXPIRED = "expired"  # The command's deadline had passed before it was begun; nothing was done.


class Problem(Message):
    """Why something did not succeed. `code` is permanent; `message` is for people; `next_step` says what to do."""

    code: str
    message: str
    next_step: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


class Reply(Message):
    """The answer to one command."""

    outcome: Outcome
    data: dict[str, Any] = Field(default_factory=dict)
    problem: Problem | None = None

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK


def ok(**data: Any) -> Reply:
    return Reply(outcome=Outcome.OK, data=data)


def refused(code: str, message: str, next_step: str = "", **details: Any) -> Reply:
    return Reply(
        outcome=Outcome.REFUSED,
        problem=Problem(code=code, message=message, next_step=next_step, details=details),
    )


def failed(code: str, message: str, next_step: str = "", **details: Any) -> Reply:
    return Reply(
        outcome=Outcome.FAILED,
        problem=Problem(code=code, message=message, next_step=next_step, details=details),
    )


def unknown(code: str, message: str, next_step: str = "", **details: Any) -> Reply:
    return Reply(
        outcome=Outcome.UNKNOWN,
        problem=Problem(code=code, message=message, next_step=next_step, details=details),
    )


REPLY_TYPE = "slipway.reply"
