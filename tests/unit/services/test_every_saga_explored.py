"""The real processes, every course of them: what the core promises holds with their own steps, checks and undo.

Every OK answer comes once as the owner gives it and once empty, which no step may take for good news or stumble over.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from libs.contracts.message import Message, json_data
from libs.contracts.operations import OperationStatus
from libs.contracts.replies import Reply, ok
from libs.contracts.reservation import ReplaceClaim
from libs.contracts.validation import RunSuite, Suite
from libs.saga import core
from libs.saga.dsl import Data, Saga
from libs.testing.saga_explorer import explore
from libs.testing.saga_promises import World, bad_answers
from services.inventory.sagas import machine_data
from services.inventory.sagas_rotation import rotation_data
from tests.unit.libs.saga.small import DEEPER
from tests.unit.services.inventory.machines import CLAIM, EVIDENCE, OPERATION, inspection, machine
from tools.generation.pages import sagas as declared

PASS = {"run_id": "r", "verdict": "PASS", "checks": []}
LOGIN = {"address": "192.0.2.7", "ssh_port": 22, "ssh_host_key": "ssh-ed25519 HOST"}

GOOD: Mapping[str, Data] = {
    "inspect_hardware": json_data(inspection()),
    "record_inspection": {"version": 7},
    "release_node": {"power_state": "off", "observed_at": "2026-03-01T12:00:00Z"},
    "free_node": {"power_state": "off", "observed_at": "2026-03-01T12:00:00Z"},
    "set_power": {"power_state": "on", "observed_at": "2026-03-01T12:00:00Z"},
    "record_released": {"version": 8},
    "sanitize_node": {"run_id": "r", "evidence": EVIDENCE},
    "wipe_disks": {"run_id": "r", "evidence": EVIDENCE},
    "record_wiped": {"version": 9},
    "record_sanitised": {"version": 9, "quarantined": False},
    "run_validation": PASS,
    "run_validation_again": PASS,
    "record_verdict": {"version": 10, "again": True},
    "record_second_verdict": {"version": 11, "again": False},
    "accept_machine": {"version": 8, "gpu_model": "H100", "gpu_count": 8},
    "validate_out_of_band": PASS,
    "begin_provisioning": {"version": 9},
    "deploy_image": LOGIN,
    "deliver_keys": {"fingerprints": ["SHA256:x"]},
    "check_on_node": PASS,
    "run_template": {"run_id": "t", "stats": {}},
    "assign_machine": {"version": 10},
    "collect_evidence": {"evidence": []},
    "reserve_at_site": {"managed": True, "applied": [], "refused": [], "lasting": True},
    "ask_the_ranges": {"addresses": 254, "found": 3, "seconds": 2.5},
    "record_run": PASS,
    "promote_credentials": {"old_opens": "no"},
    "rotate_each": {"old_opens": "no"},
}


def _answers(step: str, role: str, item: str, message: Message) -> tuple[Reply, ...]:
    if role == "undo":
        return (ok(), *bad_answers())
    if role == "swap":
        assert isinstance(message, ReplaceClaim)
        return (ok(machine=_held(f"{item}'", message.replacement_claim_id)), ok(), *bad_answers())
    if step == "hold_machines":
        return (ok(machines=[_held("m1", "c1")]), ok(), *bad_answers())
    return (ok(**GOOD.get(step, {})), ok(), *bad_answers())


def _held(machine_id: str, claim_id: str) -> Data:
    return {"id": machine_id, "claim_id": claim_id, "name": f"fra1-{machine_id}", "version": 7, "site": "fra1"}


def _of_machine() -> Data:
    data = machine_data(machine(claim_id=CLAIM), OPERATION, credentials_ref="bmc/m", expected={"gpu_count": 8})
    return {**data, "fail_to": "FAILED"}


def _of_cluster() -> Data:
    return {
        "cluster_id": "clu-1",
        "cluster_name": "train",
        "tenant": "acme-research",
        "profile": "gpu-h100",
        "node_count": 1,
        "wanted_site": None,
        "reservation_id": "rsv-1",
        "image": {"url": "http://images/gpu", "checksum": "0" * 64},
        "playbook": "plain",
        "max_swaps": 1,
        "ssh_authorized_keys": ["ssh-ed25519 AAAA test"],
        "expected": {"gpu_model": "H100", "gpu_count": 8},
        "machines": [],
    }


def _of_run() -> Data:
    wanted = RunSuite(
        run_id="r",
        machine_id="m1",
        site="fra1",
        suite=Suite.OUT_OF_BAND,
        expected={"gpu_count": 8},
        machine_name="fra1-r1-gpu-01",
    )
    return wanted.model_dump(mode="json")


DATA: Mapping[str, Data] = {
    "enrol_machine": _of_machine(),
    "return_machine": _of_machine(),
    "renew_machine": _of_machine(),
    "reclaim_machine": _of_machine(),
    "power_machine": {**_of_machine(), "power": "on"},
    "remove_stray_node": _of_machine(),
    "reserve_provider": {**_of_machine(), "held": True},
    "revalidate_machine": _of_machine(),
    "follow_return": _of_machine(),
    "decommission_machine": {**_of_machine(), "wipe": True, "node": True},
    "reserve_addresses": {"machine_id": "m-1", "machine_name": "gpu-1", "site": "fra1", "reservations": []},
    "scan_bmcs": {"site": "fra1", "networks": [], "scan_id": "scn-1"},
    "rotate_machine_credentials": rotation_data("m1", "fra1-m1", "fra1"),
    "act_on_machines": {
        "machines": [{"id": f"m{n}", "name": f"n{n}"} for n in range(3)],
        "names": {},
        "action": "hold",
        "reason": "cabling",
        "hold_id": "hold-1",
        "asked_by": "user:eva",
    },
    "rotate_credentials": {"machines": [{"id": f"m{n}", "name": f"n{n}"} for n in range(3)], "names": {}},
    "enrol_machines": {"machines": [{"id": f"m{n}", "name": f"n{n}"} for n in range(3)], "names": {}},
    "create_cluster": _of_cluster(),
    "delete_cluster": {
        "cluster_id": "clu-1",
        "reservation_id": "rsv-1",
        "machines": [{"id": "m1", "claim_id": "c1"}, {"id": "m2", "claim_id": "c2"}],
    },
    "run_suite": _of_run(),
}
SAGAS: Mapping[str, Saga] = {saga.kind: saga for _, saga in declared()}


def test_every_declared_process_is_explored() -> None:
    missing = sorted(set(SAGAS) - set(DATA))
    assert missing == [], "give each the data it starts from in DATA, and its good answers in GOOD"
    assert sorted(set(DATA) - set(SAGAS)) == [], "these are no longer declared"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", sorted(DATA))
def test_every_course_of_a_process_keeps_every_promise(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "UNDO_RETRIES", 1)
    found = explore(World(SAGAS[kind], DATA[kind], _answers, max_resumes=DEEPER))
    print(f"{kind}: {found}")
    # A walk that ends early is no pass: each step has at least an awaited state and a way to fail.
    assert found.states >= 3 * len(SAGAS[kind].steps)
    assert OperationStatus.SUCCEEDED in found.statuses, "the answers in GOOD lead nowhere"
