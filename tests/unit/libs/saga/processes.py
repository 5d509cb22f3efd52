"""A process with everything in it: hold, take each, work on each with swaps and retries, finish past the pivot."""

from __future__ import annotations

from typing import Any

from libs.contracts.inventory import AcceptMachine, BeginProvisioning, ReturnMachine
from libs.contracts.provisioning import MarkClusterFailed, MarkClusterReady
from libs.contracts.replies import Problem
from libs.contracts.reservation import HoldMachines, ReleaseReservation, ReplaceClaim
from libs.saga import saga, step, swap


def hold(data: dict[str, Any]) -> HoldMachines:
    return HoldMachines(reservation_id="r", tenant="t", profile="p", count=2)


def release(data: dict[str, Any]) -> ReleaseReservation:
    return ReleaseReservation(reservation_id="r", reason=str(data["problem"]["code"]))


def keep_machines(data: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    return {**data, "machines": reply["machines"]}


def take(data: dict[str, Any], item: dict[str, Any]) -> AcceptMachine:
    return AcceptMachine(machine_id=item["id"], expected_version=1, claim_id="c", reservation_id="r", tenant="t")


def give_back(data: dict[str, Any], item: dict[str, Any]) -> ReturnMachine:
    return ReturnMachine(machine_id=item["id"], claim_id="c", reason="given back")


def work(data: dict[str, Any], item: dict[str, Any]) -> BeginProvisioning:
    return BeginProvisioning(machine_id=item["id"], claim_id="c")


def discard(data: dict[str, Any], item: dict[str, Any], problem: Problem) -> ReturnMachine:
    return ReturnMachine(machine_id=item["id"], claim_id="c", reason=problem.message, quarantine=problem)


def replace(data: dict[str, Any], item: dict[str, Any], problem: Problem) -> ReplaceClaim:
    return ReplaceClaim(reservation_id="r", claim_id="c", replacement_claim_id="d", reason=problem.message)


def finish(data: dict[str, Any]) -> MarkClusterReady:
    return MarkClusterReady(cluster_id="k", nodes=())


def fail(data: dict[str, Any]) -> MarkClusterFailed:
    return MarkClusterFailed(cluster_id="k", problem=Problem.model_validate(data["problem"]))


def bad_data(reply: dict[str, Any]) -> Problem | None:
    return None if reply.get("good", True) else Problem(code="work.bad", message="the work is bad")


ANOTHER = swap(replace=replace, then=lambda data, reply: reply["machine"], discard=discard, limit=lambda data: 1)


def open_it(data: dict[str, Any]) -> None:
    return None


everything = saga(
    "everything",
    step(hold, undo=release, then=keep_machines),
    step(take, each="machines", undo=give_back, on_failure=ANOTHER),
    step(work, each="machines", on_failure=ANOTHER, retries=1, check=bad_data),
    step(finish, pivot=True, retries=1),
    result=lambda data: {"machines": [item["id"] for item in data["machines"]]},
)

dropping = saga(
    "dropping",
    step(work, each="machines", on_failure="drop"),
    result=lambda data: {"dropped": [item["id"] for item in data.get("dropped", [])]},
)
