"""Schemas, roles and Alembic migrations of the services.

Two roles a service: `slipway_<service>_owner` owns its schema and runs migrations; `slipway_<service>` runs the
service, without DDL, without anybody else's schema, and without UPDATE or DELETE on history tables.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from libs.bus.tables import first_ddl, keeping_ddl

SERVICES_FOLDER = Path(__file__).resolve().parents[2] / "services"
KEEPING_TABLES = (
    "dead_letter_action",
    "inbox_memory",
    "peer_epoch",
    "restore",
    "stream_seen",
    "projection_rebuild",
    "replay",
)
STATEFUL_SERVICES = (
    "inventory",
    "reservation",
    "provisioning",
    "validation",
    "cost",
    "identity",
    "audit",
    "subscription",
)


def owner_role(service: str) -> str:
    return f"slipway_{service}_owner"


def running_role(service: str) -> str:
    return f"slipway_{service}"


def role_statements(service: str, owner_password: str, running_password: str, database: str) -> list[str]:
    """What a superuser runs once: roles and the two schemas. Safe to repeat. Passwords must be our own (hex)."""
    owner, running = owner_role(service), running_role(service)
    statements = []
    for role, password in ((owner, owner_password), (running, running_password)):
        statements.append(f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        statements.append(f"ALTER ROLE {role} PASSWORD '{password}'")
        statements.append(f"GRANT CONNECT ON DATABASE {database} TO {role}")
    for schema in (service, f"{service}_rebuild"):
        statements.append(f"CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {owner}")
        statements.append(f"GRANT USAGE ON SCHEMA {schema} TO {running}")
    return statements


def bus_tables(op: Any, service: str) -> None:
    """Make the bus's own tables in the service's schema (first migration)."""
    for statement in first_ddl(service):
        op.execute(statement)


def bus_keeping(op: Any, service: str) -> None:
    """Make what the bus keeps besides messages (second set of tables), with its grants."""
    for statement in keeping_ddl(service):
        op.execute(statement)
    running = running_role(service)
    if not _role_exists(op, running):
        return
    for table in KEEPING_TABLES:
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {service}.{table} TO {running}")
    # What people decided about dead letters is history.
    op.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {service}.dead_letter_action FROM {running}")


def projection_tables(op: Any, service: str, statements: Iterable[str]) -> None:
    """Run DDL with `{schema}` twice: for the live projection and for the one that rebuilds use."""
    statements = list(statements)
    for schema in (service, f"{service}_rebuild"):
        for statement in statements:
            op.execute(statement.format(schema=schema))


def grants(op: Any, service: str, history: Sequence[str] = ()) -> None:
    """Give the running role what it needs and no more; call at the end of every migration that adds tables."""
    running = running_role(service)
    if not _role_exists(op, running):
        return
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {service} TO {running}")
    op.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {service} TO {running}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {service}_rebuild TO {running}")
    op.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {service}_rebuild TO {running}")
    for table in history:
        op.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {service}.{table} FROM {running}")


def _role_exists(op: Any, role: str) -> bool:
    return bool(op.get_bind().execute(text("SELECT 1 FROM pg_roles WHERE rolname = :r"), {"r": role}).scalar())


def _scripts(service: str) -> ScriptDirectory:
    folder = SERVICES_FOLDER / service / "migrations"
    return ScriptDirectory(str(folder), version_locations=[str(folder)])


def _upgrade(connection: Connection, service: str) -> list[str]:
    """Run what is missing; one transaction a migration, one migrator at a time."""
    scripts = _scripts(service)
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"migrate:{service}"})
    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {service}")) if not _has_schema(connection, service) else None
    if not _has_schema(connection, f"{service}_rebuild"):
        connection.execute(text(f"CREATE SCHEMA {service}_rebuild"))
    context = MigrationContext.configure(connection, opts={"version_table_schema": service})
    done = []
    heads = context.get_current_heads()
    for revision in scripts.iterate_revisions("head", heads[0] if heads else "base"):
        done.append(revision)
    applied = []
    for revision in reversed(done):
        with Operations.context(context):
            module: Any = _load(Path(revision.path))
            module.upgrade()
        context._ensure_version_table()
        if revision.down_revision is None:
            connection.execute(
                text(f"INSERT INTO {service}.alembic_version (version_num) VALUES (:v)"), {"v": revision.revision}
            )
        else:
            connection.execute(text(f"UPDATE {service}.alembic_version SET version_num = :v"), {"v": revision.revision})
        applied.append(revision.revision)
    return applied


def _has_schema(connection: Connection, schema: str) -> bool:
    found = connection.execute(text("SELECT 1 FROM pg_namespace WHERE nspname = :s"), {"s": schema}).scalar()
    return found is not None


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"migration_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def migrate(owner_url: str, service: str) -> list[str]:
    """Bring the service's schema up to date with the owner's role. Returns the revisions that were applied."""
    engine = create_async_engine(owner_url.replace("postgresql://", "postgresql+asyncpg://", 1))
    try:
        async with engine.begin() as conn:
            return await conn.run_sync(_upgrade, service)
    finally:
        await engine.dispose()
