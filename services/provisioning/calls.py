"""Writes of the API: create and delete clusters. Everything that can be known at once is refused at once.

Accepting a cluster, its event and its saga are one transaction; so are a deletion, the end of billing and its saga.
"""

from __future__ import annotations

from typing import Any

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.ids import new_id, new_operation_id, new_uuid
from libs.contracts.provisioning import ClusterState
from libs.runtime.params import invalid, parse
from services.provisioning import errors, model, store
from services.provisioning.announcements import announce
from services.provisioning.model import Cluster
from services.provisioning.requests import ById, CreateCluster
from services.provisioning.sagas import create_cluster as create_saga
from services.provisioning.sagas import delete_cluster as delete_saga
from services.provisioning.ssh_keys import BadKey, PublicKey, parse_public_key

DEFAULT_TEMPLATE = "plain"
GOING = (ClusterState.DELETING, ClusterState.DELETED)


async def create_cluster(ctx: Context, call: Call) -> Answer:
    """POST /clusters → 202 {cluster_id, operation_id}."""
    wanted = parse(CreateCluster, call.params)
    if isinstance(wanted, Answer):
        return wanted
    tenant = _tenant(call, wanted)
    if isinstance(tenant, Answer):
        return tenant
    keys = _keys(wanted.ssh_authorized_keys)
    if isinstance(keys, Answer):
        return keys
    found = await _things_named(ctx, wanted)
    if isinstance(found, Answer):
        return found
    cluster = Cluster(
        id=new_id("clu"),
        name=wanted.name,
        tenant=tenant,
        site=found.site,
        profile=wanted.profile,
        node_count=wanted.node_count,
        image=found.image["name"],
        template=found.template["name"],
        state=ClusterState.CREATING,
        reservation_id=f"rsv-{new_uuid().replace('-', '')}",
        operation_id=new_operation_id(ctx.service),
        created_at=ctx.now,
        ssh_authorized_keys=tuple(key.line for key in keys),
    )
    if not await store.add(ctx.conn, cluster):
        return _name_taken(cluster)
    announce(ctx, model.requested(cluster))
    await ctx.start_saga(
        create_saga.kind,
        _saga_data(cluster, found),
        target_kind="cluster",
        target_id=cluster.id,
        tenant=tenant,
        site=cluster.site or "-",
        operation_id=cluster.operation_id,
    )
    return _accepted(cluster.id, cluster.operation_id)


def _accepted(cluster_id: str, operation_id: str) -> Answer:
    body = {"cluster_id": cluster_id, "operation_id": operation_id}
    return Answer(status=202, body=body, location=f"/operations/{operation_id}")


def _tenant(call: Call, wanted: CreateCluster) -> str | Answer:
    """Whose cluster it will be. A tenant the caller can't see does not exist."""
    if wanted.tenant is not None:
        return wanted.tenant if call.may_see(wanted.tenant) else not_found("tenant", wanted.tenant)
    if call.tenants is not None and len(call.tenants) == 1:
        return call.tenants[0]
    return _wrong("tenant", "name the tenant whose cluster it will be; you act for more than one, or for none")


def _wrong(field: str, message: str) -> Answer:
    return invalid([{"field": field, "message": message}])


def _keys(given: tuple[str, ...]) -> list[PublicKey] | Answer:
    """The keys, each once, or every one that is wrong. A pasted private key has a code of its own."""
    keys: dict[str, PublicKey] = {}
    wrong: list[tuple[str, dict[str, str]]] = []
    for index, text in enumerate(given):
        try:
            key = parse_public_key(text)
            keys.setdefault(key.fingerprint, key)
        except BadKey as bad:
            wrong.append((bad.code, {"field": f"ssh_authorized_keys.{index}", "message": str(bad)}))
    if not wrong:
        return list(keys.values())
    found = [error for _, error in wrong]
    if any(code == errors.PRIVATE_KEY for code, _ in wrong):
        return problem(
            422,
            errors.PRIVATE_KEY,
            "A private SSH key was sent. It was not stored, but it must be treated as known to others.",
            "Make a new pair (ssh-keygen -t ed25519), remove the old key everywhere, and send the .pub file's content.",
            errors=found,
        )
    return invalid(found)


async def _things_named(ctx: Context, wanted: CreateCluster) -> store.Named | Answer:
    """Template, image, profile and site, all there; or what is wrong with the first that is not."""
    template_name = wanted.template or DEFAULT_TEMPLATE
    named = await store.named(
        ctx.conn, template=template_name, image=wanted.image, profile=wanted.profile, site=wanted.site
    )
    if not named.template:
        return _wrong("template", f"there is no template {template_name!r}; list them: GET /templates")
    if wanted.node_count > named.template["max_nodes"]:
        return _wrong("node_count", f"template {template_name!r} makes at most {named.template['max_nodes']} nodes")
    if not named.image:
        image_name = wanted.image or named.template["default_image"]
        return _wrong("image", f"there is no image {image_name!r}; list them: GET /images")
    if not named.profile:
        return _wrong("profile", f"there is no profile {wanted.profile!r}; list them: GET /profiles")
    if wanted.site is not None and named.site is None:
        return _wrong("site", f"there is no site {wanted.site!r}; leave it out to take any")
    return named


def _name_taken(cluster: Cluster) -> Answer:
    return problem(
        409,
        errors.NAME_TAKEN,
        f"Tenant {cluster.tenant} has a cluster {cluster.name!r} already.",
        "Choose another name, or delete that cluster first.",
        errors=[{"field": "name", "message": "is the name of a live cluster"}],
    )


def _saga_data(cluster: Cluster, named: store.Named) -> dict[str, Any]:
    """Everything that the saga's steps need; later changes of template, image or profile do not reach it."""
    promised = {name: named.profile[name] for name in ("gpu_model", "gpu_count", "cpu_sockets", "memory_gib")}
    return {
        "cluster_id": cluster.id,
        "cluster_name": cluster.name,
        "profile": cluster.profile,
        "node_count": cluster.node_count,
        "wanted_site": cluster.site,
        "reservation_id": cluster.reservation_id,
        "image": {"url": named.image["url"], "checksum": named.image["checksum"]},
        "playbook": named.template["playbook"],
        "max_swaps": named.template["max_swaps"],
        "ssh_authorized_keys": list(cluster.ssh_authorized_keys),
        "expected": {name: value for name, value in promised.items() if value is not None},
        "machines": [],
    }


async def delete_cluster(ctx: Context, call: Call) -> Answer:
    """DELETE /clusters/{cluster_id} → 202 {cluster_id, operation_id}. Billing stops when this is accepted.

    One that is still CREATING is taken back by cancelling its creation, whose operation is the answer. Asking again
    gives the same operation.
    """
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    before = await store.load(ctx.conn, wanted.cluster_id, lock=True)
    if before is None or not call.may_see(before.tenant):
        return not_found("cluster", wanted.cluster_id)
    if before.state in GOING:
        return _accepted(before.id, before.operation_id)
    if call.if_match not in (None, "*", str(before.version)):
        return _changed_meanwhile(before)
    creating = before.state is ClusterState.CREATING
    operation_id = before.operation_id if creating else new_operation_id(ctx.service)
    change = model.delete(before, operation_id=operation_id, now=ctx.now)
    await store.save(ctx.conn, before, change.after)
    announce(ctx, change)
    if creating:
        # False means that the creation compensates already, on its own; its end then finds the cluster DELETING.
        await ctx.cancel_saga(operation_id, "the cluster was deleted while it was being created")
    else:
        await _start_deletion(ctx, change.after)
    return _accepted(before.id, operation_id)


async def _start_deletion(ctx: Context, cluster: Cluster) -> None:
    machines = [
        {"id": node.facts.machine_id, "claim_id": node.facts.claim_id, "name": node.facts.machine_name}
        for node in cluster.nodes
    ]
    await ctx.start_saga(
        delete_saga.kind,
        {"cluster_id": cluster.id, "reservation_id": cluster.reservation_id, "machines": machines},
        target_kind="cluster",
        target_id=cluster.id,
        tenant=cluster.tenant,
        site=cluster.site or "-",
        operation_id=cluster.operation_id,
    )


def _changed_meanwhile(cluster: Cluster) -> Answer:
    return problem(
        412,
        errors.PRECONDITION_FAILED,
        f"Cluster {cluster.id} has changed: its version is {cluster.version}.",
        f"Read it again (GET /clusters/{cluster.id}) and decide anew.",
    )
