"""Inventory's processes: enrol, return, renew, revalidate one machine; enrol a batch.

Each changes the machine only through inventory's own commands, bound to the saga's operation. The handlers
that start a saga move the machine first, in the same transaction; run ids are in the data from the start.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from libs.contracts.ids import derived_uuid
from libs.contracts.inventory import (
    CheckReleased,
    EnrolMachine,
    MarkMachineFailed,
    RecordInspection,
    RecordReleased,
    RecordSanitised,
    RecordVerdict,
)
from libs.contracts.replies import Problem
from libs.contracts.site import EnrolNode, Inspection, InspectNode, ReleaseNode, SanitizeNode
from libs.contracts.validation import RunSuite, Suite
from libs.saga import Data, Item, ToSite, saga, step, to_site
from services.inventory import sagas_site
from services.inventory.model.machine import Machine
from services.inventory.sagas_bulk import BULK_SAGAS
from services.inventory.sagas_leaving import SAGAS as LEAVING_SAGAS
from services.inventory.sagas_rotation import ROTATION_SAGAS

# A real wipe of eight NVMe drives takes minutes by secure erase, hours by overwriting. Below the state's own 8 h.
SANITIZE_WITHIN = timedelta(hours=7)
SUITE_WITHIN = timedelta(minutes=20)
RECORD_WITHIN = timedelta(minutes=5)


def machine_data(machine: Machine, operation_id: str, *, credentials_ref: str, expected: Data) -> Data:
    """What every saga of one machine starts with. The version fences the site's commands."""
    return {
        "machine_id": machine.id,
        "machine_name": machine.name,
        "site": machine.site,
        "version": machine.version,
        "claim_id": machine.claim_id,
        "bmc_address": machine.bmc_address,
        "bmc_credentials_ref": credentials_ref,
        "resource_class": machine.profile or "",
        "nic_macs": list(machine.nic_macs),
        "sanitise_run_id": derived_uuid(operation_id, "sanitise"),
        "validate_run_ids": [derived_uuid(operation_id, "validate", number) for number in ("1", "2")],
        "expected": expected,
    }


def _node(data: Data) -> dict[str, Any]:
    return {"machine_id": data["machine_id"], "machine_name": data["machine_name"], "machine_version": data["version"]}


def _own(data: Data) -> dict[str, Any]:
    return {"machine_id": data["machine_id"], "operation_id": data["saga_id"]}


def _with_version(data: Data, reply: Data) -> Data:
    return {**data, "version": reply.get("version", data["version"])}


def mark_failed(data: Data) -> MarkMachineFailed:
    """Undo of every process: the machine is FAILED at the step it is in, with the reason."""
    problem = data.get("problem") or {"code": "machine.step_failed", "message": "the process was given up"}
    return MarkMachineFailed(**_own(data), problem=Problem.model_validate(problem))


# -- enrolment: make the node, look inside --------------------------------------------------------


def make_node(data: Data) -> ToSite:
    message = EnrolNode(
        **_node(data),
        bmc_address=data["bmc_address"],
        bmc_credentials_ref=data["bmc_credentials_ref"],
        resource_class=data["resource_class"],
        nic_macs=tuple(data["nic_macs"]),
    )
    return to_site(data["site"], message)


def inspect_hardware(data: Data) -> ToSite:
    return to_site(data["site"], InspectNode(**_node(data)))


def _keep_inspection(data: Data, reply: Data) -> Data:
    return {**data, "inspection": reply}


def record_inspection(data: Data) -> RecordInspection:
    return RecordInspection(
        **_own(data),
        inspection=Inspection.model_validate(data["inspection"]),
        sanitise_run_id=data["sanitise_run_id"],
    )


def _readable_inspection(reply: Data) -> Problem | None:
    try:
        Inspection.model_validate(reply)
    except ValueError as error:
        return Problem(
            code="machine.inspection_unreadable",
            message=f"the site's inspection can't be read: {error}",
            next_step="Update the site's satellite to this release, then retry the machine.",
        )
    return None


# -- return: off, and seen off --------------------------------------------------------------------


def release_node(data: Data) -> ToSite:
    return to_site(data["site"], ReleaseNode(**_node(data), claim_id=data["claim_id"]))


def free_node(data: Data) -> ToSite:
    """Release without a claim: the site undeploys whatever is there."""
    return to_site(data["site"], ReleaseNode(**_node(data)))


def _observed_off(reply: Data) -> Problem | None:
    """Rule 3: an order sent is not a fact."""
    if reply.get("power_state") == "off":
        return None
    return Problem(
        code="machine.not_observed_off",
        message=f"the site did not observe it off, but {reply.get('power_state') or 'nothing'}",
        next_step="Look at the machine's BMC, switch it off, then retry the machine.",
    )


def _keep_release(data: Data, reply: Data) -> Data:
    return {**data, "power_state": reply["power_state"], "off_observed_at": reply.get("observed_at")}


def record_released(data: Data) -> RecordReleased:
    return RecordReleased(
        **_own(data),
        power_state=data["power_state"],
        observed_at=data["off_observed_at"],
        sanitise_run_id=data["sanitise_run_id"],
    )


# -- sanitise and validate: the same for every way into the pool ----------------------------------


def sanitize_node(data: Data) -> ToSite:
    return to_site(data["site"], SanitizeNode(**_node(data), run_id=data["sanitise_run_id"]))


def _keep_evidence(data: Data, reply: Data) -> Data:
    return {**data, "evidence": reply.get("evidence") or {}, "evidence_run_id": str(reply.get("run_id"))}


def record_sanitised(data: Data) -> RecordSanitised:
    return RecordSanitised(
        **_own(data),
        run_id=data["evidence_run_id"],
        evidence=data["evidence"],
        validate_run_id=data["validate_run_ids"][0],
    )


def _keep_wiped(data: Data, reply: Data) -> Data:
    return {**_with_version(data, reply), "quarantined": bool(reply.get("quarantined"))}


def _suite(data: Data, run_id: str) -> RunSuite:
    return RunSuite(
        run_id=run_id,
        machine_id=data["machine_id"],
        site=data["site"],
        suite=Suite.OUT_OF_BAND,
        requested_for=data["saga_id"],
        machine_name=data["machine_name"],
        machine_version=data["version"],
        expected=data["expected"],
    )


def run_validation(data: Data) -> RunSuite | None:
    return None if data.get("quarantined") else _suite(data, data["validate_run_ids"][0])


def _keep_verdict(data: Data, reply: Data) -> Data:
    return {**data, "verdict": str(reply.get("verdict") or "INCONCLUSIVE"), "verdict_problem": _why(reply)}


def _why(reply: Data) -> Data | None:
    """The run's own problem, or one made of its checks that did not pass: check, expected, found."""
    if reply.get("problem"):
        return dict(reply["problem"])
    bad = [check for check in reply.get("checks") or [] if isinstance(check, dict) and check.get("verdict") != "PASS"]
    if not bad:
        return None
    words = [
        f"{check.get('check')} {check.get('component') or ''}: expected {check.get('expected') or 'a result'}, "
        f"found {check.get('found') or check.get('message') or 'nothing'}"
        for check in bad[:8]
    ]
    code = "validation.failed" if reply.get("verdict") == "FAIL" else "validation.inconclusive"
    return {"code": code, "message": "; ".join(words), "details": {"run_id": reply.get("run_id"), "checks": bad[:8]}}


def record_verdict(data: Data) -> RecordVerdict | None:
    if data.get("quarantined"):
        return None
    first, second = data["validate_run_ids"]
    return _verdict(data, first, next_run_id=second)


def _verdict(data: Data, run_id: str, next_run_id: str | None) -> RecordVerdict:
    return RecordVerdict(
        **_own(data),
        run_id=run_id,
        verdict=data["verdict"],
        problem=Problem.model_validate(data["verdict_problem"]) if data["verdict_problem"] else None,
        fail_to=data["fail_to"],
        next_run_id=next_run_id,
    )


def _keep_again(data: Data, reply: Data) -> Data:
    return {**_with_version(data, reply), "again": bool(reply.get("again"))}


def run_validation_again(data: Data) -> RunSuite | None:
    """Once more when the first run could not tell; after that a human looks at it."""
    return _suite(data, data["validate_run_ids"][1]) if data.get("again") else None


def record_second_verdict(data: Data) -> RecordVerdict | None:
    return _verdict(data, data["validate_run_ids"][1], None) if data.get("again") else None


def _machine_result(data: Data) -> Data:
    ended = "QUARANTINED" if data.get("quarantined") else "AVAILABLE"
    return {"machine_id": data["machine_id"], "machine_name": data["machine_name"], "state": ended}


_VALIDATE = (
    step(run_validation, within=SUITE_WITHIN, retries=1, then=_keep_verdict, undo=mark_failed),
    step(record_verdict, within=RECORD_WITHIN, retries=2, then=_keep_again),
    step(run_validation_again, within=SUITE_WITHIN, retries=1, then=_keep_verdict),
    step(record_second_verdict, within=RECORD_WITHIN, retries=2, then=_keep_again),
)
_WIPE_AND_VALIDATE = (
    step(sanitize_node, within=SANITIZE_WITHIN, then=_keep_evidence, retries=1, undo=mark_failed),
    step(record_sanitised, within=RECORD_WITHIN, retries=2, then=_keep_wiped),
    *_VALIDATE,
)

enrol_machine = saga(
    "enrol_machine",
    step(make_node, within=timedelta(minutes=15), retries=2, undo=mark_failed),
    step(inspect_hardware, within=timedelta(minutes=20), retries=2, then=_keep_inspection, check=_readable_inspection),
    step(record_inspection, within=RECORD_WITHIN, retries=2, then=_with_version),
    *_WIPE_AND_VALIDATE,
    result=_machine_result,
)

return_machine = saga(
    "return_machine",
    step(
        release_node,
        within=timedelta(minutes=14),
        retries=1,
        then=_keep_release,
        check=_observed_off,
        undo=mark_failed,
    ),
    step(record_released, within=RECORD_WITHIN, retries=2, then=_with_version, answers=True),
    *_WIPE_AND_VALIDATE,
    result=_machine_result,
)

renew_machine = saga("renew_machine", *_WIPE_AND_VALIDATE, result=_machine_result)

# The same for a machine that somebody deployed past us: it is undeployed and seen off first, whosever it is.
reclaim_machine = saga(
    "reclaim_machine",
    step(free_node, within=timedelta(minutes=30), retries=1, check=_observed_off, undo=mark_failed),
    *_WIPE_AND_VALIDATE,
    result=_machine_result,
)

revalidate_machine = saga("revalidate_machine", *_VALIDATE, result=_machine_result)


# -- somebody else waits for a return that already runs -------------------------------------------


def check_released(data: Data) -> CheckReleased:
    return CheckReleased(machine_id=data["machine_id"], claim_id=data["claim_id"])


# Asked again after 1, 2, 4, … 60 s: 35 times are a little more than RELEASING's own limit of 30 minutes.
follow_return = saga(
    "follow_return",
    step(check_released, within=timedelta(minutes=1), retries=35),
    result=lambda data: {"machine_id": data["machine_id"]},
)


# -- a batch --------------------------------------------------------------------------------------


def enrol_each(data: Data, item: Item) -> EnrolMachine:
    return EnrolMachine(machine_id=item["id"])


def _batch_result(data: Data) -> Data:
    names = data["names"]
    return {
        "available": [{"id": item["id"], "name": item["name"]} for item in data["machines"]],
        "failed": [
            {"id": out["id"], "name": names.get(out["id"], ""), "problem": out["problem"]}
            for out in data.get("dropped", [])
        ],
        "skipped": data.get("skipped", []),
    }


enrol_machines = saga(
    "enrol_machines",
    # The sum of one machine's limits; they run beside one another.
    step(enrol_each, each="machines", within=timedelta(hours=12), on_failure="drop"),
    result=_batch_result,
)

SAGAS = (
    enrol_machine,
    return_machine,
    renew_machine,
    reclaim_machine,
    revalidate_machine,
    follow_return,
    enrol_machines,
    *ROTATION_SAGAS,
    *BULK_SAGAS,
    *LEAVING_SAGAS,
    *sagas_site.SAGAS,
)
