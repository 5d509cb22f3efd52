"""The process behind a run: collect at the site, judge at the hub. No evidence closes the run as INCONCLUSIVE."""

from __future__ import annotations

from datetime import timedelta

from libs.contracts.site import CheckRequest, CollectEvidence, Evidence
from libs.contracts.validation import AbandonRun, RecordRun, RunSuite
from libs.saga import saga, step, to_site
from libs.saga.dsl import Data, ToSite
from services.validation.catalogue import CATALOGUE
from services.validation.model import applicable

# All collectors run at once and none has more than a minute; the rest is for a satellite that is busy.
COLLECT_WITHIN = timedelta(minutes=5)
RECORD_WITHIN = timedelta(minutes=2)


def collect_evidence(data: Data) -> ToSite:
    """One request for each collector that the suite's checks need."""
    wanted = RunSuite.model_validate(data)
    checks = applicable(CATALOGUE, wanted.suite, wanted.expected)
    limits: dict[str, float] = {}
    for check in checks:
        limits[check.how] = max(limits.get(check.how, 0.0), check.limit_seconds)
    return to_site(
        wanted.site,
        CollectEvidence(
            machine_id=wanted.machine_id,
            machine_name=wanted.machine_name,
            claim_id=wanted.claim_id,
            machine_version=wanted.machine_version,
            run_id=wanted.run_id,
            suite=wanted.suite,
            checks=tuple(CheckRequest(check=how, how=how, limit_seconds=limit) for how, limit in limits.items()),
            address=wanted.address,
            ssh_port=wanted.ssh_port,
            ssh_host_key=wanted.ssh_host_key,
        ),
    )


def keep_evidence(data: Data, reply: Data) -> Data:
    return {**data, "evidence": reply.get("evidence") or []}


def abandon_run(data: Data) -> AbandonRun:
    return AbandonRun(run_id=data["run_id"], machine_id=data["machine_id"])


def record_run(data: Data) -> RecordRun:
    """What is no evidence by its shape is left out, and so its checks are INCONCLUSIVE."""
    return RecordRun(
        run_id=data["run_id"],
        machine_id=data["machine_id"],
        expected=data["expected"],
        evidence=tuple(_readable(data["evidence"])),
    )


def _readable(items: object) -> list[Evidence]:
    if not isinstance(items, list):
        return []
    readable = []
    for item in items:
        try:
            readable.append(Evidence.model_validate(item))
        except ValueError:
            continue
    return readable


def keep_result(data: Data, reply: Data) -> Data:
    return {**data, "result": reply}


run_suite = saga(
    "run_suite",
    step(collect_evidence, within=COLLECT_WITHIN, retries=1, then=keep_evidence, undo=abandon_run),
    step(record_run, within=RECORD_WITHIN, retries=2, then=keep_result),
    result=lambda data: data["result"],
)

SAGAS = (run_suite,)
