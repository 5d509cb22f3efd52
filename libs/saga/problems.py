"""What the saga core itself has to say about a step that did not succeed."""

from __future__ import annotations

from libs.contracts.replies import Problem


def timed_out(step: str, key: str) -> Problem:
    whom = f" for {key}" if key else ""
    return Problem(
        code="saga.step_timed_out",
        message=f"{step}{whom} was not answered in time; whether it happened is unknown",
        next_step="Look at the site's satellite and at the machine itself before using it again.",
    )


def unreadable(step: str, error: Exception) -> Problem:
    return Problem(
        code="saga.answer_unreadable",
        message=f"{step} was answered OK, but its data can't be used: {error!r}",
        next_step="Look whether the service or satellite that answers runs the same release as this one.",
    )
