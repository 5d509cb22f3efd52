"""Events in monthly partitions; checkpoints, retention, legal holds, removals and contradictions beside them.

The running role may only add to all of these. What it may cause besides (a partition is made, expired events are
removed) is done by the functions of 0004, which belong to the owner and decide by themselves.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from libs.runtime.migrations import running_role

revision = "0003"
down_revision = "0002"

HISTORY = (
    "event",
    "event_rest",
    "signing_key",
    "checkpoint",
    "retention_policy",
    "legal_hold",
    "legal_hold_release",
    "removal",
    "contradiction",
)

# An existing table becomes the first partition as it stands: nothing is copied, four indexes are made.
_PARTITIONED = (
    "ALTER TABLE audit.event RENAME TO event_before",
    "ALTER TABLE audit.event_before DROP CONSTRAINT event_pkey",
    "ALTER TABLE audit.event_before ADD CONSTRAINT event_before_pkey PRIMARY KEY (service, sequence, time)",
    "DROP INDEX audit.event_entity",
    "ALTER INDEX audit.event_time RENAME TO event_before_time",
    "ALTER INDEX audit.event_correlation RENAME TO event_before_correlation",
    "ALTER INDEX audit.event_mentions RENAME TO event_before_mentions",
    "CREATE TABLE audit.event (LIKE audit.event_before INCLUDING DEFAULTS) PARTITION BY RANGE (time)",
    "ALTER TABLE audit.event ADD PRIMARY KEY (service, sequence, time)",
    "CREATE INDEX event_time ON audit.event (time)",
    "CREATE INDEX event_entity ON audit.event (entity_id, entity_version)",
    "CREATE INDEX event_tenant ON audit.event (tenant, time)",
    "CREATE INDEX event_actor ON audit.event (actor, time)",
    "CREATE INDEX event_correlation ON audit.event (correlation_id)",
    "CREATE INDEX event_mentions ON audit.event USING gin (mentions)",
    # Whatever time an event bears, there is a place for it.
    "CREATE TABLE audit.event_rest PARTITION OF audit.event DEFAULT",
)
_REBUILD = (
    "ALTER TABLE audit_rebuild.event DROP CONSTRAINT event_pkey",
    "ALTER TABLE audit_rebuild.event ADD PRIMARY KEY (service, sequence, time)",
)
_TABLES = (
    # Public halves of every key that ever signed here: old signatures can be checked after a change of keys.
    """
    CREATE TABLE audit.signing_key (
        key_id text PRIMARY KEY,
        public_key jsonb NOT NULL,
        first_used_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    # `statement` is what was signed, to the byte; the columns beside it only find it.
    """
    CREATE TABLE audit.checkpoint (
        service text NOT NULL,
        number integer NOT NULL CHECK (number > 0),
        day date NOT NULL,
        daily boolean NOT NULL,
        last_sequence bigint NOT NULL,
        events bigint NOT NULL CHECK (events > 0),
        digest text NOT NULL,
        statement text NOT NULL,
        key_id text NOT NULL REFERENCES audit.signing_key,
        signature text NOT NULL,
        made_at timestamptz NOT NULL,
        PRIMARY KEY (service, number)
    )
    """,
    "CREATE UNIQUE INDEX checkpoint_once_a_day ON audit.checkpoint (service, day) WHERE daily",
    """
    CREATE TABLE audit.retention_policy (
        version integer PRIMARY KEY CHECK (version > 0),
        keep_days integer CHECK (keep_days >= 30),
        reason text NOT NULL CHECK (reason <> ''),
        set_by text NOT NULL,
        set_at timestamptz NOT NULL DEFAULT now(),
        in_force_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE audit.legal_hold (
        id text PRIMARY KEY,
        kind text NOT NULL CHECK (kind IN ('entity', 'tenant', 'correlation')),
        value text NOT NULL CHECK (value <> ''),
        reason text NOT NULL CHECK (reason <> ''),
        placed_by text NOT NULL,
        placed_at timestamptz NOT NULL
    )
    """,
    """
    CREATE TABLE audit.legal_hold_release (
        hold_id text PRIMARY KEY REFERENCES audit.legal_hold,
        reason text NOT NULL CHECK (reason <> ''),
        released_by text NOT NULL,
        released_at timestamptz NOT NULL
    )
    """,
    # What stands for removed events in their chain: the digest before the first and the digest of the last of them.
    """
    CREATE TABLE audit.removal (
        service text NOT NULL,
        first_sequence bigint NOT NULL,
        last_sequence bigint NOT NULL,
        events bigint NOT NULL CHECK (events > 0),
        digest_before text NOT NULL,
        digest text NOT NULL,
        newest timestamptz NOT NULL,
        policy_version integer NOT NULL REFERENCES audit.retention_policy,
        statement text NOT NULL,
        key_id text NOT NULL REFERENCES audit.signing_key,
        signature text NOT NULL,
        removed_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (service, first_sequence),
        CHECK (last_sequence >= first_sequence)
    )
    """,
    # Events that came under a number that another event has, or that the chain has no room for.
    """
    CREATE TABLE audit.contradiction (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        service text NOT NULL,
        sequence bigint NOT NULL,
        kept_digest text NOT NULL,
        envelope text NOT NULL,
        found_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    "CREATE UNIQUE INDEX contradiction_once ON audit.contradiction (service, sequence, md5(envelope))",
)


def upgrade() -> None:
    for statement in (*_PARTITIONED, *_REBUILD, *_TABLES):
        op.execute(statement)
    _adopt()
    running = running_role("audit")
    if not op.get_bind().scalar(text("SELECT 1 FROM pg_roles WHERE rolname = :r"), {"r": running}):
        return
    for table in (*HISTORY, "event_before"):
        if op.get_bind().scalar(text("SELECT to_regclass(:t)"), {"t": f"audit.{table}"}):
            op.execute(f"REVOKE ALL ON audit.{table} FROM {running}")
    # A partition is reached through its table only, so that no right on it has to be taken away.
    for table in HISTORY:
        if table != "event_rest":
            op.execute(f"GRANT SELECT, INSERT ON audit.{table} TO {running}")
    # Only `remove_events` (0004) says what was removed.
    op.execute(f"REVOKE INSERT ON audit.removal FROM {running}")


def _adopt() -> None:
    """Make the rows that are there the first partition, up to the end of their last month."""
    bind = op.get_bind()
    newest = bind.scalar(text("SELECT max(time) FROM audit.event_before"))
    if newest is None:
        op.execute("DROP TABLE audit.event_before")
        return
    end = bind.scalar(
        text("SELECT date_trunc('month', CAST(:newest AS timestamptz), 'UTC') + interval '1 month'"), {"newest": newest}
    )
    op.execute(f"ALTER TABLE audit.event ATTACH PARTITION audit.event_before FOR VALUES FROM (MINVALUE) TO ('{end}')")
