"""Verdicts and findings. Pure.

Invariants: a run passes only when every check that applies was collected, judged and passed; no checks, no evidence
or unreadable evidence is INCONCLUSIVE. A finding is raised by a FAIL and cleared only by a later PASS of the same
check on the same component. Judging single values is left to the judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from libs.contracts.site import Evidence
from libs.contracts.validation import CheckResult, Suite, Verdict
from services.validation.evidence import positive

Expected = Mapping[str, object]


class Severity(StrEnum):
    CRITICAL = "critical"  # The machine can't do its work or can't be trusted.
    MAJOR = "major"  # It works, but a part is degraded.


class Applies(StrEnum):
    EVERY_MACHINE = "every_machine"
    GPU_MACHINES = "gpu_machines"


@dataclass(frozen=True)
class Judgement:
    """A verdict on one component, "" for the check as a whole."""

    verdict: Verdict
    expected: str = ""
    found: str = ""
    message: str = ""
    component: str = ""


Judge = Callable[[Any, Expected], Sequence[Judgement]]


@dataclass(frozen=True)
class Check:
    """One line of the catalogue. `proves` says what a PASS means; `how` names the collector that feeds it."""

    id: str
    suite: Suite
    proves: str
    how: str
    judge: Judge
    severity: Severity
    applies: Applies = Applies.EVERY_MACHINE
    limit_seconds: float = 60.0


def passed(found: str, expected: str = "", component: str = "") -> Judgement:
    return Judgement(Verdict.PASS, expected, found, "", component)


def failed(message: str, *, found: str = "", expected: str = "", component: str = "") -> Judgement:
    return Judgement(Verdict.FAIL, expected, found, message, component)


def inconclusive(message: str, *, found: str = "", expected: str = "", component: str = "") -> Judgement:
    return Judgement(Verdict.INCONCLUSIVE, expected, found, message, component)


def amount(found: float | None, expected: Expected, key: str, what: str, *, exact: bool = False) -> Judgement:
    """A number found against a promise. No promise: any credible number will do. A senseless one: none will."""
    if found is None:
        return inconclusive(f"the number of {what} can't be read")
    if expected.get(key) is None:
        return passed(f"{found:g}")
    wanted = positive(expected[key])
    if wanted is None:
        return inconclusive(f"nobody says how many {what} there must be", found=f"{found:g}")
    if found < wanted or (exact and found != wanted):
        return failed(f"{found:g} instead of {wanted:g} {what}", found=f"{found:g}", expected=f"{wanted:g}")
    return passed(f"{found:g}", f"{wanted:g}")


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """FAIL over INCONCLUSIVE over PASS; INCONCLUSIVE of nothing."""
    found = set(verdicts)
    if Verdict.FAIL in found:
        return Verdict.FAIL
    return Verdict.PASS if found == {Verdict.PASS} else Verdict.INCONCLUSIVE


def promised_gpus(expected: Expected) -> int | None:
    """The number of GPUs the profile promises; None when nobody says."""
    count = expected.get("gpu_count")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        return None
    return count


def applicable(catalogue: Iterable[Check], suite: Suite, expected: Expected) -> tuple[Check, ...]:
    """The checks a machine must pass. Only a promise of exactly 0 GPUs spares it the GPU checks."""
    has_gpus = promised_gpus(expected) != 0
    return tuple(
        check for check in catalogue if check.suite is suite and (has_gpus or check.applies is Applies.EVERY_MACHINE)
    )


def judge_run(checks: Sequence[Check], evidence: Sequence[Evidence], expected: Expected) -> tuple[CheckResult, ...]:
    """Every check's results: components that have a verdict of their own, and last the check as a whole."""
    results: list[CheckResult] = []
    for check in checks:
        results.extend(_judge_check(check, [item for item in evidence if item.check == check.how], expected))
    return tuple(results)


def run_verdict(checks: Sequence[Check], results: Sequence[CheckResult]) -> Verdict:
    """PASS only if every check has a PASS as a whole and nothing else was said about it."""
    for check in checks:
        if not any(result.check == check.id and result.component == "" for result in results):
            return Verdict.INCONCLUSIVE if all(r.verdict is not Verdict.FAIL for r in results) else Verdict.FAIL
    return worst(result.verdict for result in results)


def _judge_check(check: Check, evidence: Sequence[Evidence], expected: Expected) -> list[CheckResult]:
    if not evidence:
        return [_result(check, inconclusive(f"the site sent no evidence from {check.how}"), 0.0)]
    if len(evidence) > 1:
        return [_result(check, inconclusive(f"the site sent {len(evidence)} pieces of evidence from {check.how}"), 0.0)]
    seen = evidence[0]
    if seen.status != "ran":
        why = f"{check.how}: {seen.status}{': ' + seen.message if seen.message else ''}"
        return [_result(check, inconclusive(why), seen.seconds)]
    judgements = list(check.judge(seen.output, expected))
    components = [judgement for judgement in judgements if judgement.component]
    whole = [judgement for judgement in judgements if not judgement.component]
    return [_result(check, judgement, seen.seconds) for judgement in (*components, _sum(whole, components))]


def _sum(whole: Sequence[Judgement], components: Sequence[Judgement]) -> Judgement:
    """The check as a whole: the worst of everything said."""
    verdict = worst(judgement.verdict for judgement in (*whole, *components))
    for judgement in whole:
        if judgement.verdict is verdict:
            return judgement
    bad = [judgement for judgement in components if judgement.verdict is verdict]
    if verdict is Verdict.PASS or not bad:
        return Judgement(verdict, found=f"{len(components)} components")
    return Judgement(verdict, bad[0].expected, bad[0].found, "; ".join(judgement.message for judgement in bad))


def _result(check: Check, judgement: Judgement, seconds: float) -> CheckResult:
    return CheckResult(
        check=check.id,
        verdict=judgement.verdict,
        expected=judgement.expected,
        found=judgement.found,
        message=judgement.message,
        component=judgement.component,
        seconds=seconds,
    )


@dataclass(frozen=True)
class FindingKey:
    """Repeats merge by this, within one machine."""

    check: str
    component: str


def raised_by(results: Sequence[CheckResult]) -> dict[FindingKey, CheckResult]:
    """What fails. A check that fails only through its components is told by them alone."""
    failures = [result for result in results if result.verdict is Verdict.FAIL]
    explained = {result.check for result in failures if result.component}
    return {
        FindingKey(result.check, result.component): result
        for result in failures
        if result.component or result.check not in explained
    }


def cleared_by(results: Sequence[CheckResult]) -> frozenset[FindingKey]:
    """What passes now: exactly these checks on exactly these components."""
    failing = {FindingKey(result.check, result.component) for result in results if result.verdict is not Verdict.PASS}
    return frozenset(
        FindingKey(result.check, result.component) for result in results if result.verdict is Verdict.PASS
    ) - frozenset(failing)
