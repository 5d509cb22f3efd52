"""The sagas of provisioning, decision by decision, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.inventory import AcceptMachine, ReturnMachine
from libs.contracts.operations import OperationStatus
from libs.contracts.provisioning import MarkClusterFailed, MarkClusterReady, WithdrawCluster
from libs.contracts.replies import Reply, failed, ok, refused, unknown
from libs.contracts.reservation import HoldMachines, ReleaseReservation, ReplaceClaim
from libs.contracts.site import DeployNode, RunTemplate
from libs.contracts.validation import RunSuite
from libs.saga.kit import SagaKit
from services.provisioning.sagas import create_cluster, delete_cluster

KEY = "ssh-ed25519 AAAA test"
PASS = {"run_id": "r", "verdict": "PASS", "checks": []}


def data(node_count: int = 2, max_swaps: int = 2) -> dict[str, Any]:
    return {
        "cluster_id": "clu-1",
        "cluster_name": "train",
        "tenant": "acme-research",
        "profile": "gpu-h100",
        "node_count": node_count,
        "wanted_site": None,
        "reservation_id": "rsv-1",
        "image": {"url": "http://images/gpu", "checksum": "0" * 64},
        "playbook": "plain",
        "max_swaps": max_swaps,
        "ssh_authorized_keys": [KEY],
        "expected": {"gpu_model": "H100", "gpu_count": 8},
        "machines": [],
    }


def machine(number: int, claim_id: str | None = None) -> dict[str, Any]:
    return {
        "id": f"m{number}",
        "claim_id": claim_id or f"c{number}",
        "name": f"fra1-gpu-{number:02}",
        "version": 7,
        "site": "fra1",
    }


def login(number: int) -> dict[str, Any]:
    return {"address": "127.0.0.1", "ssh_port": 2200 + number, "ssh_host_key": f"ssh-ed25519 HOST{number}"}


ANSWERS: dict[str, dict[str, Any]] = {
    "check_limits": {},
    "accept_machine": {"version": 8, "gpu_model": "H100", "gpu_count": 8},
    "confirm_claim": {},
    "validate_out_of_band": PASS,
    "begin_provisioning": {"version": 9},
    "deploy_image": login(1),
    "deliver_keys": {"fingerprints": ["SHA256:x"]},
    "check_on_node": PASS,
    "run_template": {"run_id": "t", "stats": {}},
    "assign_machine": {"version": 10},
    "mark_cluster_ready": {},
}
STEPS = [step.name for step in create_cluster.steps]


def answer(kit: SagaKit, name: str) -> None:
    """Answer what is awaited under `name` ("step" or "step/item") well."""
    step, _, item = name.partition("/")
    if step == "hold_machines":
        count = kit.data["node_count"]
        kit.reply(step, machines=[machine(number) for number in range(1, count + 1)])
    elif step.startswith("swap "):
        replace = kit.sent()[name]
        assert isinstance(replace, ReplaceClaim)
        kit.reply(step, item=item, machine=machine(40 + len(kit.sends), replace.replacement_claim_id))
    else:
        kit.reply(step, item=item, **ANSWERS.get(step, {}))


def go_on(kit: SagaKit, until: str = "") -> None:
    """Answer everything well until `until` is awaited, or to the end."""
    while kit.sent() and not any(name == until or name.startswith(f"{until}/") for name in kit.sent() if until):
        answer(kit, next(iter(kit.sent())))


def started(until: str = "", **changes: Any) -> SagaKit:
    kit = SagaKit(create_cluster, data(**changes))
    go_on(kit, until)
    return kit


def test_a_cluster_is_created_step_by_step_and_ends_ready() -> None:
    kit = started()
    assert kit.status is OperationStatus.SUCCEEDED
    assert kit.state.result["nodes"] == ["train-1", "train-2"]
    ready = next(send.message for send in kit.sends if isinstance(send.message, MarkClusterReady))
    assert [(node.name, node.machine_id, node.gpu_count) for node in ready.nodes] == [
        ("train-1", "m1", 8),
        ("train-2", "m2", 8),
    ]
    assert ready.site == "fra1"


def test_a_machine_is_only_touched_after_its_claim_is_confirmed() -> None:
    kit = started("confirm_claim")
    assert not any(isinstance(send.message, RunSuite | DeployNode) for send in kit.sends)


def test_deploys_carry_claim_and_version_and_the_name_of_the_node() -> None:
    kit = started("deploy_image")
    deploy = kit.sent()["deploy_image/m1"]
    assert isinstance(deploy, DeployNode)
    assert (deploy.claim_id, deploy.machine_version, deploy.hostname) == ("c1", 9, "train-1")
    assert {send.site for send in kit.sends if isinstance(send.message, DeployNode)} == {"fra1"}


def test_a_failed_deploy_swaps_the_machine_and_the_new_one_takes_its_name() -> None:
    kit = started("deploy_image")
    kit.reply("deploy_image", item="m2", reply=failed("deploy.failed", "the node did not boot"))
    discarded = [message for message in kit.forgotten() if isinstance(message, ReturnMachine)]
    assert [(each.machine_id, each.claim_id) for each in discarded] == [("m2", "c2")]
    assert discarded[0].quarantine is not None and discarded[0].quarantine.code == "deploy.failed"
    go_on(kit)
    assert kit.status is OperationStatus.SUCCEEDED
    ready = next(send.message for send in kit.sends if isinstance(send.message, MarkClusterReady))
    assert [node.name for node in ready.nodes] == ["train-1", "train-2"]
    assert ready.nodes[1].machine_id not in ("m1", "m2")
    assert ready.swapped == 1


def test_the_replacement_runs_every_earlier_step_itself() -> None:
    kit = started("deploy_image")
    kit.reply("deploy_image", item="m2", reply=failed("deploy.failed", "no boot"))
    kit.reply("swap deploy_image", item="m2", machine=machine(3, _replacement(kit)))
    seen = []
    while any(name.endswith("/m3") for name in kit.sent()):
        name = next(name for name in kit.sent() if name.endswith("/m3"))
        seen.append(name.split("/")[0])
        answer(kit, name)
        if seen[-1] == "deploy_image":
            break
    assert seen == ["accept_machine", "confirm_claim", "validate_out_of_band", "begin_provisioning", "deploy_image"]


def _replacement(kit: SagaKit) -> str:
    replace = next(message for message in kit.sent().values() if isinstance(message, ReplaceClaim))
    return replace.replacement_claim_id


@pytest.mark.parametrize("verdict", ["FAIL", "INCONCLUSIVE", None, "", "pass", "PASSED"])
def test_only_pass_passes_validation(verdict: str | None) -> None:
    kit = started("validate_out_of_band")
    kit.reply("validate_out_of_band", item="m1", run_id="r", verdict=verdict, checks=[])
    assert "swap validate_out_of_band/m1" in kit.sent()


def test_an_unknown_deploy_is_swapped_and_its_machine_given_to_inventorys_return() -> None:
    kit = started("deploy_image")
    kit.timeout("deploy_image", item="m1")
    assert "swap deploy_image/m1" in kit.sent()
    assert [message.machine_id for message in kit.forgotten() if isinstance(message, ReturnMachine)] == ["m1"]


@pytest.mark.parametrize("missing", ["address", "ssh_host_key"])
def test_a_deploy_without_address_or_host_key_is_no_deploy(missing: str) -> None:
    kit = started("deploy_image")
    kit.reply("deploy_image", item="m1", reply=ok(**{**login(1), missing: ""}))
    assert "swap deploy_image/m1" in kit.sent()


def test_unconfirmed_keys_are_a_failure() -> None:
    kit = started("deliver_keys")
    kit.reply("deliver_keys", item="m1", fingerprints=[])
    assert "swap deliver_keys/m1" in kit.sent()


def test_beyond_the_swap_limit_everything_is_given_back_backwards() -> None:
    kit = started("deploy_image", max_swaps=1)
    kit.reply("deploy_image", item="m1", reply=failed("deploy.failed", "no boot"))
    go_on(kit, "deploy_image")
    item = next(name for name in kit.sent() if name.startswith("deploy_image/"))
    kit.reply("deploy_image", item=item.split("/")[1], reply=failed("deploy.failed", "again no boot"))
    undone = _undo_to_the_end(kit)
    assert undone == ["accept_machine", "accept_machine", "hold_machines", "check_limits"]
    assert kit.status is OperationStatus.FAILED
    assert kit.state.problem is not None and kit.state.problem.code == "deploy.failed"


def _undo_to_the_end(kit: SagaKit) -> list[str]:
    undone = []
    while kit.sent():
        name = next(iter(kit.sent()))
        assert name.startswith("undo "), kit.sent()
        step, _, item = name.partition("/")
        undone.append(step.removeprefix("undo "))
        kit.reply(step, item=item)
    return undone


def test_no_replacement_fails_the_creation_with_both_reasons() -> None:
    kit = started("deploy_image")
    kit.reply("deploy_image", item="m1", reply=failed("deploy.failed", "no boot"))
    kit.reply("swap deploy_image", item="m1", reply=refused("reservation.not_enough_machines", "none free"))
    problem = kit.state.problem
    assert problem is not None and "no boot" in problem.message and "none free" in problem.message


def test_a_refused_hold_takes_nothing_and_says_why() -> None:
    kit = started("hold_machines")
    kit.reply("hold_machines", reply=refused("reservation.not_enough_machines", "2 of 10 are free"))
    assert [type(message) for message in kit.sent().values()] == [ReleaseReservation]
    kit.reply("undo hold_machines")
    marked = kit.sent()["undo check_limits"]
    assert isinstance(marked, MarkClusterFailed) and marked.problem is not None and not marked.cancelled
    assert marked.problem.code == "reservation.not_enough_machines"


@pytest.mark.parametrize("at", STEPS)
def test_cancelling_is_safe_at_every_step(at: str) -> None:
    kit = started(at)
    began = {(name, key) for name in STEPS for key in ("", "m1", "m2") if _began(kit, name, key)}
    assert kit.cancel()
    undone = _undo_to_the_end(kit)
    assert kit.status is OperationStatus.CANCELLED
    assert undone[-1] == "check_limits"
    assert undone.count("accept_machine") == sum(1 for name, key in began if name == "accept_machine" and key)
    assert ("hold_machines" in undone) == (("hold_machines", "") in began)
    failed_mark = [send.message for send in kit.sends if isinstance(send.message, MarkClusterFailed)]
    assert failed_mark[-1].cancelled


def _began(kit: SagaKit, name: str, key: str) -> bool:
    return key in kit.state.tracks and STEPS.index(name) in kit.state.tracks[key].started


def test_a_creation_cancelled_at_its_last_moment_withdraws_the_ready_cluster_first() -> None:
    kit = started("mark_cluster_ready")
    kit.cancel()
    assert isinstance(kit.sent()["undo mark_cluster_ready"], WithdrawCluster)


def test_repeated_and_late_replies_change_nothing() -> None:
    kit = started("deploy_image")
    ids = [send.id for send in kit.sends if send.id not in kit.state.pending]
    before = kit.state.model_dump_json()
    assert not any(kit.reply_to(command_id, ok()) for command_id in ids)
    assert kit.state.model_dump_json() == before


def test_a_reply_after_the_swap_does_not_bring_the_machine_back() -> None:
    kit = started("deploy_image")
    deploys = [send for send in kit.sends if isinstance(send.message, DeployNode)]
    late = next(send.id for send in deploys if send.message.key() == "m1")
    kit.timeout("deploy_image", item="m1")
    assert not kit.reply_to(late, ok(**login(1)))
    go_on(kit)
    assert kit.status is OperationStatus.SUCCEEDED
    assert "m1" not in [item["id"] for item in kit.data["machines"]]


def test_the_template_runs_once_over_all_nodes_in_their_order() -> None:
    kit = started("run_template", node_count=3)
    template = kit.sent()["run_template"]
    assert isinstance(template, RunTemplate)
    assert [node.name for node in template.nodes] == ["train-1", "train-2", "train-3"]


BAD: list[Reply] = [failed("x.failed", "broken"), unknown("x.unknown", "silence"), refused("x.refused", "no")]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 11), max_size=60), st.integers(1, 5), st.integers(0, 3))
def test_whatever_fails_it_ends_well_or_gives_everything_back(moves: list[int], count: int, max_swaps: int) -> None:
    kit = SagaKit(create_cluster, data(node_count=count, max_swaps=max_swaps))
    choices = iter(moves)
    for _ in range(3000):
        if not kit.sent() and not kit.retry_now():
            break
        if not kit.sent():
            continue
        name = sorted(kit.sent())[next(choices, 0) % len(kit.sent())]
        move = next(choices, 11)
        if move < len(BAD) and not name.startswith("undo"):
            step, _, item = name.partition("/")
            kit.reply(step, item=item, reply=BAD[move])
        elif move == 3 and not name.startswith(("undo", "swap")):
            kit.timeout(*name.split("/")[:1], item=name.partition("/")[2])
        else:
            answer(kit, name)
    assert kit.status in (OperationStatus.SUCCEEDED, OperationStatus.FAILED)
    accepted = {send.message.machine_id for send in kit.sends if isinstance(send.message, AcceptMachine)}
    returned = {send.message.machine_id for send in kit.sends if isinstance(send.message, ReturnMachine)}
    kept = {item["id"] for item in kit.data["machines"]} if kit.status is OperationStatus.SUCCEEDED else set()
    assert accepted == returned | kept and not returned & kept
    if kit.status is OperationStatus.SUCCEEDED:
        names = sorted(item["node_name"] for item in kit.data["machines"])
        assert names == sorted(f"train-{number + 1}" for number in range(count))
        assert kit.state.swaps <= max_swaps
    else:
        assert isinstance(kit.sends[-1].message, MarkClusterFailed)


def delete_data(count: int = 2) -> dict[str, Any]:
    return {
        "cluster_id": "clu-1",
        "tenant": "acme-research",
        "reservation_id": "rsv-1",
        "machines": [machine(number) for number in range(1, count + 1)],
    }


def test_a_deletion_succeeds_when_every_node_was_observed_off() -> None:
    kit = SagaKit(delete_cluster, delete_data())
    returns = [message for message in kit.sent().values() if isinstance(message, ReturnMachine)]
    assert [message.answer_when for message in returns] == ["released", "released"]
    kit.reply("return_machine", item="m1")
    assert set(kit.sent()) == {"return_machine/m2"}
    kit.reply("return_machine", item="m2")
    kit.reply("release_reservation")
    kit.reply("mark_cluster_deleted")
    assert kit.status is OperationStatus.SUCCEEDED


def test_a_deletion_can_not_be_cancelled_and_waits_for_a_human_when_a_machine_stays_on() -> None:
    kit = SagaKit(delete_cluster, delete_data(1))
    assert not kit.cancel()
    for _ in range(3):
        kit.reply("return_machine", item="m1", reply=failed("release.not_off", "it is still on"))
        kit.retry_now()
    assert not kit.status.final and kit.state.waiting_for
    assert kit.resume()
    kit.reply("return_machine", item="m1")
    kit.reply("release_reservation")
    kit.reply("mark_cluster_deleted")
    assert kit.status is OperationStatus.SUCCEEDED


def test_deleting_a_cluster_without_nodes_gives_back_its_reservation_at_once() -> None:
    kit = SagaKit(delete_cluster, delete_data(0))
    assert set(kit.sent()) == {"release_reservation"}


def test_names_of_the_sagas_steps_are_the_processs_words() -> None:
    assert STEPS[:3] == ["check_limits", "hold_machines", "accept_machine"]
    assert STEPS[-1] == "mark_cluster_ready"
    assert len(STEPS) == 12


def test_the_hold_asks_for_the_clusters_machines() -> None:
    hold = started("hold_machines").sent()["hold_machines"]
    assert isinstance(hold, HoldMachines)
    assert (hold.count, hold.profile, hold.cluster_id) == (2, "gpu-h100", "clu-1")
