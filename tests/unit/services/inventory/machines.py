"""Machines to test with: one that is fit to be enrolled, and ways to bring it to any state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from libs.contracts.inventory import AcceptMachine, Health, MachineState
from libs.contracts.replies import Outcome
from libs.contracts.site import InspectedGpu, Inspection
from services.inventory.model import claims, renewal
from services.inventory.model.machine import Change, Decision, Machine, Refusal

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MACHINE_ID = "5a2f6ad2-6c0e-5f0a-9d0c-0c8e5b1f7a10"
CLAIM = "0c1a0000-0000-7000-8000-000000000001"
OPERATION = "op-inv-00000000000000000000000000000001"
H100 = "NVIDIA H100 80GB HBM3"
S = MachineState


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def machine(**changes: Any) -> Machine:
    base: dict[str, Any] = {
        "id": MACHINE_ID,
        "name": "fra1-r1-gpu-01",
        "site": "fra1",
        "rack": "r1",
        "netbox_id": 11,
        "device_type": "nvidia-dgx-h100",
        "role": "gpu-node",
        "profile": "h100-sxm-8",
        "gpu_model": H100,
        "gpu_count": 8,
        "serial": "1660223969975",
        "theirs": {"serial": "1660223969975", "site": "fra1", "device_type": "nvidia-dgx-h100"},
        "bmc_address": "10.20.1.11",
        "state": S.EXPECTED,
        "state_since": START,
        "proof_after": START,
        "netbox_status": "staged",
        "version": 1,
    }
    return Machine.model_validate({**base, **changes})


def inspection(**changes: Any) -> Inspection:
    base: dict[str, Any] = {
        "manufacturer": "NVIDIA",
        "model": "DGX H100",
        "serial": "1660223969975",
        "cpu_count": 2,
        "memory_gib": 2048,
        "gpus": tuple(InspectedGpu(slot=f"GPU_SXM_{n}", model=H100, serial=f"165{n}") for n in range(1, 9)),
        "power_state": "off",
    }
    return Inspection.model_validate({**base, **changes})


def changed(decision: Decision) -> Machine:
    """The machine after a decision that must have said yes."""
    assert isinstance(decision, Change), decision
    assert decision.reply is None or decision.reply.ok, decision.reply
    return decision.machine


def outcome(decision: Decision) -> Outcome:
    reply = decision.reply
    assert reply is not None
    return reply.outcome


def code(decision: Decision) -> str:
    reply = decision.reply
    assert reply is not None and reply.problem is not None
    return reply.problem.code


def refused(decision: Decision) -> bool:
    return isinstance(decision, Refusal)


EVIDENCE: dict[str, object] = {"steps": ["deploy.erase_devices"], "power_state": "off"}


def enrolling(start: Machine | None = None, minute: float = 1) -> Machine:
    return changed(renewal.enrol(start or machine(), OPERATION, at(minute)))


def sanitizing(minute: float = 2) -> Machine:
    return changed(
        renewal.record_inspection(
            enrolling(),
            operation_id=OPERATION,
            inspection=inspection(),
            mismatches=(),
            sanitise_run_id="wipe-1",
            now=at(minute),
        )
    )


def wiped(of: Machine, minute: float, run: str = "wipe-1", validate_run: str = "run-1") -> Decision:
    return renewal.record_sanitised(
        of, operation_id=OPERATION, run_id=run, evidence=EVIDENCE, validate_run_id=validate_run, now=at(minute)
    )


def validating(minute: float = 3) -> Machine:
    return changed(wiped(sanitizing(), minute))


def verdict(of: Machine, minute: float, word: str = "PASS", **changes: Any) -> Decision:
    arguments: dict[str, Any] = {
        "operation_id": OPERATION,
        "run_id": "run-1",
        "verdict": word,
        "problem": None,
        "fail_to": "FAILED",
        "next_run_id": "run-2",
        "now": at(minute),
    }
    return renewal.record_verdict(of, **{**arguments, **changes})


def available(minute: float = 4) -> Machine:
    return changed(verdict(validating(), minute))


def accept_command(of: Machine, **changes: Any) -> AcceptMachine:
    base: dict[str, Any] = {
        "machine_id": of.id,
        "expected_version": of.version,
        "claim_id": CLAIM,
        "reservation_id": "res-1",
        "cluster_id": "clu-1",
        "tenant": "acme-research",
    }
    return AcceptMachine.model_validate({**base, **changes})


def accepted(of: Machine, minute: float, **changes: Any) -> Decision:
    return claims.accept(of, accept_command(of, **changes), found_health=Health.UNKNOWN, now=at(minute))


def claimed() -> Machine:
    return changed(accepted(available(), 5))


def provisioning() -> Machine:
    return changed(claims.begin_provisioning(claimed(), CLAIM, at(6)))


def assigned() -> Machine:
    return changed(claims.assign(provisioning(), CLAIM, at(7)))


def releasing(of: Machine | None = None, **changes: Any) -> Machine:
    arguments: dict[str, Any] = {"quarantine": None, "operation_id": OPERATION, "now": at(8), **changes}
    return changed(claims.begin_return(of or assigned(), CLAIM, **arguments))


def released(of: Machine | None = None, minute: float = 9) -> Machine:
    return changed(
        claims.record_released(
            of or releasing(), operation_id=OPERATION, power_state="off", sanitise_run_id="wipe-2", now=at(minute)
        )
    )
