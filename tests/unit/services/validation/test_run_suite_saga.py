"""The process behind a run, without a database."""

from __future__ import annotations

from typing import Any

from good_evidence import EXPECTED, as_evidence, good

from libs.contracts.operations import OperationStatus
from libs.contracts.replies import Outcome, failed
from libs.contracts.site import CollectEvidence
from libs.contracts.validation import AbandonRun, RecordRun, RunSuite, Suite
from libs.saga.kit import SagaKit
from services.validation.sagas import run_suite


def kit(suite: Suite = Suite.OUT_OF_BAND, **more: Any) -> SagaKit:
    command = RunSuite(
        run_id="run-1",
        machine_id="m1",
        site="fra1",
        suite=suite,
        expected=EXPECTED,
        machine_name="fra1-r1-gpu-01",
        **more,
    )
    return SagaKit(run_suite, command.model_dump(mode="json"))


def test_each_collector_is_asked_once_whatever_number_of_checks_it_feeds() -> None:
    command = kit().sent()["collect_evidence"]
    assert isinstance(command, CollectEvidence)
    assert [check.how for check in command.checks] == [
        "redfish.power",
        "redfish.system",
        "redfish.gpus",
        "redfish.drives",
    ]
    assert all(check.check == check.how for check in command.checks)


def test_an_on_node_suite_says_where_to_log_in() -> None:
    command = kit(Suite.ON_NODE, address="127.0.0.1", ssh_port=2201, ssh_host_key="ssh-ed25519 AAAA").sent()
    collect = command["collect_evidence"]
    assert isinstance(collect, CollectEvidence)
    assert (collect.address, collect.ssh_port, collect.ssh_host_key) == ("127.0.0.1", 2201, "ssh-ed25519 AAAA")


def test_the_evidence_is_recorded_and_the_result_answered() -> None:
    saga = kit()
    saga.reply("collect_evidence", evidence=[item.model_dump(mode="json") for item in as_evidence(good())])
    record = saga.sent()["record_run"]
    assert isinstance(record, RecordRun) and len(record.evidence) == len(good())
    saga.reply("record_run", run_id="run-1", verdict="FAIL", checks=[])
    assert saga.status is OperationStatus.SUCCEEDED
    assert saga.answers[-1].outcome is Outcome.OK
    assert saga.answers[-1].data["verdict"] == "FAIL"


def test_what_has_not_the_shape_of_evidence_is_left_out() -> None:
    for nonsense in (None, "ran", [None, 7, {"check": "redfish.power"}], {"redfish.power": "On"}):
        saga = kit()
        saga.reply("collect_evidence", evidence=nonsense)
        record = saga.sent()["record_run"]
        assert isinstance(record, RecordRun) and record.evidence == ()


def test_a_site_that_can_not_answer_is_asked_twice_and_then_the_run_is_abandoned() -> None:
    saga = kit()
    saga.timeout("collect_evidence")
    saga.retry_now()
    saga.reply("collect_evidence", reply=failed("site.away", "no satellite"))
    undo = saga.sent()["undo collect_evidence"]
    assert isinstance(undo, AbandonRun)
    saga.reply("undo collect_evidence")
    assert saga.status is OperationStatus.FAILED
    assert saga.answers[-1].outcome is Outcome.FAILED
