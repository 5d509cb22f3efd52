"""Organizations, tenants and grants. The database refuses a second live copy of a grant and a role at a wrong scope."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

_TABLES = (
    """
    CREATE TABLE identity.organization (
        id text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
        name text NOT NULL CHECK (name <> ''),
        name_key text NOT NULL CONSTRAINT organization_name_key UNIQUE,
        version integer NOT NULL,
        created_at timestamptz NOT NULL
    )
    """,
    """
    CREATE TABLE identity.tenant (
        id text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
        organization_id text NOT NULL REFERENCES identity.organization (id),
        name text NOT NULL CHECK (name <> ''),
        name_key text NOT NULL,
        machine_quota integer CHECK (machine_quota >= 0),
        version integer NOT NULL,
        created_at timestamptz NOT NULL,
        CONSTRAINT tenant_name_key UNIQUE (organization_id, name_key)
    )
    """,
    """
    CREATE TABLE identity.role_grant (
        id text PRIMARY KEY,
        issuer text NOT NULL CHECK (issuer <> ''),
        subject text NOT NULL CHECK (subject <> ''),
        role text NOT NULL,
        scope_kind text NOT NULL,
        scope_id text NOT NULL,
        granted_by text NOT NULL,
        granted_at timestamptz NOT NULL,
        revoked_at timestamptz,
        version integer NOT NULL,
        CONSTRAINT role_grant_scope CHECK ((scope_kind = 'installation') = (scope_id = '-')),
        CONSTRAINT role_grant_role CHECK (
            (scope_kind = 'installation' AND role IN ('operator', 'auditor', 'finance'))
            OR (scope_kind = 'organization' AND role IN ('admin', 'auditor', 'finance', 'viewer'))
            OR (scope_kind = 'tenant' AND role IN ('admin', 'member', 'viewer', 'finance'))
        )
    )
    """,
    """
    CREATE UNIQUE INDEX role_grant_live ON identity.role_grant (issuer, subject, role, scope_kind, scope_id)
    WHERE revoked_at IS NULL
    """,
)


def upgrade() -> None:
    bus_tables(op, "identity")
    for statement in _TABLES:
        op.execute(statement)
    projection_tables(op, "identity", [])
    grants(op, "identity", history=())
