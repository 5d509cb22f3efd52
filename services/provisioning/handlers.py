"""Commands to provisioning, sent by its own sagas. Each is one transaction and may be repeated at will."""

from __future__ import annotations

from libs.bus.context import CommandHandlers, Context
from libs.contracts.provisioning import (
    CheckLimits,
    ClusterState,
    MarkClusterDeleted,
    MarkClusterFailed,
    MarkClusterReady,
    WithdrawCluster,
)
from libs.contracts.replies import Outcome, Problem, Reply, ok
from services.provisioning import errors, model, store
from services.provisioning.announcements import announce
from services.provisioning.model import Change, Cluster


def _no(problem: Problem) -> Reply:
    return Reply(outcome=Outcome.REFUSED, problem=problem)


async def _keep(ctx: Context, before: Cluster, change: Change) -> Reply:
    await store.save(ctx.conn, before, change.after)
    announce(ctx, change)
    return ok(version=change.after.version)


async def check_limits(ctx: Context, command: CheckLimits) -> Reply:
    """Is the tenant known, its quota kept, and is what was asked for still there? Nothing is taken before."""
    cluster = await store.load(ctx.conn, command.cluster_id)
    if cluster is None:
        return _no(errors.cluster_not_found(command.cluster_id))
    if cluster.state is not ClusterState.CREATING:
        return _no(errors.wrong_state(cluster.id, cluster.state, "be created"))
    for flaw in (await _catalogue_flaw(ctx, cluster), await _quota_flaw(ctx, cluster)):
        if flaw is not None:
            return _no(flaw)
    return ok()


async def _catalogue_flaw(ctx: Context, cluster: Cluster) -> Problem | None:
    if await store.one(ctx.conn, store.profile_table, cluster.profile) is None:
        return errors.unknown(errors.PROFILE_UNKNOWN, "profile", cluster.profile)
    if await store.one(ctx.conn, store.image_table, cluster.image) is None:
        return errors.unknown(errors.IMAGE_UNKNOWN, "image", cluster.image)
    template = await store.one(ctx.conn, store.template_table, cluster.template)
    if template is None:
        return errors.unknown(errors.TEMPLATE_UNKNOWN, "template", cluster.template)
    if cluster.node_count > template.max_nodes:
        return errors.too_many_nodes(cluster.template, template.max_nodes, cluster.node_count)
    return None


async def _quota_flaw(ctx: Context, cluster: Cluster) -> Problem | None:
    tenant = await store.one(ctx.conn, store.tenant_table, cluster.tenant)
    if tenant is None:
        return errors.tenant_unknown(cluster.tenant)
    if tenant.machine_quota is None:
        return None
    used = await store.machines_asked_for_before(ctx.conn, cluster)
    if used + cluster.node_count > tenant.machine_quota:
        return errors.quota_exceeded(cluster.tenant, tenant.machine_quota, used, cluster.node_count)
    return None


async def mark_cluster_ready(ctx: Context, command: MarkClusterReady) -> Reply:
    """CREATING → READY; billing of the nodes starts now."""
    before = await store.load(ctx.conn, command.cluster_id, lock=True)
    if before is None:
        return _no(errors.cluster_not_found(command.cluster_id))
    if before.state is ClusterState.READY and tuple(node.facts for node in before.nodes) == command.nodes:
        return ok(version=before.version)
    if before.state is not ClusterState.CREATING:
        return _no(errors.wrong_state(before.id, before.state, "become READY"))
    if len(command.nodes) != before.node_count:
        return _no(errors.wrong_node_count(before.id, before.node_count, len(command.nodes)))
    change = model.make_ready(before, command.nodes, site=command.site, swapped=command.swapped, now=ctx.now)
    return await _keep(ctx, before, change)


async def withdraw_cluster(ctx: Context, command: WithdrawCluster) -> Reply:
    """A READY cluster whose creation is taken back is deleted: billing stops now."""
    before = await store.load(ctx.conn, command.cluster_id, lock=True)
    if before is None or before.state is not ClusterState.READY:
        return ok()
    change = model.delete(before, operation_id=before.operation_id, now=ctx.now, reason=command.reason)
    return await _keep(ctx, before, change)


async def mark_cluster_failed(ctx: Context, command: MarkClusterFailed) -> Reply:
    """Everything was given back: CREATING → FAILED, or DELETED when its deletion was asked for meanwhile."""
    before = await store.load(ctx.conn, command.cluster_id, lock=True)
    if before is None:
        return ok()
    if before.state is ClusterState.DELETING:
        return await _keep(ctx, before, model.gone(before, now=ctx.now))
    if before.state is not ClusterState.CREATING:
        return ok(version=before.version)
    return await _keep(ctx, before, model.fail(before, command.problem))


async def mark_cluster_deleted(ctx: Context, command: MarkClusterDeleted) -> Reply:
    """DELETING → DELETED."""
    before = await store.load(ctx.conn, command.cluster_id, lock=True)
    if before is None:
        return _no(errors.cluster_not_found(command.cluster_id))
    if before.state is ClusterState.DELETED:
        return ok(version=before.version)
    if before.state is not ClusterState.DELETING:
        return _no(errors.wrong_state(before.id, before.state, "be DELETED"))
    return await _keep(ctx, before, model.gone(before, now=ctx.now))


COMMANDS: CommandHandlers = {
    CheckLimits: check_limits,
    MarkClusterReady: mark_cluster_ready,
    WithdrawCluster: withdraw_cluster,
    MarkClusterFailed: mark_cluster_failed,
    MarkClusterDeleted: mark_cluster_deleted,
}
