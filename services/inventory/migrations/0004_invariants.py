"""What the invariants compare and find: nodes as sites told them, what sites were heard to say, violations."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import grants

revision = "0004"
down_revision = "0003"

STATEMENTS = (
    """
    CREATE TABLE inventory.node_seen (
        node_id text PRIMARY KEY,
        site text NOT NULL,
        name text NOT NULL,
        seen jsonb NOT NULL,
        observed_at timestamptz NOT NULL,
        gone_at timestamptz)
    """,
    """
    CREATE TABLE inventory.site_heard (
        site text PRIMARY KEY,
        heard_at timestamptz NOT NULL,
        problems jsonb NOT NULL,
        parts jsonb NOT NULL)
    """,
    """
    CREATE TABLE inventory.violation (
        id text PRIMARY KEY,
        invariant text NOT NULL,
        severity text NOT NULL CHECK (severity IN ('critical', 'warning')),
        subject text NOT NULL,
        name text NOT NULL,
        site text NOT NULL,
        ours text NOT NULL,
        theirs text NOT NULL,
        first_seen_at timestamptz NOT NULL,
        last_seen_at timestamptz NOT NULL,
        opened_at timestamptz,
        cleared_at timestamptz,
        repaired_by text NOT NULL,
        repair_operation_id text,
        version integer NOT NULL CHECK (version >= 0),
        CHECK ((opened_at IS NULL) = (version = 0)),
        CHECK (cleared_at IS NULL OR opened_at IS NOT NULL))
    """,
    # One at a time for a subject: two looks at once can't open it twice.
    "CREATE UNIQUE INDEX violation_live ON inventory.violation (invariant, subject) WHERE cleared_at IS NULL",
    "CREATE INDEX violation_cleared ON inventory.violation (cleared_at) WHERE cleared_at IS NOT NULL",
    """
    CREATE TABLE inventory.invariant_state (
        invariant text NOT NULL,
        site text NOT NULL,
        judged integer NOT NULL,
        unknown integer NOT NULL,
        why text NOT NULL,
        longest_seconds double precision NOT NULL,
        checked_at timestamptz NOT NULL,
        PRIMARY KEY (invariant, site))
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
    grants(op, "inventory")
