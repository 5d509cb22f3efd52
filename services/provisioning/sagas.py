"""The processes of provisioning, declared: create a cluster, delete a cluster.

Everything a step needs is in the saga's data from its start or from earlier replies, so that the same decision always
gives the same command. What is taken is given back by undo, backwards; a machine has one way back, inventory's return.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from libs.contracts.ids import derived_uuid
from libs.contracts.inventory import AcceptMachine, AssignMachine, BeginProvisioning, ReturnMachine
from libs.contracts.provisioning import (
    CheckLimits,
    MarkClusterDeleted,
    MarkClusterFailed,
    MarkClusterReady,
    NodeFacts,
    WithdrawCluster,
)
from libs.contracts.replies import Problem
from libs.contracts.reservation import ConfirmClaim, HoldMachines, ReleaseReservation, ReplaceClaim
from libs.contracts.site import DeliverKeys, DeployNode, RunnerNode, RunTemplate
from libs.contracts.validation import RunSuite, Suite, Verdict
from libs.saga import Data, Item, ToSite, saga, step, swap, to_site
from services.provisioning import errors
from services.provisioning.model import node_name

# The steps' limits are those of the lifecycle's tables: what they wait for has limits of its own, just below.
HOLD_SECONDS = 1800


def check_limits(data: Data) -> CheckLimits:
    return CheckLimits(cluster_id=data["cluster_id"])


def mark_cluster_failed(data: Data) -> MarkClusterFailed:
    problem = data.get("problem")
    return MarkClusterFailed(
        cluster_id=data["cluster_id"],
        problem=Problem.model_validate(problem) if problem else None,
        cancelled=bool(data.get("cancelled")),
    )


def hold_machines(data: Data) -> HoldMachines:
    return HoldMachines(
        reservation_id=data["reservation_id"],
        tenant=data["tenant"],
        profile=data["profile"],
        count=data["node_count"],
        site=data["wanted_site"],
        cluster_id=data["cluster_id"],
        ttl_seconds=HOLD_SECONDS,
    )


def keep_machines(data: Data, reply: Data) -> Data:
    """The held machines in a fixed order, each with the name its node will have."""
    machines = sorted(reply["machines"], key=lambda machine: str(machine["name"]))
    items = [
        {**machine, "node_name": node_name(data["cluster_name"], index), "swaps": 0}
        for index, machine in enumerate(machines)
    ]
    return {**data, "machines": items, "site": items[0]["site"]}


def release_reservation(data: Data) -> ReleaseReservation:
    problem = data.get("problem") or {}
    reason = str(problem.get("message") or "the cluster was deleted")
    return ReleaseReservation(reservation_id=data["reservation_id"], reason=reason)


def accept_machine(data: Data, item: Item) -> AcceptMachine:
    return AcceptMachine(
        machine_id=item["id"],
        expected_version=item["version"],
        claim_id=item["claim_id"],
        reservation_id=data["reservation_id"],
        cluster_id=data["cluster_id"],
        tenant=data["tenant"],
    )


def keep_accepted(item: Item, reply: Data) -> Item:
    return {
        **item,
        "version": reply["version"],
        "accepted_version": reply["version"],
        "gpu_model": str(reply.get("gpu_model") or ""),
        "gpu_count": int(reply.get("gpu_count") or 0),
    }


def keep_version(item: Item, reply: Data) -> Item:
    return {**item, "version": reply.get("version", item["version"])}


def give_machine_back(data: Data, item: Item) -> ReturnMachine:
    problem = data.get("problem") or {}
    reason = str(problem.get("message") or "its cluster is not created")
    return ReturnMachine(machine_id=item["id"], claim_id=item["claim_id"], reason=reason)


def confirm_claim(data: Data, item: Item) -> ConfirmClaim:
    return ConfirmClaim(
        reservation_id=data["reservation_id"], claim_id=item["claim_id"], accepted_version=item["accepted_version"]
    )


def _suite(data: Data, item: Item, suite: Suite, login: dict[str, Any], **more: object) -> RunSuite:
    return RunSuite(
        run_id=derived_uuid(data["saga_id"], suite.value, item["claim_id"]),
        machine_id=item["id"],
        machine_name=item["name"],
        site=data["site"],
        suite=suite,
        **login,
        claim_id=item["claim_id"],
        requested_for=data["cluster_id"],
        expected={**data["expected"], "machine_name": item["name"], **more},
    )


def validate_out_of_band(data: Data, item: Item) -> RunSuite:
    return _suite(data, item, Suite.OUT_OF_BAND, {})


def only_pass(reply: Data) -> Problem | None:
    """Only PASS passes; a missing or unknown verdict does not."""
    if reply.get("verdict") == Verdict.PASS.value:
        return None
    if reply.get("problem"):
        return Problem.model_validate(reply["problem"])
    failed = [check for check in reply.get("checks") or () if check.get("verdict") != Verdict.PASS.value]
    found = "; ".join(f"{check.get('check')}: {check.get('message') or check.get('found')}" for check in failed[:5])
    return Problem(
        code=errors.NOT_PASSED,
        message=f"validation run {reply.get('run_id', '?')} ended {reply.get('verdict', 'without a verdict')}"
        + (f" ({found})" if found else ""),
        next_step=f"Look at the run's checks: GET /runs/{reply.get('run_id', '')}",
    )


def begin_provisioning(data: Data, item: Item) -> BeginProvisioning:
    return BeginProvisioning(machine_id=item["id"], claim_id=item["claim_id"])


def _site_command(data: Data, item: Item) -> dict[str, Any]:
    return {
        "machine_id": item["id"],
        "machine_name": item["name"],
        "claim_id": item["claim_id"],
        "machine_version": item["version"],
    }


def deploy_image(data: Data, item: Item) -> ToSite:
    deploy = DeployNode(
        **_site_command(data, item),
        image_url=data["image"]["url"],
        image_checksum=data["image"]["checksum"],
        hostname=item["node_name"],
        ssh_authorized_keys=tuple(data["ssh_authorized_keys"]),
    )
    return to_site(data["site"], deploy)


def has_address(reply: Data) -> Problem | None:
    """A node without a known address or host key can't be reached safely: it is not deployed."""
    if reply.get("address") and reply.get("ssh_host_key"):
        return None
    return Problem(
        code=errors.NO_ADDRESS,
        message="the node was deployed, but its address or SSH host key is not known",
        next_step="Look at the node's network and at the satellite's log.",
    )


def keep_address(item: Item, reply: Data) -> Item:
    return {
        **item,
        "address": reply["address"],
        "ssh_port": int(reply.get("ssh_port") or 22),
        "ssh_host_key": reply["ssh_host_key"],
    }


def _login(item: Item) -> dict[str, Any]:
    return {"address": item["address"], "ssh_port": item["ssh_port"], "ssh_host_key": item["ssh_host_key"]}


def deliver_keys(data: Data, item: Item) -> ToSite:
    keys = DeliverKeys(
        **_site_command(data, item), **_login(item), ssh_authorized_keys=tuple(data["ssh_authorized_keys"])
    )
    return to_site(data["site"], keys)


def keys_confirmed(reply: Data) -> Problem | None:
    """The node must have been read back; silence is no confirmation."""
    if reply.get("fingerprints"):
        return None
    return Problem(
        code=errors.KEYS_NOT_CONFIRMED,
        message="the node did not confirm the tenant's SSH keys",
        next_step="Look at the node's authorized_keys and at the satellite's log.",
    )


def check_on_node(data: Data, item: Item) -> RunSuite:
    return _suite(data, item, Suite.ON_NODE, _login(item), hostname=item["node_name"])


def run_template(data: Data) -> ToSite:
    template = RunTemplate(
        run_id=derived_uuid(data["saga_id"], "run_template"),
        cluster_id=data["cluster_id"],
        operation_id=data["saga_id"],
        playbook=data["playbook"],
        nodes=tuple(RunnerNode(name=item["node_name"], **_login(item)) for item in _by_node(data)),
        variables={"cluster_name": data["cluster_name"]},
    )
    return to_site(data["site"], template)


def assign_machine(data: Data, item: Item) -> AssignMachine:
    return AssignMachine(machine_id=item["id"], claim_id=item["claim_id"])


def _by_node(data: Data) -> list[Item]:
    order = {node_name(data["cluster_name"], index): index for index in range(data["node_count"])}
    return sorted(data["machines"], key=lambda item: order[item["node_name"]])


def _swapped(data: Data) -> int:
    return sum(int(item["swaps"]) for item in data["machines"])


def mark_cluster_ready(data: Data) -> MarkClusterReady:
    nodes = tuple(
        NodeFacts(
            machine_id=item["id"],
            machine_name=item["name"],
            claim_id=item["claim_id"],
            name=item["node_name"],
            gpu_model=item["gpu_model"],
            gpu_count=item["gpu_count"],
            **_login(item),
        )
        for item in _by_node(data)
    )
    return MarkClusterReady(cluster_id=data["cluster_id"], nodes=nodes, swapped=_swapped(data), site=data["site"])


def withdraw_cluster(data: Data) -> WithdrawCluster:
    problem = data.get("problem") or {}
    return WithdrawCluster(cluster_id=data["cluster_id"], reason=str(problem.get("message") or "taken back"))


# -- a node that fails is swapped for another -----------------------------------------------------------------------


def _replacement_claim_id(claim_id: str) -> str:
    return derived_uuid(claim_id, "replacement")


def discard_machine(data: Data, item: Item, problem: Problem) -> ReturnMachine:
    """The failed machine goes back, into quarantine. An unknown outcome is inventory's to settle with the site."""
    return ReturnMachine(
        machine_id=item["id"],
        claim_id=item["claim_id"],
        reason=f"swapped out of cluster {data['cluster_id']}: {problem.message}",
        quarantine=problem,
    )


def replace_claim(data: Data, item: Item, problem: Problem) -> ReplaceClaim:
    return ReplaceClaim(
        reservation_id=data["reservation_id"],
        claim_id=item["claim_id"],
        replacement_claim_id=_replacement_claim_id(item["claim_id"]),
        reason=problem.message,
    )


def keep_replacement(data: Data, reply: Data) -> Item:
    """The new machine takes the node name of the one whose claim its own claim id is derived from."""
    machine = reply["machine"]
    old = next(each for each in data["machines"] if _replacement_claim_id(each["claim_id"]) == machine["claim_id"])
    return {**machine, "node_name": old["node_name"], "swaps": old["swaps"] + 1}


def max_swaps(data: Data) -> int:
    return int(data["max_swaps"])


swap_machine = swap(replace=replace_claim, discard=discard_machine, then=keep_replacement, limit=max_swaps)


def created(data: Data) -> Data:
    return {
        "cluster_id": data["cluster_id"],
        "site": data["site"],
        "nodes": [item["node_name"] for item in _by_node(data)],
        "swapped": _swapped(data),
    }


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


create_cluster = saga(
    "create_cluster",
    step(check_limits, within=minutes(1), retries=2, undo=mark_cluster_failed),
    step(hold_machines, within=minutes(5), undo=release_reservation, then=keep_machines),
    step(
        accept_machine,
        each="machines",
        within=minutes(1),
        then=keep_accepted,
        undo=give_machine_back,
        on_failure=swap_machine,
    ),
    step(confirm_claim, each="machines", within=minutes(1), retries=2),
    step(validate_out_of_band, each="machines", within=minutes(20), check=only_pass, on_failure=swap_machine),
    step(begin_provisioning, each="machines", within=minutes(1), retries=2, then=keep_version),
    step(
        deploy_image,
        each="machines",
        within=minutes(60),
        check=has_address,
        then=keep_address,
        on_failure=swap_machine,
    ),
    step(deliver_keys, each="machines", within=minutes(10), retries=2, check=keys_confirmed, on_failure=swap_machine),
    step(check_on_node, each="machines", within=minutes(20), check=only_pass, on_failure=swap_machine),
    step(run_template, within=minutes(45)),
    step(assign_machine, each="machines", within=minutes(1), retries=2, then=keep_version),
    step(mark_cluster_ready, within=minutes(1), retries=2, undo=withdraw_cluster),
    result=created,
)


# -- delete ---------------------------------------------------------------------------------------------------------


def return_machine(data: Data, item: Item) -> ReturnMachine:
    return ReturnMachine(
        machine_id=item["id"], claim_id=item["claim_id"], reason="its cluster was deleted", answer_when="released"
    )


def mark_cluster_deleted(data: Data) -> MarkClusterDeleted:
    return MarkClusterDeleted(cluster_id=data["cluster_id"])


# Billing has stopped when the deletion was accepted, so there is no way back: what can't be done waits for a human.
delete_cluster = saga(
    "delete_cluster",
    step(return_machine, each="machines", within=minutes(60), retries=2, pivot=True),
    step(release_reservation, within=minutes(5), retries=3, pivot=True),
    step(mark_cluster_deleted, within=minutes(1), retries=3, pivot=True),
    result=lambda data: {"cluster_id": data["cluster_id"]},
)

SAGAS = (create_cluster, delete_cluster)
