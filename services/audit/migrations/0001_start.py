"""Every event and the list of operations. The running role may only add events, never change or remove them."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

_PROJECTIONS = (
    """
    CREATE TABLE {schema}.event (
        service text NOT NULL,
        sequence bigint NOT NULL,
        id text NOT NULL,
        type text NOT NULL,
        entity_kind text NOT NULL,
        entity_id text NOT NULL,
        entity_version integer NOT NULL,
        time timestamptz NOT NULL,
        tenant text NOT NULL,
        site text NOT NULL,
        actor text NOT NULL,
        correlation_id text NOT NULL,
        causation_id text,
        mentions text[] NOT NULL,
        envelope text NOT NULL,
        digest text NOT NULL,
        PRIMARY KEY (service, sequence)
    )
    """,
    "CREATE INDEX event_time ON {schema}.event (time)",
    "CREATE INDEX event_entity ON {schema}.event (service, entity_id, entity_version)",
    "CREATE INDEX event_correlation ON {schema}.event (correlation_id)",
    "CREATE INDEX event_mentions ON {schema}.event USING gin (mentions)",
    """
    CREATE TABLE {schema}.operation (
        id text PRIMARY KEY,
        service text NOT NULL,
        kind text NOT NULL,
        target_kind text NOT NULL,
        target_id text NOT NULL,
        tenant text NOT NULL,
        site text NOT NULL,
        actor text NOT NULL,
        correlation_id text NOT NULL,
        status text NOT NULL,
        waiting_for text NOT NULL,
        facts jsonb NOT NULL,
        created_at timestamptz NOT NULL,
        updated_at timestamptz NOT NULL,
        version integer NOT NULL
    )
    """,
    "CREATE INDEX operation_created ON {schema}.operation (created_at)",
    "CREATE INDEX operation_target ON {schema}.operation (target_id)",
)


def upgrade() -> None:
    bus_tables(op, "audit")
    projection_tables(op, "audit", _PROJECTIONS)
    grants(op, "audit", history=("event",))
