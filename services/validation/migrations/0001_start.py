"""Runs and findings. The database refuses a finished run without a verdict and a second open finding of one kind."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

_TABLES = (
    """
    CREATE TABLE validation.run (
        id text PRIMARY KEY CHECK (id <> ''),
        machine_id text NOT NULL,
        site text NOT NULL,
        suite text NOT NULL CHECK (suite IN ('out_of_band', 'on_node', 'cluster')),
        verdict text CHECK (verdict IN ('PASS', 'FAIL', 'INCONCLUSIVE')),
        checks jsonb NOT NULL,
        requested_for text NOT NULL,
        problem jsonb,
        started_at timestamptz NOT NULL,
        finished_at timestamptz,
        version integer NOT NULL,
        CONSTRAINT run_finished_has_verdict CHECK ((finished_at IS NULL) = (verdict IS NULL)),
        CONSTRAINT run_pass_has_checks CHECK (verdict IS DISTINCT FROM 'PASS' OR jsonb_array_length(checks) > 0)
    )
    """,
    "CREATE INDEX run_machine ON validation.run (machine_id, started_at)",
    """
    CREATE TABLE validation.finding (
        id text PRIMARY KEY,
        machine_id text NOT NULL,
        "check" text NOT NULL,
        component text NOT NULL,
        severity text NOT NULL,
        message text NOT NULL,
        expected text NOT NULL,
        found text NOT NULL,
        run_id text,
        open boolean NOT NULL,
        first_seen_at timestamptz NOT NULL,
        last_seen_at timestamptz NOT NULL,
        seen_count integer NOT NULL CHECK (seen_count > 0),
        version integer NOT NULL
    )
    """,
    'CREATE UNIQUE INDEX finding_open ON validation.finding (machine_id, "check", component) WHERE open',
)


def upgrade() -> None:
    bus_tables(op, "validation")
    for statement in _TABLES:
        op.execute(statement)
    projection_tables(op, "validation", [])
    grants(op, "validation", history=())
