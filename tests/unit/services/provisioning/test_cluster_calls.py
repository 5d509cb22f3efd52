"""Creating and deleting clusters through the API, and the commands of their sagas, on a real database."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.calls import Answer
from libs.contracts.envelope import Envelope
from libs.contracts.provisioning import (
    CheckLimits,
    MarkClusterDeleted,
    MarkClusterFailed,
    MarkClusterReady,
    NodeFacts,
    WithdrawCluster,
)
from libs.contracts.replies import Problem, Reply, ok
from libs.contracts.site import RunnerLog
from libs.testing.kit import ServiceKit
from services.provisioning.app import service
from tests.unit.services.provisioning.provisioning_world import know_site, know_tenant, prepare, public_key, wanted

ACME = ("acme",)


@pytest.fixture
async def kit(service_kit: Any) -> ServiceKit:
    kit: ServiceKit = await service_kit(service)
    await prepare(kit)
    return kit


async def create(kit: ServiceKit, **changes: Any) -> Answer:
    return await kit.call("create_cluster", wanted(**changes), tenants=ACME)


async def created(kit: ServiceKit, **changes: Any) -> tuple[str, str]:
    answer = await create(kit, **changes)
    assert answer.status == 202, answer
    return answer.body["cluster_id"], answer.body["operation_id"]


def nodes(count: int = 2) -> tuple[NodeFacts, ...]:
    return tuple(
        NodeFacts(
            machine_id=f"m{number}",
            machine_name=f"fra1-gpu-{number}",
            claim_id=f"c{number}",
            name=f"train-{number + 1}",
            address="127.0.0.1",
            ssh_port=2200 + number,
            ssh_host_key=f"ssh-ed25519 AAAAHOST{number} root@node",
            gpu_model="H100",
            gpu_count=8,
        )
        for number in range(count)
    )


async def ready(kit: ServiceKit, **changes: Any) -> str:
    cluster_id, _ = await created(kit, **changes)
    reply = await kit.command(MarkClusterReady(cluster_id=cluster_id, nodes=nodes(), swapped=1, site="fra1"))
    assert reply is not None and reply.ok, reply
    return cluster_id


async def cluster(kit: ServiceKit, cluster_id: str) -> dict[str, Any]:
    body: dict[str, Any] = (await kit.query("get_cluster", {"cluster_id": cluster_id}, tenants=ACME)).body
    return body


async def events_of(kit: ServiceKit, cluster_id: str) -> list[Envelope]:
    return [event for event in await kit.events() if event.subject == cluster_id]


async def names(kit: ServiceKit, cluster_id: str) -> list[str]:
    return [event.type.rpartition(".")[2] for event in await events_of(kit, cluster_id)]


async def last_command(kit: ServiceKit) -> Envelope:
    return (await kit.sent())[-1]


async def test_a_request_is_accepted_with_its_event_and_its_first_command_in_one_transaction(kit: ServiceKit) -> None:
    answer = await create(kit)
    assert answer.status == 202 and answer.location == f"/operations/{answer.body['operation_id']}"
    assert answer.body["operation_id"].startswith("op-prv-")
    assert await names(kit, answer.body["cluster_id"]) == ["requested"]
    assert (await last_command(kit)).type == "slipway.command.provisioning.check_limits"
    found = await cluster(kit, answer.body["cluster_id"])
    assert (found["state"], found["site"], found["image"]) == ("CREATING", "fra1", "ubuntu-22.04-gpu")
    assert "ssh_authorized_keys" not in found


async def test_the_same_idempotency_key_gives_the_same_cluster(kit: ServiceKit) -> None:
    asked = wanted()
    first = await kit.call("create_cluster", asked, tenants=ACME, idempotency_key="k1")
    again = await kit.call("create_cluster", asked, tenants=ACME, idempotency_key="k1")
    assert first.status == 202 and first == again
    assert len((await kit.query("list_clusters", tenants=ACME)).body["items"]) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Train"),
        ("name", ""),
        ("name", "a" * 49),
        ("name", "train\u200b"),
        ("name", 7),
        ("profile", "tpu"),
        ("profile", ""),
        ("node_count", 0),
        ("node_count", -1),
        ("node_count", 65),
        ("node_count", "2"),
        ("node_count", True),
        ("node_count", 2.5),
        ("node_count", 10**9),
        ("template", "slurm"),
        ("image", "windows"),
        ("site", "mars"),
        ("site", "no site"),
        ("ssh_authorized_keys", []),
        ("ssh_authorized_keys", "ssh-ed25519 AAAA"),
        ("ssh_authorized_keys", ["ssh-ed25519 AAAA"]),
        ("ssh_authorized_keys", [7]),
        ("tenant", "Bad Tenant"),
        ("surprise", "field"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_kept(kit: ServiceKit, field: str, value: Any) -> None:
    answer = await create(kit, **{field: value})
    assert answer.status == 422, answer
    assert answer.body["code"] == "request.invalid"
    assert answer.body["errors"][0]["field"].split(".")[0] == field
    assert (await kit.query("list_clusters", tenants=ACME)).body["items"] == []


@pytest.mark.parametrize("field", ["name", "profile", "node_count", "ssh_authorized_keys"])
async def test_a_missing_field_is_named(kit: ServiceKit, field: str) -> None:
    answer = await create(kit, **{field: None})
    assert answer.status == 422 and answer.body["errors"][0]["field"] == field


async def test_a_pasted_private_key_is_refused_and_its_owner_told_to_rotate_it(kit: ServiceKit) -> None:
    secret = "-----BEGIN OPENSSH PRIVATE KEY-----\nSECRETSECRET\n-----END OPENSSH PRIVATE KEY-----"
    answer = await create(kit, ssh_authorized_keys=[public_key(), secret])
    assert (answer.status, answer.body["code"]) == (422, "ssh_key.private_key_pasted")
    assert answer.body["errors"][0]["field"] == "ssh_authorized_keys.1"
    assert "new pair" in answer.body["next_step"] and "SECRET" not in answer.model_dump_json()


async def test_another_tenant_does_not_exist(kit: ServiceKit) -> None:
    answer = await create(kit, tenant="other")
    assert answer.status == 404
    cluster_id, _ = await created(kit)
    other = ("other",)
    for name in ("get_cluster", "list_nodes", "get_ssh_config"):
        assert (await kit.query(name, {"cluster_id": cluster_id}, tenants=other)).status == 404
    assert (await kit.call("delete_cluster", {"cluster_id": cluster_id}, tenants=other)).status == 404
    assert (await kit.query("list_clusters", tenants=other)).body["items"] == []


async def test_who_acts_for_several_tenants_must_name_one(kit: ServiceKit) -> None:
    answer = await kit.call("create_cluster", wanted(), tenants=("acme", "beta"))
    assert answer.status == 422 and answer.body["errors"][0]["field"] == "tenant"
    assert (await kit.call("create_cluster", wanted(tenant="acme"), tenants=("acme", "beta"))).status == 202


async def test_a_live_clusters_name_is_taken_until_it_is_gone(kit: ServiceKit) -> None:
    cluster_id, _ = await created(kit)
    assert (await create(kit)).status == 409
    await kit.command(MarkClusterFailed(cluster_id=cluster_id, problem=Problem(code="x", message="no")))
    assert (await create(kit)).status == 202


async def test_with_several_sites_a_request_without_one_takes_any(kit: ServiceKit) -> None:
    await know_site(kit, "ams1")
    cluster_id, _ = await created(kit)
    assert (await cluster(kit, cluster_id))["site"] == "-"


async def test_limits_refuse_an_unknown_tenant(kit: ServiceKit) -> None:
    answer = await kit.call("create_cluster", wanted(tenant="ghost"))
    reply = await kit.command(CheckLimits(cluster_id=answer.body["cluster_id"]))
    assert reply is not None and reply.problem is not None and reply.problem.code == "tenant.unknown"


async def test_the_quota_is_kept_and_who_asked_first_gets_it(kit: ServiceKit) -> None:
    await know_tenant(kit, "acme", quota=3, version=2)
    first, _ = await created(kit, name="first")
    second, _ = await created(kit, name="second")
    assert _ok(await kit.command(CheckLimits(cluster_id=first)))
    reply = await kit.command(CheckLimits(cluster_id=second))
    assert reply is not None and reply.problem is not None and reply.problem.code == "quota.exceeded"
    assert reply.problem.details == {"quota": 3, "used": 2, "wanted": 2, "free": 1}
    await kit.command(MarkClusterFailed(cluster_id=first))
    assert _ok(await kit.command(CheckLimits(cluster_id=second)))


def _ok(reply: Reply | None) -> bool:
    return reply is not None and reply.ok


async def test_a_ready_cluster_starts_billing_of_every_node_once(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    assert _ok(await kit.command(MarkClusterReady(cluster_id=cluster_id, nodes=nodes(), swapped=1, site="fra1")))
    assert await names(kit, cluster_id) == ["requested", "state_changed", "node_started", "node_started"]
    events = await events_of(kit, cluster_id)
    assert [event.entityversion for event in events] == [1, 2, 3, 4]
    assert [event.data["cluster"]["version"] for event in events] == [1, 2, 3, 4]
    assert {event.tenant for event in events} == {"acme"}
    started = events[2].data
    assert (started["machine_id"], started["gpu_count"], started["profile"]) == ("m0", 8, "gpu-h100-8")
    assert started["at"] == events[3].data["at"] == (await cluster(kit, cluster_id))["ready_at"]
    found = await cluster(kit, cluster_id)
    assert (found["state"], found["swapped"], len(found["nodes"])) == ("READY", 1, 2)


async def test_a_cluster_does_not_become_ready_with_the_wrong_number_of_nodes(kit: ServiceKit) -> None:
    cluster_id, _ = await created(kit)
    reply = await kit.command(MarkClusterReady(cluster_id=cluster_id, nodes=nodes(1), site="fra1"))
    assert reply is not None and reply.problem is not None and reply.problem.code == "cluster.wrong_node_count"


async def test_a_machine_is_a_running_node_of_one_cluster_only(kit: ServiceKit) -> None:
    await ready(kit)
    other, _ = await created(kit, name="other")
    with pytest.raises(Exception, match="node_running_machine"):
        await kit.command(MarkClusterReady(cluster_id=other, nodes=nodes(), site="fra1"))


async def test_billing_stops_when_the_deletion_is_accepted(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    answer = await kit.call("delete_cluster", {"cluster_id": cluster_id}, tenants=ACME)
    assert answer.status == 202
    assert (await names(kit, cluster_id))[4:] == ["state_changed", "node_stopped", "node_stopped"]
    returns = [e for e in await kit.sent() if e.type == "slipway.command.inventory.return_machine"]
    assert {(e.data["machine_id"], e.data["claim_id"], e.data["answer_when"]) for e in returns} == {
        ("m0", "c0", "released"),
        ("m1", "c1", "released"),
    }


async def test_deleting_twice_is_the_same_operation(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    first = await kit.call("delete_cluster", {"cluster_id": cluster_id}, tenants=ACME, idempotency_key="a")
    again = await kit.call("delete_cluster", {"cluster_id": cluster_id}, tenants=ACME, idempotency_key="b")
    assert first.body == again.body
    assert (await names(kit, cluster_id)).count("node_stopped") == 2


async def test_a_deletion_goes_through_to_the_end(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    await kit.call("delete_cluster", {"cluster_id": cluster_id}, tenants=ACME)
    for name in ("return_machine", "release_reservation"):
        for command in [e for e in await kit.sent() if e.type.endswith(name)]:
            await kit.reply(command, ok())
    assert (await last_command(kit)).type.endswith("mark_cluster_deleted")
    assert _ok(await kit.command(MarkClusterDeleted(cluster_id=cluster_id)))
    assert _ok(await kit.command(MarkClusterDeleted(cluster_id=cluster_id)))
    found = await cluster(kit, cluster_id)
    assert found["state"] == "DELETED" and found["deleted_at"]
    assert (await create(kit)).status == 202


async def test_deleting_a_cluster_that_is_being_created_takes_its_creation_back(kit: ServiceKit) -> None:
    cluster_id, operation_id = await created(kit)
    answer = await kit.call("delete_cluster", {"cluster_id": cluster_id}, tenants=ACME)
    assert answer.body == {"cluster_id": cluster_id, "operation_id": operation_id}
    assert (await cluster(kit, cluster_id))["state"] == "DELETING"
    operation = (await kit.query("get_operation", {"operation_id": operation_id}, tenants=ACME)).body
    assert operation["compensating"]
    undo = await last_command(kit)
    assert undo.type.endswith("mark_cluster_failed") and undo.data["cancelled"]
    late = await kit.command(MarkClusterReady(cluster_id=cluster_id, nodes=nodes(), site="fra1"))
    assert late is not None and not late.ok
    await kit.command(MarkClusterFailed(cluster_id=cluster_id, cancelled=True))
    await kit.reply(undo, ok())
    assert (await cluster(kit, cluster_id))["state"] == "DELETED"
    operation = (await kit.query("get_operation", {"operation_id": operation_id}, tenants=ACME)).body
    assert operation["status"] == "CANCELLED"


async def test_a_failed_cluster_can_be_deleted_and_has_nothing_to_give_back(kit: ServiceKit) -> None:
    cluster_id, _ = await created(kit)
    await kit.command(MarkClusterFailed(cluster_id=cluster_id, problem=Problem(code="x", message="no machine")))
    assert (await cluster(kit, cluster_id))["problem"]["message"] == "no machine"
    assert (await kit.call("delete_cluster", {"cluster_id": cluster_id}, tenants=ACME)).status == 202
    assert (await last_command(kit)).type.endswith("release_reservation")


async def test_a_creation_taken_back_after_it_was_ready_stops_billing_and_ends_deleted(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    assert _ok(await kit.command(WithdrawCluster(cluster_id=cluster_id, reason="cancelled")))
    assert (await names(kit, cluster_id)).count("node_stopped") == 2
    await kit.command(MarkClusterFailed(cluster_id=cluster_id, cancelled=True))
    assert (await cluster(kit, cluster_id))["state"] == "DELETED"


async def test_a_late_failure_does_not_touch_a_ready_cluster(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    assert _ok(await kit.command(MarkClusterFailed(cluster_id=cluster_id)))
    assert (await cluster(kit, cluster_id))["state"] == "READY"


async def test_a_deletion_with_an_old_etag_is_refused(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    asked = {"cluster_id": cluster_id}
    assert (await kit.call("delete_cluster", asked, tenants=ACME, if_match="1")).status == 412
    etag = (await kit.query("get_cluster", asked, tenants=ACME)).etag
    assert (await kit.call("delete_cluster", asked, tenants=ACME, if_match=etag)).status == 202


async def test_nodes_and_clusters_are_listed(kit: ServiceKit) -> None:
    cluster_id = await ready(kit)
    await created(kit, name="another")
    listed = (await kit.query("list_nodes", {"cluster_id": cluster_id}, tenants=ACME)).body["items"]
    assert [(node["name"], node["ssh_port"], node["stopped_at"]) for node in listed] == [
        ("train-1", 2200, None),
        ("train-2", 2201, None),
    ]
    ready_ones = (await kit.query("list_clusters", {"state": ["READY"]}, tenants=ACME)).body["items"]
    assert [each["id"] for each in ready_ones] == [cluster_id]
    assert [node["name"] for node in ready_ones[0]["nodes"]] == ["train-1", "train-2"]
    by_name = (await kit.query("list_clusters", {"sort": "name", "q": "a"}, tenants=ACME)).body["items"]
    assert [each["name"] for each in by_name] == ["another", "train"]


async def test_the_log_of_the_templates_run_is_kept_once_and_in_order_for_its_tenant(kit: ServiceKit) -> None:
    cluster_id, operation_id = await created(kit)
    about = {"run_id": "run-1", "cluster_id": cluster_id, "operation_id": operation_id}
    asked = {"operation_id": operation_id}
    assert (await kit.query("list_run_lines", asked, tenants=ACME)).body["items"] == []
    await kit.observe(RunnerLog(**about, first_line=3, lines=("ok: [train-1]", "x" * 9000)))
    await kit.observe(RunnerLog(**about, first_line=1, lines=("PLAY [plain]", "TASK [hosts]")))
    await kit.observe(RunnerLog(**about, first_line=1, lines=("PLAY [plain]", "TASK [hosts]")))
    await kit.observe(RunnerLog(**{**about, "cluster_id": "clu-other"}, first_line=9, lines=("not ours",)))
    await kit.observe(RunnerLog(**about, first_line=10**9, lines=("too far",)))
    items = (await kit.query("list_run_lines", asked, tenants=ACME)).body["items"]
    assert [item["line"] for item in items] == [1, 2, 3, 4]
    assert items[2]["content"] == "ok: [train-1]" and len(items[3]["content"]) == 4000
    assert (await kit.query("list_run_lines", asked, tenants=("other",))).status == 404
    assert (await kit.query("list_run_lines", {"operation_id": "op-prv-nope"}, tenants=ACME)).status == 404


async def test_images_and_templates_are_seeded_once_and_changed_with_their_etag(kit: ServiceKit) -> None:
    await prepare(kit)
    images = (await kit.query("list_images", tenants=ACME)).body["items"]
    assert [image["name"] for image in images] == ["ubuntu-22.04-cpu", "ubuntu-22.04-gpu"]
    template = await kit.query("get_template", {"name": "plain"}, tenants=ACME)
    assert (template.body["max_swaps"], template.etag) == (2, "1")
    change = {
        "name": "ubuntu-22.04-gpu",
        "version_label": "b",
        "url": "http://images/x",
        "checksum": "sha256:" + "a" * 64,
    }
    assert (await kit.call("put_image", change, tenants=ACME)).status == 403
    assert (await kit.call("put_image", change)).status == 428
    assert (await kit.call("put_image", change, if_match="7")).status == 412
    changed = await kit.call("put_image", change, if_match="1")
    assert (changed.status, changed.body["version"], changed.body["checksum"]) == (200, 2, "a" * 64)
    assert (await kit.call("put_image", {**change, "name": "new"})).status == 201
    bad = {"name": "x", "description": "", "playbook": "p", "default_image": "none", "max_nodes": 1, "max_swaps": 0}
    assert (await kit.call("put_template", bad)).body["errors"][0]["field"] == "default_image"
    assert (await kit.call("put_template", {**bad, "default_image": "new"})).status == 201
    assert (await kit.query("get_image", {"name": "nope"})).status == 404
