"""Validation: is a machine fit? Check suites, verdicts and findings."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from libs.contracts.message import Message, command, event
from libs.contracts.operations import OperationFacts
from libs.contracts.replies import Problem
from libs.contracts.site import Evidence


class Verdict(StrEnum):
    """Only PASS passes. Whatever is not known is INCONCLUSIVE."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Suite(StrEnum):
    OUT_OF_BAND = "out_of_band"  # No operating system: BMC and Redfish only.
    ON_NODE = "on_node"  # Over SSH on a deployed node.
    CLUSTER = "cluster"  # Across all nodes of a cluster.


class CheckResult(Message):
    """One check of one run. `expected` and `found` are for a technician."""

    check: str
    verdict: Verdict
    expected: str = ""
    found: str = ""
    message: str = ""
    component: str = ""
    seconds: float = 0.0


class RunFacts(Message):
    id: str
    machine_id: str
    site: str
    suite: Suite
    verdict: Verdict | None = None
    checks: tuple[CheckResult, ...] = ()
    requested_for: str = ""
    problem: Problem | None = None
    started_at: datetime
    finished_at: datetime | None = None
    version: int


@event("validation", "run", "started")
class RunStarted(Message):
    """A suite of checks began on a machine."""

    run: RunFacts


@event("validation", "run", "finished")
class RunFinished(Message):
    """A suite of checks ended with a verdict: PASS, FAIL or INCONCLUSIVE."""

    run: RunFacts


class FindingFacts(Message):
    """One piece of health evidence about a machine. The key (machine, check, component) merges repeats."""

    id: str
    machine_id: str
    check: str
    component: str
    severity: str
    message: str
    expected: str = ""
    found: str = ""
    run_id: str | None = None
    open: bool = True
    first_seen_at: datetime
    last_seen_at: datetime
    seen_count: int = 1
    version: int


@event("validation", "finding", "raised")
class FindingRaised(Message):
    """Something is wrong with a machine: the first evidence of it."""

    finding: FindingFacts


@event("validation", "finding", "seen_again")
class FindingSeenAgain(Message):
    """Evidence of a finding that is open already was seen once more."""

    finding: FindingFacts


@event("validation", "finding", "cleared")
class FindingCleared(Message):
    """A later run of the same check on the same component passed."""

    finding: FindingFacts


@event("validation", "operation", "started")
class ValidationOperationStarted(Message):
    """A process of validation began."""

    operation: OperationFacts


@event("validation", "operation", "progressed")
class ValidationOperationProgressed(Message):
    """A process of validation took a step, waits, or turned back."""

    operation: OperationFacts


@event("validation", "operation", "finished")
class ValidationOperationFinished(Message):
    """A process of validation ended: SUCCEEDED, FAILED or CANCELLED."""

    operation: OperationFacts


@command("validation", "run_suite")
class RunSuite(Message):
    """Run a suite on one machine. Answered at the end: OK with data {run_id, verdict, checks, problem?} whatever the
    verdict; FAILED only when it could not be run at all. The caller chooses `run_id`.

    `expected` carries what the profile promises: gpu_model, gpu_count, serial, … (docs/architecture/evidence.md).
    `address`, `ssh_port` and `ssh_host_key` are needed by suites that log in to the node.
    """

    run_id: str
    machine_id: str
    site: str
    suite: Suite
    claim_id: str | None = None
    requested_for: str = ""
    expected: dict[str, object]
    machine_name: str = ""
    machine_version: int = 0
    address: str = ""
    ssh_port: int = 22
    ssh_host_key: str = ""

    def key(self) -> str:
        return self.machine_id


@command("validation", "record_run")
class RecordRun(Message):
    """Validation's own: judge what the site saw and close the run. Reply data: {run_id, verdict, checks, problem?}."""

    run_id: str
    machine_id: str
    expected: dict[str, object]
    evidence: tuple[Evidence, ...]

    def key(self) -> str:
        return self.machine_id


@command("validation", "abandon_run")
class AbandonRun(Message):
    """Validation's own: the site sent no evidence; the run is closed as INCONCLUSIVE."""

    run_id: str
    machine_id: str

    def key(self) -> str:
        return self.machine_id
