"""The process by which a machine leaves for good: wiped with evidence, removed at its site, RETIRED."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from libs.contracts.inventory import MarkMachineFailed, RecordWiped, RetireMachine
from libs.contracts.replies import Problem
from libs.contracts.site import RemoveNode, SanitizeNode
from libs.saga import Data, ToSite, saga, step, to_site

# As in a return: a real wipe of eight drives takes minutes by secure erase, hours by overwriting.
WIPE_WITHIN = timedelta(hours=7)
# Deleting a node takes a second; one that is in the middle of something is waited for.
REMOVE_WITHIN = timedelta(minutes=15)
RECORD_WITHIN = timedelta(minutes=5)


def leaving_data(base: Data, *, wipe: bool, node: bool) -> Data:
    """What the process starts with: the data of every process on one machine, and what of it there is to do."""
    return {**base, "wipe": wipe, "node": node}


def _node(data: Data) -> dict[str, Any]:
    return {"machine_id": data["machine_id"], "machine_name": data["machine_name"], "machine_version": data["version"]}


def _own(data: Data) -> dict[str, Any]:
    return {"machine_id": data["machine_id"], "operation_id": data["saga_id"]}


def mark_failed(data: Data) -> MarkMachineFailed:
    """Undo: the machine is FAILED(decommission), with the reason; it may be decommissioned again."""
    problem = data.get("problem") or {"code": "machine.step_failed", "message": "the process was given up"}
    return MarkMachineFailed(**_own(data), problem=Problem.model_validate(problem))


def wipe_disks(data: Data) -> ToSite | None:
    if not data["wipe"]:
        return None
    return to_site(data["site"], SanitizeNode(**_node(data), run_id=data["sanitise_run_id"]))


def _keep_evidence(data: Data, reply: Data) -> Data:
    return {**data, "evidence": reply.get("evidence") or {}, "evidence_run_id": str(reply.get("run_id"))}


def record_wiped(data: Data) -> RecordWiped | None:
    if not data["wipe"]:
        return None
    return RecordWiped(**_own(data), run_id=data["evidence_run_id"], evidence=data["evidence"])


def _with_version(data: Data, reply: Data) -> Data:
    return {**data, "version": reply.get("version", data["version"])}


def remove_from_site(data: Data) -> ToSite | None:
    return to_site(data["site"], RemoveNode(**_node(data))) if data["node"] else None


def retire_machine(data: Data) -> RetireMachine:
    return RetireMachine(**_own(data))


decommission_machine = saga(
    "decommission_machine",
    step(wipe_disks, within=WIPE_WITHIN, retries=1, then=_keep_evidence, undo=mark_failed),
    step(record_wiped, within=RECORD_WITHIN, retries=2, then=_with_version),
    # What a site keeps of a machine goes here, one step each, before the machine is RETIRED.
    step(remove_from_site, within=REMOVE_WITHIN, retries=2, undo=mark_failed),
    step(retire_machine, within=RECORD_WITHIN, retries=2),
    result=lambda data: {"machine_id": data["machine_id"], "machine_name": data["machine_name"], "wiped": data["wipe"]},
)

SAGAS = (decommission_machine,)
