"""Start runs, record what was seen, abandon runs without evidence. A run's verdict and findings commit together.

Asking twice for one run is harmless: a finished run answers what it found, an abandoned one is tried again.
"""

from __future__ import annotations

from typing import Any

from libs.bus.context import CommandHandlers, Context
from libs.bus.errors import Transient
from libs.contracts.ids import new_id
from libs.contracts.replies import Problem, Reply, ok, refused
from libs.contracts.validation import (
    AbandonRun,
    FindingCleared,
    FindingRaised,
    FindingSeenAgain,
    RecordRun,
    RunFacts,
    RunFinished,
    RunStarted,
    RunSuite,
    Verdict,
)
from services.validation import errors, store
from services.validation.catalogue import CATALOGUE, severity_of
from services.validation.findings import FindingChanges, changes
from services.validation.model import applicable, judge_run, run_verdict

RUN_SUITE = "run_suite"


async def run_suite(ctx: Context, command: RunSuite) -> Reply | None:
    """Open the run and start collecting; the saga answers when the verdict is there."""
    known = await store.get_run(ctx.conn, command.run_id, lock=True)
    if known is not None and known.machine_id != command.machine_id:
        return refused(
            errors.RUN_OF_ANOTHER_MACHINE,
            f"Run {command.run_id} is about machine {known.machine_id}.",
            "Choose a new run id.",
        )
    if known is not None and known.finished_at is not None and known.checks:
        return _answer(known)
    if not applicable(CATALOGUE, command.suite, command.expected):
        return refused(
            errors.SUITE_EMPTY,
            f"The suite {command.suite} has no check for this machine, so it would prove nothing.",
            "Choose a suite that has checks.",
        )
    await _open(ctx, command, known)
    await ctx.start_saga(
        RUN_SUITE,
        command.model_dump(mode="json"),
        target_kind="machine",
        target_id=command.machine_id,
        site=command.site,
        answers=ctx.cause,
    )
    return None


async def _open(ctx: Context, command: RunSuite, known: RunFacts | None) -> None:
    if known is not None and known.finished_at is None:
        return  # Asked again while it runs: collect again, whichever evidence comes first is recorded.
    facts = RunFacts(
        id=command.run_id,
        machine_id=command.machine_id,
        site=command.site,
        suite=command.suite,
        requested_for=command.requested_for,
        started_at=ctx.now,
        version=known.version + 1 if known else 1,
    )
    if not await (store.save_run(ctx.conn, facts) if known else store.add_run(ctx.conn, facts)):
        raise Transient(f"run {command.run_id} was opened by somebody else at the same time")
    _emit_run(ctx, RunStarted(run=facts), facts)


async def record_run(ctx: Context, command: RecordRun) -> Reply:
    """Judge the evidence, close the run, raise and clear findings."""
    known = await store.get_run(ctx.conn, command.run_id, lock=True)
    if known is None:
        return refused(errors.RUN_UNKNOWN, f"There is no run {command.run_id}.", "Ask for a run of the suite first.")
    if known.finished_at is not None and known.checks:
        return _answer(known)
    checks = applicable(CATALOGUE, known.suite, command.expected)
    results = judge_run(checks, command.evidence, command.expected)
    verdict = run_verdict(checks, results)
    finished = known.model_copy(
        update={
            "verdict": verdict,
            "checks": results,
            "problem": _problem_of(known, verdict, results),
            "finished_at": ctx.now,
            "version": known.version + 1,
        }
    )
    await _close(ctx, finished)
    found = changes(
        await store.open_findings(ctx.conn, known.machine_id),
        results,
        run_id=known.id,
        machine_id=known.machine_id,
        now=ctx.now,
        severity_of=severity_of,
        new_id=lambda: new_id("fnd"),
    )
    await _save_findings(ctx, found, known.site)
    return _answer(finished)


async def abandon_run(ctx: Context, command: AbandonRun) -> Reply:
    """Close the run as INCONCLUSIVE, unless it has its verdict already."""
    known = await store.get_run(ctx.conn, command.run_id, lock=True)
    if known is None or known.finished_at is not None:
        return ok()
    await _close(
        ctx,
        known.model_copy(
            update={
                "verdict": Verdict.INCONCLUSIVE,
                "problem": errors.no_evidence(known.machine_id),
                "finished_at": ctx.now,
                "version": known.version + 1,
            }
        ),
    )
    return ok()


async def _close(ctx: Context, facts: RunFacts) -> None:
    if not await store.save_run(ctx.conn, facts):
        raise Transient(f"run {facts.id} was changed by somebody else at the same time")
    _emit_run(ctx, RunFinished(run=facts), facts)


def _emit_run(ctx: Context, event: RunStarted | RunFinished, facts: RunFacts) -> None:
    ctx.emit(event, entity_id=facts.id, entity_version=facts.version, site=facts.site)


async def _save_findings(ctx: Context, found: FindingChanges, site: str) -> None:
    await store.add_findings(ctx.conn, found.raised)
    for changed in (*found.seen_again, *found.cleared):
        if not await store.save_finding(ctx.conn, changed):
            raise Transient(f"finding {changed.id} was changed by somebody else at the same time")
    for facts in found.raised:
        ctx.emit(FindingRaised(finding=facts), entity_id=facts.id, entity_version=facts.version, site=site)
    for facts in found.seen_again:
        ctx.emit(FindingSeenAgain(finding=facts), entity_id=facts.id, entity_version=facts.version, site=site)
    for facts in found.cleared:
        ctx.emit(FindingCleared(finding=facts), entity_id=facts.id, entity_version=facts.version, site=site)


def _problem_of(run: RunFacts, verdict: Verdict, results: Any) -> Problem | None:
    if verdict is Verdict.PASS:
        return None
    bad = [result for result in results if result.verdict is verdict and not result.component]
    named = "; ".join(f"{result.check}: {result.message}" for result in bad) or "no check was made"
    return Problem(
        code=errors.NOT_PASSED,
        message=f"{run.suite} of machine {run.machine_id} is {verdict}: {named}",
        next_step="Mend what the checks name, then run the suite again."
        if verdict is Verdict.FAIL
        else "Find out why the checks could not be made, then run the suite again.",
        details={"run_id": run.id, "checks": [result.check for result in bad]},
    )


def _answer(run: RunFacts) -> Reply:
    """OK whatever the verdict: the run was made; the requester reads the verdict."""
    return ok(
        run_id=run.id,
        verdict=run.verdict,
        checks=[
            check.model_dump(mode="json") for check in run.checks if not check.component or check.verdict != "PASS"
        ],
        problem=run.problem.model_dump(mode="json") if run.problem else None,
    )


COMMANDS: CommandHandlers = {RunSuite: run_suite, RecordRun: record_run, AbandonRun: abandon_run}
