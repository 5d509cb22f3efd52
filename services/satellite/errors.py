"""What can go wrong at a site, as a closed set that maps one to one onto a reply's outcome.

Adapters raise only these. Anything else that escapes an adapter is a bug; the command is then answered
UNKNOWN, because nobody can say what had already been ordered.
"""

from __future__ import annotations

from typing import Any

from libs.contracts.replies import Outcome, Problem, Reply


class SiteError(Exception):
    """`code` is permanent, `message` says what happened to what, `next_step` what a person does about it."""

    outcome = Outcome.FAILED

    def __init__(self, code: str, message: str, next_step: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.next_step = next_step
        self.details = details

    def reply(self) -> Reply:
        """The answer to the command that met this."""
        problem = Problem(code=self.code, message=self.message, next_step=self.next_step, details=self.details)
        return Reply(outcome=self.outcome, problem=problem)


class Refusal(SiteError):
    """A rule forbids it: trying again changes nothing."""

    outcome = Outcome.REFUSED


class Failure(SiteError):
    """It was tried and did not work."""

    outcome = Outcome.FAILED


class Unanswered(SiteError):
    """Nobody knows whether it happened: no answer, a late one, or one that can't be read."""

    outcome = Outcome.UNKNOWN


class LeaseLost(RuntimeError):
    """Another satellite holds this site's lease: this process must end at once."""


class StateFolderInUse(RuntimeError):
    """Another process on this machine works with the same state folder."""
