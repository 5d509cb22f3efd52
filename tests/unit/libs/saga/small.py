"""Small processes, each with one feature of the DSL at work, and the answers that they may get."""

from __future__ import annotations

import os
from typing import Any

from libs.contracts.inventory import AcceptMachine, BeginProvisioning, ReturnMachine
from libs.contracts.message import Message
from libs.contracts.provisioning import MarkClusterFailed
from libs.contracts.replies import Problem, Reply, ok
from libs.contracts.reservation import HoldMachines, ReleaseReservation, ReplaceClaim
from libs.saga import saga, step, swap
from libs.testing.saga_promises import World, bad_answers
from tests.unit.libs.saga.processes import everything

Dict = dict[str, Any]
# One more swap and one more word of a human in each: minutes instead of seconds (SLIPWAY_EXPLORE_DEEP=1).
DEEPER = int(os.environ.get("SLIPWAY_EXPLORE_DEEP", "0"))


def hold(data: Dict) -> HoldMachines:
    return HoldMachines(reservation_id="r", tenant="t", profile="p", count=2)


def unhold(data: Dict) -> ReleaseReservation:
    return ReleaseReservation(reservation_id="r", reason="x")


def once(data: Dict) -> MarkClusterFailed:
    return MarkClusterFailed(cluster_id="k", problem=None)


def nothing(data: Dict, item: Dict | None = None) -> None:
    return None


def take(data: Dict, item: Dict) -> AcceptMachine:
    return AcceptMachine(machine_id=item["id"], expected_version=1, claim_id="c", reservation_id="r", tenant="t")


def give_back(data: Dict, item: Dict) -> ReturnMachine:
    return ReturnMachine(machine_id=item["id"], claim_id="c", reason="x")


def work(data: Dict, item: Dict) -> BeginProvisioning:
    return BeginProvisioning(machine_id=item["id"], claim_id="c")


def work_on_first(data: Dict, item: Dict) -> BeginProvisioning | None:
    return work(data, item) if item["id"] == "m1" else None


def _discard(data: Dict, item: Dict, problem: Problem) -> ReturnMachine:
    return ReturnMachine(machine_id=item["id"], claim_id="c", reason="x", quarantine=problem)


def _replace(data: Dict, item: Dict, problem: Problem) -> ReplaceClaim:
    return ReplaceClaim(reservation_id="r", claim_id="c", replacement_claim_id="d", reason="x")


def swaps(limit: int) -> Any:
    return swap(replace=_replace, then=lambda data, reply: reply["machine"], discard=_discard, limit=lambda data: limit)


def keep(data: Dict, reply: Dict) -> Dict:
    return {**data, "machines": reply["machines"]}


def only_good(reply: Dict) -> Problem | None:
    return None if reply.get("good", True) else Problem(code="bad", message="bad")


def answers(name: str, role: str, item: str, message: Message) -> tuple[Reply, ...]:
    """OK, an OK that can't be used, a refusal, a failure."""
    if role == "swap":
        # Another machine; one that is there already; none at all.
        return (ok(machine={"id": f"{item}'"}), ok(machine={"id": "m1"}), *bad_answers())
    if role == "do" and name == "hold":
        return (ok(machines=two()), ok(machines=[*two(), {"id": "m1"}]), ok(machines=[{"id": ""}]), *bad_answers())
    if role == "do" and name == "checked":
        return (ok(), ok(good=False), *bad_answers())
    return (ok(), *bad_answers())


def two() -> list[Dict]:
    return [{"id": "m1"}, {"id": "m2"}]


def world(*steps: Any, name: str, data: Dict | None = None, resumes: int = 1) -> World:
    start = {"machines": two()} if data is None else data
    return World(saga(name, *steps), start, answers, max_resumes=resumes + DEEPER)


WORLDS: dict[str, World] = {
    "once": world(
        step(once, name="retried", retries=2, undo=once, answers=True),
        step(nothing, name="skipped", undo=nothing),
        step(once, name="checked", check=only_good, undo=once),
        step(once, name="last", pivot=True, retries=1),
        step(once, name="behind the pivot"),
        name="once",
        resumes=2,
    ),
    "each": world(
        step(hold, undo=unhold, then=keep),
        step(take, each="machines", undo=give_back, retries=1),
        step(work, each="machines"),
        name="each",
        data={},
    ),
    "some": world(
        step(work_on_first, name="some", each="machines", undo=give_back, retries=1),
        step(once, undo=once),
        step(take, each="machines", undo=nothing),
        name="some",
    ),
    "drop": world(
        step(work, each="machines", on_failure="drop", retries=1),
        step(once, undo=once),
        step(take, name="drop late", each="machines", on_failure="drop"),
        name="drop",
        data={"machines": [*two(), {"id": "m3"}]},
    ),
    "pivot": world(
        step(hold, undo=unhold, then=keep),
        step(work, each="machines", retries=1, pivot=True),
        step(once, name="behind the pivot", retries=1),
        name="pivot",
        data={},
        resumes=3,
    ),
    "swap behind the pivot": world(
        step(once, pivot=True),
        step(take, each="machines", on_failure=swaps(1 + DEEPER)),
        step(work, each="machines", retries=1),
        name="swap behind the pivot",
    ),
    "swap": world(
        step(hold, undo=unhold, then=keep),
        step(take, each="machines", undo=give_back),
        step(once),
        step(work, each="machines", on_failure=swaps(1 + DEEPER), retries=1),
        name="swap",
        data={},
        resumes=0,
    ),
    "everything": World(everything, {}, answers, max_resumes=DEEPER),
}
