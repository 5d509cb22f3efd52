"""Tables of provisioning and the only SQL on them.

Invariant kept by the database: a live cluster's name is unique in its tenant, and a machine is a running node of at
most one cluster. Filled by projections: what identity and inventory say about tenants, profiles and sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Computed,
    DateTime,
    ForeignKey,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.errors import Transient
from libs.contracts.provisioning import ClusterState, NodeFacts
from libs.contracts.replies import Problem
from services.provisioning.model import Cluster, Node
from services.provisioning.states import LIVE_STATES

metadata = MetaData(schema="provisioning")

cluster_table = Table(
    "cluster",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("site", Text),
    Column("profile", Text, nullable=False),
    Column("node_count", Integer, nullable=False),
    Column("image", Text, nullable=False),
    Column("template", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("live", Boolean, Computed("state NOT IN ('DELETED', 'FAILED')", persisted=True)),
    Column("reservation_id", Text, nullable=False),
    Column("operation_id", Text, nullable=False),
    Column("ssh_authorized_keys", JSONB, nullable=False),
    Column("swapped", Integer, nullable=False),
    Column("problem", JSONB(none_as_null=True)),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("ready_at", DateTime(timezone=True)),
    Column("deleted_at", DateTime(timezone=True)),
    Column("version", Integer, nullable=False),
)

node_table = Table(
    "node",
    metadata,
    Column("cluster_id", Text, ForeignKey("provisioning.cluster.id"), primary_key=True),
    Column("machine_id", Text, primary_key=True),
    Column("machine_name", Text, nullable=False),
    Column("claim_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("ssh_port", Integer, nullable=False),
    Column("ssh_host_key", Text, nullable=False),
    Column("gpu_model", Text, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("stopped_at", DateTime(timezone=True)),
)

image_table = Table(
    "image",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version_label", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("login_user", Text, nullable=False),
    Column("version", Integer, nullable=False),
)

template_table = Table(
    "template",
    metadata,
    Column("name", Text, primary_key=True),
    Column("description", Text, nullable=False),
    Column("playbook", Text, nullable=False),
    Column("default_image", Text, nullable=False),
    Column("max_nodes", Integer, nullable=False),
    Column("max_swaps", Integer, nullable=False),
    Column("version", Integer, nullable=False),
)

run_line_table = Table(
    "run_line",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("operation_id", Text, nullable=False),
    Column("cluster_id", Text, ForeignKey("provisioning.cluster.id"), nullable=False),
    Column("content", Text, nullable=False),
    Column("received_at", DateTime(timezone=True), nullable=False),
)

tenant_table = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("machine_quota", Integer),
    Column("version", Integer, nullable=False),
)

profile_table = Table(
    "profile",
    metadata,
    Column("name", Text, primary_key=True),
    Column("gpu_model", Text, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("cpu_sockets", Integer),
    Column("memory_gib", Integer),
    Column("version", Integer, nullable=False),
)

site_table = Table(
    "site",
    metadata,
    Column("slug", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
)

_NODE_FIELDS = tuple(NodeFacts.model_fields)


async def load(conn: AsyncConnection, cluster_id: str, *, lock: bool = False) -> Cluster | None:
    """The cluster with its nodes; `lock` keeps it until the end of the transaction."""
    statement = select(cluster_table).where(cluster_table.c.id == cluster_id)
    row = (await conn.execute(statement.with_for_update() if lock else statement)).one_or_none()
    if row is None:
        return None
    nodes = select(node_table).where(node_table.c.cluster_id == cluster_id).order_by(node_table.c.position)
    return _cluster(row, (await conn.execute(nodes)).all())


def _cluster(row: Row[Any], nodes: Sequence[Row[Any]]) -> Cluster:
    return Cluster(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        site=row.site,
        profile=row.profile,
        node_count=row.node_count,
        image=row.image,
        template=row.template,
        state=ClusterState(row.state),
        reservation_id=row.reservation_id,
        operation_id=row.operation_id,
        created_at=row.created_at,
        ssh_authorized_keys=tuple(row.ssh_authorized_keys),
        nodes=tuple(Node(node_facts(dict(each._mapping)), each.started_at, each.stopped_at) for each in nodes),
        swapped=row.swapped,
        problem=Problem.model_validate(row.problem) if row.problem is not None else None,
        ready_at=row.ready_at,
        deleted_at=row.deleted_at,
        version=row.version,
    )


def node_facts(row: Mapping[Any, Any]) -> NodeFacts:
    return NodeFacts(**{name: row[name] for name in _NODE_FIELDS})


def _columns(cluster: Cluster) -> dict[str, Any]:
    return {
        "site": cluster.site,
        "state": cluster.state.value,
        "operation_id": cluster.operation_id,
        "swapped": cluster.swapped,
        "problem": cluster.problem.model_dump(mode="json") if cluster.problem else None,
        "ready_at": cluster.ready_at,
        "deleted_at": cluster.deleted_at,
        "version": cluster.version,
    }


async def add(conn: AsyncConnection, cluster: Cluster) -> bool:
    """Insert a new cluster. False when its tenant has a live one of that name."""
    row = {
        "id": cluster.id,
        "name": cluster.name,
        "tenant": cluster.tenant,
        "profile": cluster.profile,
        "node_count": cluster.node_count,
        "image": cluster.image,
        "template": cluster.template,
        "reservation_id": cluster.reservation_id,
        "ssh_authorized_keys": list(cluster.ssh_authorized_keys),
        "created_at": cluster.created_at,
        **_columns(cluster),
    }
    statement = pg_insert(cluster_table).values(**row).on_conflict_do_nothing().returning(cluster_table.c.id)
    return (await conn.execute(statement)).one_or_none() is not None


async def save(conn: AsyncConnection, before: Cluster, after: Cluster) -> None:
    """Write the cluster and its nodes' changes. Raises Transient when somebody was faster."""
    guarded = (
        update(cluster_table)
        .where(cluster_table.c.id == before.id, cluster_table.c.version == before.version)
        .values(**_columns(after))
    )
    if (await conn.execute(guarded)).rowcount != 1:
        raise Transient(f"cluster {before.id} is not at version {before.version} any more")
    known = {node.facts.machine_id for node in before.nodes}
    new = [
        {**node.facts.model_dump(), "cluster_id": after.id, "position": place, **_times(node)}
        for place, node in enumerate(after.nodes)
        if node.facts.machine_id not in known
    ]
    if new:
        await conn.execute(insert(node_table), new)
    for node in after.nodes:
        if node.facts.machine_id in known and node not in before.nodes:
            await _stop(conn, after.id, node)


def _times(node: Node) -> dict[str, datetime | None]:
    return {"started_at": node.started_at, "stopped_at": node.stopped_at}


async def _stop(conn: AsyncConnection, cluster_id: str, node: Node) -> None:
    statement = (
        update(node_table)
        .where(node_table.c.cluster_id == cluster_id, node_table.c.machine_id == node.facts.machine_id)
        .where(node_table.c.stopped_at.is_(None))
        .values(stopped_at=node.stopped_at)
    )
    if (await conn.execute(statement)).rowcount != 1:
        raise Transient(f"node {node.facts.name} of cluster {cluster_id} was stopped by somebody else")


async def machines_asked_for_before(conn: AsyncConnection, cluster: Cluster) -> int:
    """How many machines the tenant's live clusters that were asked for earlier take of its quota."""
    earlier = or_(
        tuple_(cluster_table.c.created_at, cluster_table.c.id) < tuple_(cluster.created_at, cluster.id),
        cluster_table.c.state != ClusterState.CREATING.value,
    )
    statement = select(func.coalesce(func.sum(cluster_table.c.node_count), 0)).where(
        cluster_table.c.tenant == cluster.tenant,
        cluster_table.c.id != cluster.id,
        cluster_table.c.state.in_([state.value for state in LIVE_STATES]),
        earlier,
    )
    return int((await conn.execute(statement)).scalar_one())


async def one(conn: AsyncConnection, table: Table, key: str, *, lock: bool = False) -> Row[Any] | None:
    """The row of an image, template, tenant, profile or site by its primary key."""
    (column,) = table.primary_key.columns
    statement = select(table).where(column == key)
    row: Row[Any] | None = (await conn.execute(statement.with_for_update() if lock else statement)).one_or_none()
    return row


@dataclass(frozen=True)
class Named:
    """Rows that a request named, as mappings; empty where there is none."""

    template: Mapping[str, Any]
    image: Mapping[str, Any]
    profile: Mapping[str, Any]
    site: str | None


_NAMED = text(
    """SELECT
    (SELECT to_jsonb(t) FROM provisioning.template t WHERE t.name = :template) AS template,
    (SELECT to_jsonb(i) FROM provisioning.image i WHERE i.name = coalesce(CAST(:image AS text),
        (SELECT t.default_image FROM provisioning.template t WHERE t.name = :template))) AS image,
    (SELECT to_jsonb(p) FROM provisioning.profile p WHERE p.name = :profile) AS profile,
    CASE WHEN CAST(:site AS text) IS NULL THEN (SELECT min(s.slug) FROM provisioning.site s HAVING count(*) = 1)
        ELSE (SELECT s.slug FROM provisioning.site s WHERE s.slug = :site) END AS site"""
)


async def named(conn: AsyncConnection, *, template: str, image: str | None, profile: str, site: str | None) -> Named:
    """What a request for a cluster names, in one round trip.

    Without an image it is the template's, without a site the only one (None when there are several).
    """
    wanted = {"template": template, "image": image, "profile": profile, "site": site}
    row = (await conn.execute(_NAMED, wanted)).one()
    return Named(row.template or {}, row.image or {}, row.profile or {}, row.site)


async def put(conn: AsyncConnection, table: Table, row: Mapping[str, Any], *, expected_version: int) -> bool:
    """Insert (`expected_version` 0) or change a row of `image` or `template`. False when somebody was faster."""
    if expected_version == 0:
        statement = pg_insert(table).values(**row).on_conflict_do_nothing().returning(table.c.name)
        return (await conn.execute(statement)).one_or_none() is not None
    guarded = update(table).where(table.c.name == row["name"], table.c.version == expected_version).values(**row)
    return (await conn.execute(guarded)).rowcount == 1
