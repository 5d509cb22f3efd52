"""The price book, what was announced, and the metering projection. Prices are history: they are only added."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

_TABLES = (
    """
    CREATE TABLE cost.price (
        profile text NOT NULL,
        version integer NOT NULL CHECK (version > 0),
        price_per_machine_hour numeric NOT NULL CHECK (price_per_machine_hour >= 0),
        currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
        valid_from timestamptz NOT NULL,
        set_by text NOT NULL,
        set_at timestamptz NOT NULL,
        PRIMARY KEY (profile, version),
        CONSTRAINT price_one_at_a_time UNIQUE (profile, valid_from)
    )
    """,
    "CREATE TABLE cost.announced (usage_id text PRIMARY KEY, announced_at timestamptz NOT NULL)",
)
_PROJECTIONS = (
    """
    CREATE TABLE {schema}.meter (
        cluster_id text NOT NULL,
        machine_id text NOT NULL,
        tenant text NOT NULL,
        profile text NOT NULL,
        gpu_count integer NOT NULL,
        line_id text NOT NULL,
        started_at timestamptz NOT NULL,
        line_started_at timestamptz NOT NULL,
        stopped_at timestamptz CHECK (stopped_at >= started_at),
        PRIMARY KEY (cluster_id, machine_id)
    )
    """,
    """
    CREATE TABLE {schema}.usage (
        id text PRIMARY KEY,
        cluster_id text NOT NULL,
        tenant text NOT NULL,
        machine_id text NOT NULL,
        profile text NOT NULL,
        gpu_count integer NOT NULL,
        started_at timestamptz NOT NULL,
        stopped_at timestamptz CHECK (stopped_at >= started_at),
        seconds bigint,
        sign smallint NOT NULL CHECK (sign IN (-1, 1)),
        correction_of text,
        booked_at timestamptz,
        CHECK ((stopped_at IS NULL) = (seconds IS NULL)),
        CHECK ((correction_of IS NULL) = (booked_at IS NULL)),
        CHECK (sign = 1 OR correction_of IS NOT NULL)
    )
    """,
    "CREATE INDEX usage_cluster ON {schema}.usage (cluster_id, started_at)",
    "CREATE INDEX usage_tenant ON {schema}.usage (tenant, started_at)",
    "CREATE UNIQUE INDEX usage_one_open ON {schema}.usage (cluster_id, machine_id) WHERE stopped_at IS NULL",
    """
    CREATE TABLE {schema}.anomaly (
        event_id text PRIMARY KEY,
        cluster_id text NOT NULL,
        machine_id text NOT NULL,
        message text NOT NULL,
        learnt_at timestamptz NOT NULL
    )
    """,
)


def upgrade() -> None:
    bus_tables(op, "cost")
    for statement in _TABLES:
        op.execute(statement)
    projection_tables(op, "cost", _PROJECTIONS)
    grants(op, "cost", history=("price",))
