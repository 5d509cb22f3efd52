"""Answers about clusters, nodes and how to log in, images and templates. Another tenant's cluster is not there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy import Table, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.contracts.provisioning import ClusterFacts, ImageFacts, NodeFacts, TemplateFacts
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.provisioning import model, store
from services.provisioning.model import Cluster
from services.provisioning.requests import ById, ByName, SshConfigOf
from services.provisioning.ssh_config import DEFAULT_KNOWN_HOSTS_FILE, known_hosts, ssh_config
from services.provisioning.store import cluster_table, image_table, node_table, template_table

UNKNOWN_LOGIN_USER = "ubuntu"  # Of an image that was removed since; what its login user was is not known any more.


def _nodes_of_a_cluster() -> Any:
    fields = (part for name in NodeFacts.model_fields for part in (name, node_table.c[name]))
    ordered = func.jsonb_agg(aggregate_order_by(func.jsonb_build_object(*fields), node_table.c.position))
    return select(ordered).where(node_table.c.cluster_id == cluster_table.c.id).scalar_subquery()


_listed = select(cluster_table, _nodes_of_a_cluster().label("nodes")).subquery("listed")


def _cluster_body(row: Mapping[str, Any]) -> dict[str, Any]:
    facts = ClusterFacts(
        **{name: row[name] for name in ClusterFacts.model_fields if name not in ("nodes", "site")},
        site=row["site"] or "-",
        nodes=row["nodes"] or (),
    )
    return facts.model_dump(mode="json")


def _node_body(row: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: row[name].isoformat() if row[name] else None for name in ("started_at", "stopped_at")}
    return {**store.node_facts(row).model_dump(mode="json"), "cluster_id": row["cluster_id"], **times}


def _image_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return ImageFacts.model_validate(dict(row)).model_dump(mode="json")


def _template_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return TemplateFacts.model_validate(dict(row)).model_dump(mode="json")


CLUSTERS = Listing(
    table=_listed,
    key=_listed.c.id,
    row=_cluster_body,
    filters={name: _listed.c[name] for name in ("state", "tenant", "profile", "site", "name", "image", "template")},
    sorts={name: _listed.c[name] for name in ("created_at", "name", "id")},
    default_sort="-created_at",
    tenant=_listed.c.tenant,
    search=(_listed.c.name,),
)
IMAGES = Listing(
    table=image_table,
    key=image_table.c.name,
    row=_image_body,
    sorts={"name": image_table.c.name},
    default_sort="name",
    search=(image_table.c.name, image_table.c.description),
)
TEMPLATES = Listing(
    table=template_table,
    key=template_table.c.name,
    row=_template_body,
    sorts={"name": template_table.c.name},
    default_sort="name",
    search=(template_table.c.name, template_table.c.description),
)


async def list_clusters(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, CLUSTERS, call)


async def list_images(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, IMAGES, call)


async def list_templates(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, TEMPLATES, call)


async def _visible(conn: AsyncConnection, call: Call) -> Cluster | Answer:
    wanted = parse(ById, call.params)
    if isinstance(wanted, Answer):
        return wanted
    cluster = await store.load(conn, wanted.cluster_id)
    return cluster if cluster and call.may_see(cluster.tenant) else not_found("cluster", wanted.cluster_id)


async def get_cluster(conn: AsyncConnection, call: Call) -> Answer:
    cluster = await _visible(conn, call)
    if isinstance(cluster, Answer):
        return cluster
    return Answer(body=model.facts(cluster).model_dump(mode="json"), etag=str(cluster.version))


async def list_nodes(conn: AsyncConnection, call: Call) -> Answer:
    """The nodes of one cluster, with the times their billing started and stopped."""
    cluster = await _visible(conn, call)
    if isinstance(cluster, Answer):
        return cluster
    nodes = select(node_table).where(node_table.c.cluster_id == cluster.id).subquery("nodes")
    listing = Listing(
        table=nodes,
        key=nodes.c.machine_id,
        row=_node_body,
        sorts={"position": nodes.c.position, "name": nodes.c.name},
        default_sort="position",
    )
    return await list_page(conn, listing, call)


async def get_ssh_config(conn: AsyncConnection, call: Call) -> Answer:
    """{ssh_config, known_hosts, known_hosts_file, user} for the running nodes; works with plain OpenSSH."""
    wanted = parse(SshConfigOf, call.params)
    if isinstance(wanted, Answer):
        return wanted
    cluster = await _visible(conn, call)
    if isinstance(cluster, Answer):
        return cluster
    image = await store.one(conn, image_table, cluster.image)
    user = image.login_user if image is not None else UNKNOWN_LOGIN_USER
    file = wanted.known_hosts_file or DEFAULT_KNOWN_HOSTS_FILE
    nodes = [node.facts for node in cluster.nodes if node.stopped_at is None]
    return Answer(
        body={
            "ssh_config": ssh_config(cluster.name, nodes, user=user, known_hosts_file=file),
            "known_hosts": known_hosts(nodes),
            "known_hosts_file": file,
            "user": user,
        }
    )


async def _named(conn: AsyncConnection, call: Call, table: Table, body: Callable[[Any], dict[str, Any]]) -> Answer:
    wanted = parse(ByName, call.params)
    if isinstance(wanted, Answer):
        return wanted
    row = await store.one(conn, table, wanted.name)
    if row is None:
        return not_found(table.name, wanted.name)
    return Answer(body=body(row._mapping), etag=str(row.version))


async def get_image(conn: AsyncConnection, call: Call) -> Answer:
    return await _named(conn, call, image_table, _image_body)


async def get_template(conn: AsyncConnection, call: Call) -> Answer:
    return await _named(conn, call, template_table, _template_body)


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_clusters": list_clusters,
    "get_cluster": get_cluster,
    "list_nodes": list_nodes,
    "get_ssh_config": get_ssh_config,
    "list_images": list_images,
    "get_image": get_image,
    "list_templates": list_templates,
    "get_template": get_template,
}
