"""A machine's life through the service: commands in, events and state out, on a real database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text, update

from libs.contracts.ids import new_uuid
from libs.contracts.inventory import (
    AcceptMachine,
    AssignMachine,
    BeginProvisioning,
    EnrolMachine,
    QuarantineMachine,
    ReturnMachine,
    SiteFacts,
)
from libs.contracts.replies import Outcome, Problem, Reply, failed
from libs.contracts.site import NodeObserved, SatelliteHeartbeat
from libs.contracts.validation import FindingFacts, FindingRaised
from libs.testing.kit import make_event
from services.inventory import periodic, store
from tests.integration.inventory.conftest import H100, Inventory
from tests.unit.services.inventory.machines import EVIDENCE

NAME = "fra1-r1-gpu-01"
CLAIM = "0c1a0000-0000-7000-8000-000000000001"


async def available(inventory: Inventory) -> dict[str, Any]:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME)
    return await inventory.machine(NAME)


async def accept(inventory: Inventory, machine: dict[str, Any], **changes: Any) -> Reply:
    base = {
        "machine_id": machine["id"],
        "expected_version": machine["version"],
        "claim_id": CLAIM,
        "reservation_id": "res-1",
        "cluster_id": "clu-1",
        "tenant": "acme-research",
    }
    reply = await inventory.kit.command(AcceptMachine.model_validate({**base, **changes}))
    assert reply is not None
    return reply


async def assigned(inventory: Inventory) -> dict[str, Any]:
    machine = await available(inventory)
    assert (await accept(inventory, machine)).ok
    for command in (BeginProvisioning, AssignMachine):
        reply = await inventory.kit.command(command(machine_id=machine["id"], claim_id=CLAIM))
        assert reply is not None and reply.ok
    return await inventory.machine(NAME)


async def test_enrolment_brings_a_machine_from_expected_to_available(inventory: Inventory) -> None:
    machine = await available(inventory)
    assert machine["state"] == "AVAILABLE" and machine["eligible"] and machine["objections"] == []
    moves = [
        (e.data["from_state"], e.data["to_state"]) for e in await inventory.events("inventory.machine.state_changed")
    ]
    path = ["EXPECTED", "ENROLLING", "SANITIZING", "VALIDATING", "AVAILABLE"]
    assert moves == list(pairwise(path))


async def test_every_event_of_a_machine_raises_its_version_by_one(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    versions = [e.entityversion for e in await inventory.kit.events() if e.subject == machine["id"]]
    assert versions == list(range(1, machine["version"] + 1))


async def test_site_commands_carry_reference_version_and_deadline(inventory: Inventory) -> None:
    await available(inventory)
    (order,) = await inventory.sent("ironic.enrol")
    assert order.data["bmc_credentials_ref"] == f"bmc/{NAME}" and order.data["resource_class"] == "h100-sxm-8"
    assert order.data["machine_version"] == 2 and order.deadline is not None and order.site == "fra1"


async def test_a_missing_gpu_ends_the_enrolment_and_the_batch_names_it(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    seven = [{"slot": f"GPU_SXM_{n}", "model": H100} for n in range(1, 9) if n != 4]
    await inventory.enrol(NAME, gpus=seven, gpu_slots_absent=["GPU_SXM_4"])
    machine = await inventory.machine(NAME)
    assert (machine["state"], machine["failed_step"]) == ("FAILED", "enrol")
    assert "GPU slot GPU_SXM_4" in machine["reason"]["message"] and machine["reason"]["next_step"]
    (batch,) = [
        e.data["operation"]
        for e in await inventory.events("operation.finished")
        if e.data["operation"]["kind"] == "enrol_machines"
    ]
    assert batch["status"] == "SUCCEEDED" and batch["result"]["available"] == []
    assert batch["result"]["failed"][0]["name"] == NAME
    assert batch["result"]["failed"][0]["problem"]["code"] == "machine.hardware_mismatch"


async def test_a_failed_enrolment_is_retried_from_its_beginning(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.enrol(NAME, serial="OTHER")
    answer = await inventory.kit.call("retry_machine", {"machine_id": NAME})
    assert answer.status == 202 and (await inventory.machine(NAME))["state"] == "ENROLLING"
    assert len(await inventory.sent("ironic.enrol")) == 2


async def test_enrolling_a_machine_that_is_not_expected_is_refused(inventory: Inventory) -> None:
    machine = await available(inventory)
    reply = await inventory.kit.command(EnrolMachine(machine_id=machine["id"]))
    assert reply is not None and reply.outcome is Outcome.REFUSED
    unknown = await inventory.kit.command(EnrolMachine(machine_id=new_uuid()))
    assert unknown is not None and unknown.problem is not None and unknown.problem.code == "machine.not_found"


async def test_accepting_compares_the_version_and_happens_once(inventory: Inventory) -> None:
    machine = await available(inventory)
    late = await accept(inventory, machine, expected_version=machine["version"] - 1)
    assert late.outcome is Outcome.REFUSED and late.problem is not None and late.problem.code == "machine.changed"
    first = await accept(inventory, machine)
    again = await accept(inventory, machine)
    other = await accept(inventory, machine, claim_id=new_uuid())
    assert first.ok and again.ok and first.data == again.data and not other.ok
    assert first.data["gpu_count"] == 8 and first.data["profile"] == "h100-sxm-8"


async def test_a_finding_that_is_not_yet_in_the_health_already_refuses_a_claim(inventory: Inventory) -> None:
    machine = await available(inventory)
    await inventory.kit.project("findings", [finding(machine["id"], 1)])
    reply = await accept(inventory, machine)
    assert reply.problem is not None and reply.problem.code == "machine.not_eligible"


def finding(machine_id: str, version: int, *, is_open: bool = True, severity: str = "critical") -> Any:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    facts = FindingFacts(
        id="fnd-1",
        machine_id=machine_id,
        check="gpu_health",
        component="GPU_SXM_1",
        severity=severity,
        message="sick",
        open=is_open,
        first_seen_at=now,
        last_seen_at=now,
        version=version,
    )
    return make_event(FindingRaised(finding=facts), entity_id="fnd-1", entity_version=version)


async def test_health_follows_the_findings_and_back(inventory: Inventory) -> None:
    machine = await available(inventory)
    await inventory.kit.project("findings", [finding(machine["id"], 1)])
    await periodic.follow_findings(inventory.kit.app)
    sick = await inventory.machine(NAME)
    assert sick["health"] == "FAILED" and not sick["eligible"] and sick["state"] == "AVAILABLE"
    await inventory.kit.project("findings", [finding(machine["id"], 2, is_open=False)])
    await periodic.follow_findings(inventory.kit.app)
    assert (await inventory.machine(NAME))["eligible"]


async def test_returning_goes_off_wiped_validated_available_and_answers_when_off(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    command = ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="deleted", answer_when="released")
    assert await inventory.kit.command(command) is None
    assert (await inventory.machine(NAME))["state"] == "RELEASING"
    order = await inventory.answer("ironic.release", power_state="off", observed_at="2026-03-01T12:00:00Z")
    assert order.data["claim_id"] == CLAIM
    off = await inventory.machine(NAME)
    assert off["state"] == "SANITIZING" and off["claim_id"] is None and off["returned_claim_id"] == CLAIM
    await inventory.wipe_and_pass()
    back = await inventory.machine(NAME)
    assert back["state"] == "AVAILABLE" and back["eligible"]


async def test_a_return_is_answered_at_once_when_it_has_only_to_begin(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    command = ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="swapped")
    for _ in range(2):
        reply = await inventory.kit.command(command)
        assert reply is not None and reply.ok and reply.data["begun"] is True
    assert len(await inventory.sent("ironic.release")) == 1


async def test_a_second_one_who_waits_for_the_return_is_answered_when_it_is_off(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    await inventory.kit.command(ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="swapped"))
    waiting = ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="deleted", answer_when="released")
    assert await inventory.kit.command(waiting) is None
    await inventory.deliver_own()
    await inventory.answer("ironic.release", power_state="off")
    await inventory.kit.fire_timers()
    await inventory.deliver_own()
    finished = [e.data["operation"] for e in await inventory.events("operation.finished")]
    assert [o["status"] for o in finished if o["kind"] == "follow_return"] == ["SUCCEEDED"]
    assert len(await inventory.sent("ironic.release")) == 1


async def test_returning_what_the_claim_has_not_is_nothing_to_do(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    reply = await inventory.kit.command(ReturnMachine(machine_id=machine["id"], claim_id=new_uuid(), reason="x"))
    assert reply is not None and reply.ok and reply.data["held"] is False
    assert (await inventory.machine(NAME))["state"] == "ASSIGNED"


async def test_a_failed_deploy_is_returned_into_quarantine_with_its_reason(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    reason = Problem(code="deploy.failed", message="the image did not boot")
    await inventory.kit.command(
        ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="swapped", quarantine=reason)
    )
    await inventory.answer("ironic.release", power_state="off")
    order = (await inventory.sent("ironic.sanitize"))[-1]
    suites = len(await inventory.sent("validation.run_suite"))
    await inventory.answer("ironic.sanitize", run_id=order.data["run_id"], evidence=EVIDENCE)
    out = await inventory.machine(NAME)
    assert out["state"] == "QUARANTINED" and out["reason"]["message"] == "the image did not boot"
    assert len(await inventory.sent("validation.run_suite")) == suites

    answer = await inventory.kit.call("release_quarantine", {"machine_id": NAME, "reason": "reseated the cable"})
    assert answer.status == 202
    await inventory.wipe_and_pass()
    assert (await inventory.machine(NAME))["eligible"]


async def test_a_release_that_is_not_observed_off_ends_in_failed_release_and_keeps_the_claim(
    inventory: Inventory,
) -> None:
    machine = await assigned(inventory)
    await inventory.kit.command(ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="deleted"))
    await inventory.answer("ironic.release", power_state="unknown")
    bad = await inventory.machine(NAME)
    assert (bad["state"], bad["failed_step"], bad["claim_id"]) == ("FAILED", "release", CLAIM)
    assert (await inventory.kit.call("retry_machine", {"machine_id": NAME})).status == 202
    assert (await inventory.machine(NAME))["state"] == "RELEASING"


async def test_a_returned_machine_that_fails_validation_ends_in_quarantine(inventory: Inventory) -> None:
    machine = await assigned(inventory)
    await inventory.kit.command(ReturnMachine(machine_id=machine["id"], claim_id=CLAIM, reason="deleted"))
    await inventory.answer("ironic.release", power_state="off")
    await inventory.wipe_and_pass("FAIL")
    assert (await inventory.machine(NAME))["state"] == "QUARANTINED"


async def test_quarantine_by_command_takes_it_out_of_the_pool(inventory: Inventory) -> None:
    machine = await available(inventory)
    reason = Problem(code="test.bad", message="bad")
    command = QuarantineMachine(machine_id=machine["id"], reason=reason, owner="validation")
    reply = await inventory.kit.command(command)
    assert reply is not None and reply.ok
    out = await inventory.machine(NAME)
    assert out["state"] == "QUARANTINED" and out["reason"]["details"]["owner"] == "validation"


async def test_a_state_that_lasts_too_long_fires_its_event_and_cancels_its_process(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.kit.call("enrol_machines", {"machines": [NAME]})
    await inventory.deliver_own()
    await age(inventory, NAME)
    await periodic.end_overdue(inventory.kit.app)
    await inventory.deliver_own()
    late = await inventory.machine(NAME)
    assert (late["state"], late["failed_step"], late["reason"]["code"]) == ("FAILED", "enrol", "machine.time_limit")
    ended = {e.data["operation"]["kind"]: e.data["operation"] for e in await inventory.events("operation.finished")}
    assert ended["enrol_machine"]["status"] == "CANCELLED"


async def age(inventory: Inventory, name: str) -> None:
    """Let the machine's time limit be over."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with inventory.kit.database.transaction() as conn:
        (machine,) = await store.find(conn, name)
        old = machine.with_(deadline_at=past)
        values = {"deadline_at": past, "facts": old.model_dump(mode="json")}
        await conn.execute(update(store.machine_table).where(store.machine_table.c.id == machine.id).values(**values))


@pytest.mark.parametrize(("touched", "suspect"), [(False, False), (True, True)])
async def test_a_claim_that_is_not_used_in_time_goes_back(inventory: Inventory, touched: bool, suspect: bool) -> None:
    machine = await available(inventory)
    await accept(inventory, machine)
    if touched:
        await inventory.kit.command(BeginProvisioning(machine_id=machine["id"], claim_id=CLAIM))
    await age(inventory, NAME)
    await periodic.end_overdue(inventory.kit.app)
    await inventory.deliver_own()
    assert (await inventory.machine(NAME))["state"] == "RELEASING"
    await inventory.answer("ironic.release", power_state="off")
    order = (await inventory.sent("ironic.sanitize"))[-1]
    await inventory.answer("ironic.sanitize", run_id=order.data["run_id"], evidence=EVIDENCE)
    assert (await inventory.machine(NAME))["state"] == ("QUARANTINED" if suspect else "VALIDATING")


async def test_old_proof_is_renewed_by_policy(inventory: Inventory) -> None:
    machine = await available(inventory)
    long_ago = datetime.now(UTC) - timedelta(days=60)
    async with inventory.kit.database.transaction() as conn:
        await conn.execute(update(store.machine_table).values(validated_at=long_ago))
    await periodic.revalidate_old(inventory.kit.app)
    assert (await inventory.machine(NAME))["state"] == "VALIDATING"
    suite = (await inventory.sent("validation.run_suite"))[-1]
    await inventory.answer("validation.run_suite", run_id=suite.data["run_id"], verdict="PASS")
    again = await inventory.machine(NAME)
    assert again["eligible"] and again["validated_at"] > machine["validated_at"]


def seen(machine: dict[str, Any], seconds: float, **changes: Any) -> NodeObserved:
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    base = {
        "machine_id": machine["id"],
        "name": NAME,
        "provision_state": "available",
        "power_state": "off",
        "observed_at": at,
    }
    return NodeObserved.model_validate({**base, **changes})


async def test_an_observation_is_an_event_only_when_something_changed(inventory: Inventory) -> None:
    machine = await available(inventory)
    await inventory.kit.observe(seen(machine, 20))
    one = await inventory.machine(NAME)
    await inventory.kit.observe(seen(machine, 80))
    two = await inventory.machine(NAME)
    assert one["version"] == machine["version"] + 1 and two["version"] == one["version"]
    assert two["observed_at"] > one["observed_at"] and two["eligible"]


async def test_what_a_site_sees_meanwhile_does_not_refuse_a_claim(inventory: Inventory) -> None:
    machine = await available(inventory)
    await inventory.kit.observe(seen(machine, 20))
    assert (await inventory.machine(NAME))["version"] == machine["version"] + 1
    assert (await accept(inventory, machine)).ok


async def test_an_older_observation_changes_nothing(inventory: Inventory) -> None:
    machine = await available(inventory)
    await inventory.kit.observe(seen(machine, 20))
    await inventory.kit.observe(seen(machine, 5, power_state="on"))
    assert (await inventory.machine(NAME))["power_state"] == "off"


@pytest.mark.parametrize("odd", [{"power_state": "on"}, {"provision_state": "active"}])
async def test_an_observation_that_contradicts_the_lifecycle_is_drift_and_a_hold(
    inventory: Inventory, odd: dict[str, str]
) -> None:
    machine = await available(inventory)
    for seconds in (20, 30):
        await inventory.kit.observe(seen(machine, seconds, **odd))
    held = await inventory.machine(NAME)
    assert held["state"] == "AVAILABLE" and not held["eligible"]
    assert [hold["owner"] for hold in held["holds"]] == ["system:reconcile"]
    assert len(await inventory.events("machine.drifted")) == 1
    assert not (await accept(inventory, held)).ok


async def test_an_observation_of_a_stranger_is_ignored(inventory: Inventory) -> None:
    await inventory.kit.observe(seen({"id": new_uuid()}, 1))
    assert await inventory.events("machine.updated") == []


async def test_heartbeats_are_events_only_now_and_then(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    start = datetime(2026, 3, 1, tzinfo=UTC)
    before = len(await inventory.events("site.updated"))
    for seconds in (0, 10, 20, 31):
        beat = SatelliteHeartbeat(site="fra1", version="1", at=start + timedelta(seconds=seconds))
        await inventory.kit.observe(beat)
    events = await inventory.events("site.updated")
    assert len(events) == before + 2
    assert SiteFacts.model_validate(events[-1].data["site"]).satellite_seen_at == start + timedelta(seconds=31)


async def test_a_site_step_that_fails_for_good_fails_the_machine_with_its_problem(inventory: Inventory) -> None:
    inventory.netbox.add(1)
    await inventory.read()
    await inventory.kit.call("enrol_machines", {"machines": [NAME]})
    await inventory.deliver_own()
    for _ in range(3):
        await inventory.answer("ironic.enrol", failed("ironic.unreachable", "the BMC does not answer"))
        await inventory.kit.fire_timers()
    await inventory.deliver_own()
    bad = await inventory.machine(NAME)
    assert (bad["state"], bad["failed_step"]) == ("FAILED", "enrol")
    assert bad["reason"]["message"] == "the BMC does not answer"


async def test_the_database_refuses_illegal_states(inventory: Inventory) -> None:
    machine = await available(inventory)
    bad = ["claim_id = 'x'", "state = 'CLAIMED'", "state = 'FAILED'", "health = 'FAILED'", "state = 'ENROLLING'"]
    for change in bad:
        with pytest.raises(Exception, match="violates check constraint"):
            async with inventory.kit.database.transaction() as conn:
                await conn.execute(text(f"UPDATE inventory.machine SET {change} WHERE id = :id"), {"id": machine["id"]})
