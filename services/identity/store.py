"""Identity's tables and the only SQL on them. Every write is one guarded statement that says whether it happened."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.identity import GrantFacts, OrganizationFacts, Role, ScopeKind, TenantFacts
from services.identity.model import name_key

metadata = sa.MetaData(schema="identity")
_Time = sa.TIMESTAMP(timezone=True)

organization = sa.Table(
    "organization",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("name_key", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("created_at", _Time, nullable=False),
    sa.UniqueConstraint("name_key", name="organization_name_key"),
)
tenant = sa.Table(
    "tenant",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, sa.ForeignKey(organization.c.id), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("name_key", sa.Text, nullable=False),
    sa.Column("machine_quota", sa.Integer),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("created_at", _Time, nullable=False),
    sa.UniqueConstraint("organization_id", "name_key", name="tenant_name_key"),
)
role_grant = sa.Table(
    "role_grant",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("issuer", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("scope_kind", sa.Text, nullable=False),
    sa.Column("scope_id", sa.Text, nullable=False),
    sa.Column("granted_by", sa.Text, nullable=False),
    sa.Column("granted_at", _Time, nullable=False),
    sa.Column("revoked_at", _Time),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Index(
        "role_grant_live",
        "issuer",
        "subject",
        "role",
        "scope_kind",
        "scope_id",
        unique=True,
        postgresql_where=sa.text("revoked_at IS NULL"),
    ),
)


def organization_facts(row: Mapping[Any, Any]) -> OrganizationFacts:
    return OrganizationFacts(id=row["id"], slug=row["id"], name=row["name"], version=row["version"])


def tenant_facts(row: Mapping[Any, Any]) -> TenantFacts:
    return TenantFacts(
        id=row["id"],
        organization_id=row["organization_id"],
        name=row["name"],
        machine_quota=row["machine_quota"],
        version=row["version"],
    )


def grant_facts(row: Mapping[Any, Any]) -> GrantFacts:
    return GrantFacts(
        id=row["id"],
        issuer=row["issuer"],
        subject=row["subject"],
        role=Role(row["role"]),
        scope_kind=ScopeKind(row["scope_kind"]),
        scope_id=row["scope_id"],
        granted_by=row["granted_by"],
        granted_at=row["granted_at"],
        revoked_at=row["revoked_at"],
        version=row["version"],
    )


async def add_organization(conn: AsyncConnection, facts: OrganizationFacts, *, now: datetime) -> bool:
    """Insert it; False when its id or a name that looks the same is taken."""
    values = {"id": facts.id, "name": facts.name, "name_key": name_key(facts.name), "version": 1, "created_at": now}
    return await _inserted(conn, organization, values)


async def add_tenant(conn: AsyncConnection, facts: TenantFacts, *, now: datetime) -> bool:
    """Insert it; False when its id is taken, or its name within the organization."""
    values = {
        "id": facts.id,
        "organization_id": facts.organization_id,
        "name": facts.name,
        "name_key": name_key(facts.name),
        "machine_quota": facts.machine_quota,
        "version": 1,
        "created_at": now,
    }
    return await _inserted(conn, tenant, values)


async def add_grant(conn: AsyncConnection, facts: GrantFacts) -> bool:
    """Insert it; False when the same grant is live already."""
    return await _inserted(conn, role_grant, facts.model_dump(mode="python"))


async def _inserted(conn: AsyncConnection, table: sa.Table, values: dict[str, Any]) -> bool:
    statement = insert(table).values(values).on_conflict_do_nothing().returning(table.c.id)
    return (await conn.execute(statement)).first() is not None


async def get_organization(conn: AsyncConnection, id_: str) -> OrganizationFacts | None:
    row = (await conn.execute(sa.select(organization).where(organization.c.id == id_))).mappings().first()
    return organization_facts(row) if row else None


async def get_tenant(conn: AsyncConnection, id_: str) -> TenantFacts | None:
    row = (await conn.execute(sa.select(tenant).where(tenant.c.id == id_))).mappings().first()
    return tenant_facts(row) if row else None


async def all_tenants(conn: AsyncConnection) -> tuple[TenantFacts, ...]:
    return tuple(tenant_facts(row) for row in (await conn.execute(sa.select(tenant).order_by(tenant.c.id))).mappings())


async def get_grant(conn: AsyncConnection, id_: str) -> GrantFacts | None:
    row = (await conn.execute(sa.select(role_grant).where(role_grant.c.id == id_))).mappings().first()
    return grant_facts(row) if row else None


async def live_grants_of(conn: AsyncConnection, issuer: str, subject: str) -> tuple[GrantFacts, ...]:
    """Grants not revoked of exactly this issuer and subject, oldest first."""
    grants = role_grant.c
    statement = (
        sa.select(role_grant)
        .where(grants.issuer == issuer, grants.subject == subject, grants.revoked_at.is_(None))
        .order_by(grants.granted_at, grants.id)
    )
    return tuple(grant_facts(row) for row in (await conn.execute(statement)).mappings())


async def same_grants(conn: AsyncConnection, wanted: GrantFacts) -> tuple[GrantFacts, ...]:
    """Every grant, live or revoked, of the same person, role and scope."""
    grants = role_grant.c
    statement = sa.select(role_grant).where(
        grants.issuer == wanted.issuer,
        grants.subject == wanted.subject,
        grants.role == wanted.role,
        grants.scope_kind == wanted.scope_kind,
        grants.scope_id == wanted.scope_id,
    )
    return tuple(grant_facts(row) for row in (await conn.execute(statement)).mappings())


async def lock_installation_operators(conn: AsyncConnection) -> tuple[GrantFacts, ...]:
    """Live installation operators, locked, so that two revocations can't each count on the other's."""
    grants = role_grant.c
    statement = (
        sa.select(role_grant)
        .where(
            grants.role == Role.OPERATOR,
            grants.scope_kind == ScopeKind.INSTALLATION,
            grants.revoked_at.is_(None),
        )
        .order_by(grants.id)
        .with_for_update()
    )
    return tuple(grant_facts(row) for row in (await conn.execute(statement)).mappings())


async def mark_revoked(conn: AsyncConnection, grant: GrantFacts, *, now: datetime) -> bool:
    """Revoke it at the version that was read; False when somebody was faster."""
    statement = (
        sa.update(role_grant)
        .where(
            role_grant.c.id == grant.id,
            role_grant.c.version == grant.version,
            role_grant.c.revoked_at.is_(None),
        )
        .values(revoked_at=now, version=grant.version + 1)
    )
    return (await conn.execute(statement)).rowcount == 1
