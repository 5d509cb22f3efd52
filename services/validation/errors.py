"""Permanent codes of validation's refusals and problems."""

from __future__ import annotations

from libs.contracts.replies import Problem

RUN_OF_ANOTHER_MACHINE = "run.of_another_machine"
RUN_UNKNOWN = "run.unknown"
SUITE_EMPTY = "run.suite_empty"
NOT_PASSED = "run.not_passed"
NO_EVIDENCE = "run.no_evidence"


def no_evidence(machine_id: str) -> Problem:
    """The site did not answer, or not with evidence."""
    return Problem(
        code=NO_EVIDENCE,
        message=f"The site sent no evidence about machine {machine_id}, so nothing is proven.",
        next_step="Look at the site's satellite and the machine's BMC, then run the suite again.",
    )
