"""Clusters, nodes, images, templates, and the projections of what others know."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

CLUSTER = """
CREATE TABLE provisioning.cluster (
    id text PRIMARY KEY,
    name text NOT NULL,
    tenant text NOT NULL,
    site text,
    profile text NOT NULL,
    node_count integer NOT NULL CHECK (node_count >= 1),
    image text NOT NULL,
    template text NOT NULL,
    state text NOT NULL CHECK (state IN
        ('CREATING', 'READY', 'RESIZING', 'REPAIRING', 'UPGRADING', 'DELETING', 'DELETED', 'FAILED')),
    live boolean GENERATED ALWAYS AS (state NOT IN ('DELETED', 'FAILED')) STORED,
    reservation_id text NOT NULL UNIQUE,
    operation_id text NOT NULL,
    ssh_authorized_keys jsonb NOT NULL,
    swapped integer NOT NULL CHECK (swapped >= 0),
    problem jsonb,
    created_at timestamptz NOT NULL,
    ready_at timestamptz,
    deleted_at timestamptz,
    version integer NOT NULL CHECK (version >= 1),
    CHECK (state NOT IN ('READY', 'RESIZING', 'REPAIRING', 'UPGRADING') OR (ready_at IS NOT NULL AND site IS NOT NULL)),
    CHECK ((state = 'DELETED') = (deleted_at IS NOT NULL)))
"""

# A machine is a running node of at most one cluster, whatever any process believes.
NODE = """
CREATE TABLE provisioning.node (
    cluster_id text NOT NULL REFERENCES provisioning.cluster (id),
    machine_id text NOT NULL,
    machine_name text NOT NULL,
    claim_id text NOT NULL,
    name text NOT NULL,
    address text NOT NULL,
    ssh_port integer NOT NULL CHECK (ssh_port BETWEEN 1 AND 65535),
    ssh_host_key text NOT NULL,
    gpu_model text NOT NULL,
    gpu_count integer NOT NULL CHECK (gpu_count >= 0),
    position integer NOT NULL CHECK (position >= 0),
    started_at timestamptz NOT NULL,
    stopped_at timestamptz,
    PRIMARY KEY (cluster_id, machine_id),
    UNIQUE (cluster_id, name),
    CHECK (stopped_at IS NULL OR stopped_at >= started_at))
"""

IMAGE = """
CREATE TABLE provisioning.image (
    name text PRIMARY KEY,
    version_label text NOT NULL,
    url text NOT NULL,
    checksum text NOT NULL CHECK (checksum ~ '^[0-9a-f]{64}$'),
    description text NOT NULL,
    login_user text NOT NULL,
    version integer NOT NULL CHECK (version >= 1))
"""

TEMPLATE = """
CREATE TABLE provisioning.template (
    name text PRIMARY KEY,
    description text NOT NULL,
    playbook text NOT NULL,
    default_image text NOT NULL,
    max_nodes integer NOT NULL CHECK (max_nodes >= 1),
    max_swaps integer NOT NULL CHECK (max_swaps >= 0),
    version integer NOT NULL CHECK (version >= 1))
"""

PROJECTED = (
    "CREATE TABLE {schema}.tenant (id text PRIMARY KEY, machine_quota integer, version integer NOT NULL)",
    """CREATE TABLE {schema}.profile (name text PRIMARY KEY, gpu_model text NOT NULL, gpu_count integer NOT NULL,
        cpu_sockets integer, memory_gib integer, version integer NOT NULL)""",
    "CREATE TABLE {schema}.site (slug text PRIMARY KEY, name text NOT NULL, version integer NOT NULL)",
)


def upgrade() -> None:
    bus_tables(op, "provisioning")
    for statement in (CLUSTER, NODE, IMAGE, TEMPLATE):
        op.execute(statement)
    op.execute("CREATE UNIQUE INDEX cluster_live_name ON provisioning.cluster (tenant, name) WHERE live")
    op.execute("CREATE INDEX cluster_listed ON provisioning.cluster (created_at, id)")
    op.execute("CREATE INDEX cluster_tenant ON provisioning.cluster (tenant, created_at, id)")
    op.execute("CREATE UNIQUE INDEX node_running_machine ON provisioning.node (machine_id) WHERE stopped_at IS NULL")
    projection_tables(op, "provisioning", PROJECTED)
    grants(op, "provisioning")
