"""Validation on a real database: commands in, events and answers out."""

from __future__ import annotations

from typing import Any

from good_evidence import EXPECTED, as_evidence, good, gpu

from libs.contracts.envelope import Envelope
from libs.contracts.replies import Outcome, Reply, ok
from libs.contracts.site import CollectEvidence
from libs.contracts.validation import AbandonRun, RecordRun, RunSuite, Suite
from libs.testing.kit import ServiceKit
from services.validation.app import service

MACHINE = "0190a5d0-0000-7000-8000-000000000001"


def run_suite(run_id: str, **more: Any) -> RunSuite:
    values = {"machine_id": MACHINE, "site": "fra1", "suite": Suite.OUT_OF_BAND, "expected": EXPECTED, **more}
    return RunSuite(run_id=run_id, **values)


async def finished(kit: ServiceKit, run_id: str, outputs: dict[str, Any]) -> Reply:
    """Open a run and record evidence about it."""
    assert await kit.command(run_suite(run_id)) is None
    reply = await kit.command(
        RecordRun(run_id=run_id, machine_id=MACHINE, expected=EXPECTED, evidence=tuple(as_evidence(outputs)))
    )
    assert reply is not None
    return reply


async def types(kit: ServiceKit) -> list[str]:
    names = [event.type.removeprefix("slipway.validation.") for event in await kit.events()]
    return [name for name in names if not name.startswith("operation.")]


async def last(kit: ServiceKit, type_: str) -> Envelope:
    return [event for event in await kit.events() if event.type == f"slipway.validation.{type_}"][-1]


def one_gpu_missing() -> dict[str, Any]:
    return {**good(), "redfish.gpus": {"gpus": [gpu(n) for n in range(1, 8)], "absent": ["GPU_SXM_8"]}}


async def test_a_run_asks_the_site_for_evidence(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.command(run_suite("run-1"))
    sent = [envelope for envelope in await kit.sent() if envelope.type == CollectEvidence.message_type.type]
    assert [(envelope.site, envelope.data["run_id"]) for envelope in sent] == [("fra1", "run-1")]
    assert await types(kit) == ["run.started"]


async def test_good_evidence_passes(service_kit: Any) -> None:
    kit = await service_kit(service)
    reply = await finished(kit, "run-1", good())
    assert (reply.outcome, reply.data["verdict"], reply.data["problem"]) == (Outcome.OK, "PASS", None)
    assert await types(kit) == ["run.started", "run.finished"]
    run = (await kit.query("get_run", {"id": "run-1"})).body
    assert (run["verdict"], run["version"]) == ("PASS", 2)


async def test_a_missing_gpu_fails_with_a_finding_that_names_its_slot(service_kit: Any) -> None:
    kit = await service_kit(service)
    reply = await finished(kit, "run-1", one_gpu_missing())
    assert (reply.outcome, reply.data["verdict"]) == (Outcome.OK, "FAIL")
    assert "GPU_SXM_8" in reply.data["problem"]["message"]
    assert await types(kit) == ["run.started", "run.finished", "finding.raised"]
    finding = (await last(kit, "finding.raised")).data["finding"]
    assert (finding["check"], finding["found"], finding["expected"]) == ("gpu.count", "7", "8")


async def test_a_repeated_finding_is_merged_and_a_later_pass_clears_it(service_kit: Any) -> None:
    kit = await service_kit(service)
    await finished(kit, "run-1", one_gpu_missing())
    await finished(kit, "run-2", one_gpu_missing())
    again = (await last(kit, "finding.seen_again")).data["finding"]
    assert (again["seen_count"], again["run_id"]) == (2, "run-2")
    await finished(kit, "run-3", {})
    assert len((await kit.query("list_findings", {"open": "true"})).body["items"]) == 1, "no evidence clears nothing"
    await finished(kit, "run-4", good())
    cleared = (await last(kit, "finding.cleared")).data["finding"]
    assert (cleared["id"], cleared["open"], cleared["version"]) == (again["id"], False, 3)
    assert (await kit.query("list_findings", {"open": "true"})).body["items"] == []
    assert len((await kit.query("list_findings", {"machine_id": MACHINE})).body["items"]) == 1


async def test_no_evidence_is_inconclusive_and_never_a_pass(service_kit: Any) -> None:
    kit = await service_kit(service)
    reply = await finished(kit, "run-1", {})
    assert reply.data["verdict"] == "INCONCLUSIVE"
    assert await types(kit) == ["run.started", "run.finished"]


async def test_a_finished_run_answers_again_without_a_second_effect(service_kit: Any) -> None:
    kit = await service_kit(service)
    first = await finished(kit, "run-1", good())
    before = await types(kit)
    assert await kit.command(run_suite("run-1")) == first
    record = RecordRun(run_id="run-1", machine_id=MACHINE, expected=EXPECTED, evidence=())
    assert await kit.command(record) == first
    assert await types(kit) == before


async def test_an_abandoned_run_is_inconclusive_and_can_be_tried_again(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.command(run_suite("run-1"))
    assert await kit.command(AbandonRun(run_id="run-1", machine_id=MACHINE)) == ok()
    run = (await kit.query("get_run", {"id": "run-1"})).body
    assert (run["verdict"], run["problem"]["code"]) == ("INCONCLUSIVE", "run.no_evidence")
    reply = await finished(kit, "run-1", good())
    assert reply.data["verdict"] == "PASS"
    versions = [e.entityversion for e in await kit.events() if e.subject == "run-1" and ".run." in e.type]
    assert versions == [1, 2, 3, 4]


async def test_abandoning_never_overwrites_a_verdict(service_kit: Any) -> None:
    kit = await service_kit(service)
    await finished(kit, "run-1", good())
    await kit.command(AbandonRun(run_id="run-1", machine_id=MACHINE))
    assert (await kit.query("get_run", {"id": "run-1"})).body["verdict"] == "PASS"


async def test_a_run_id_of_another_machine_is_refused(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.command(run_suite("run-1"))
    reply = await kit.command(run_suite("run-1", machine_id="another"))
    assert (reply.outcome, reply.problem.code) == (Outcome.REFUSED, "run.of_another_machine")


async def test_a_suite_without_checks_is_refused_because_it_proves_nothing(service_kit: Any) -> None:
    kit = await service_kit(service)
    reply = await kit.command(run_suite("run-1", suite=Suite.CLUSTER))
    assert (reply.outcome, reply.problem.code) == (Outcome.REFUSED, "run.suite_empty")


async def test_the_whole_process_ends_with_an_answer(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.command(run_suite("run-1"))
    collect = (await kit.sent())[-1]
    await kit.reply(collect, ok(evidence=[item.model_dump(mode="json") for item in as_evidence(good())]))
    record = (await kit.sent())[-1]
    assert record.type == RecordRun.message_type.type
    reply = await kit.command(RecordRun.model_validate(record.data))
    await kit.reply(record, reply)
    operation = (await kit.events())[-1]
    assert operation.type == "slipway.validation.operation.finished"
    assert operation.data["operation"]["result"]["verdict"] == "PASS"


async def test_the_tenant_door_sees_no_runs(service_kit: Any) -> None:
    kit = await service_kit(service)
    await finished(kit, "run-1", good())
    assert (await kit.query("list_runs", tenants=("acme",))).body["items"] == []
    assert (await kit.query("get_run", {"id": "run-1"}, tenants=("acme",))).status == 404
    assert len((await kit.query("list_runs", {"verdict": "PASS"})).body["items"]) == 1
