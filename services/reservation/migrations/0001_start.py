"""Reservations, claims and the pool projection."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

RESERVATION = """
CREATE TABLE reservation.reservation (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    profile text NOT NULL,
    site text,
    count integer NOT NULL CHECK (count >= 1),
    state text NOT NULL CHECK (state IN ('HELD', 'CLAIMED', 'RETURNING', 'ENDED', 'EXPIRED', 'REFUSED')),
    ttl_seconds integer NOT NULL CHECK (ttl_seconds >= 0),
    cluster_id text,
    expires_at timestamptz,
    refusal jsonb,
    created_at timestamptz NOT NULL,
    version integer NOT NULL CHECK (version >= 1),
    CHECK ((state = 'REFUSED') = (refusal IS NOT NULL)),
    CHECK (state NOT IN ('CLAIMED', 'RETURNING') OR site IS NOT NULL))
"""

# `live` is what the unique index stands on: the database itself refuses a second live claim on a machine.
CLAIM = """
CREATE TABLE reservation.claim (
    id text PRIMARY KEY,
    reservation_id text NOT NULL REFERENCES reservation.reservation (id) DEFERRABLE INITIALLY DEFERRED,
    position integer NOT NULL CHECK (position >= 0),
    machine_id text NOT NULL,
    machine_name text NOT NULL,
    machine_version integer NOT NULL,
    site text NOT NULL,
    state text NOT NULL CHECK (state IN ('HELD', 'CLAIMED', 'RETURNING', 'ENDED', 'EXPIRED', 'REFUSED')),
    live boolean GENERATED ALWAYS AS (state IN ('HELD', 'CLAIMED', 'RETURNING')) STORED,
    accepted_version integer,
    expires_at timestamptz,
    ended_because text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (reservation_id, position),
    CHECK ((state = 'HELD') = (expires_at IS NOT NULL)),
    CHECK (state <> 'HELD' OR accepted_version IS NULL),
    CHECK (state <> 'CLAIMED' OR accepted_version IS NOT NULL))
"""

POOL = """
CREATE TABLE {schema}.pool (
    machine_id text PRIMARY KEY,
    name text NOT NULL,
    site text NOT NULL,
    rack text NOT NULL,
    rack_point bigint NOT NULL,
    profile text,
    state text NOT NULL,
    eligible boolean NOT NULL CHECK (NOT eligible OR (state = 'AVAILABLE' AND claim_id IS NULL)),
    claim_id text,
    failed_step text NOT NULL,
    reason text NOT NULL,
    on_hold boolean NOT NULL,
    version integer NOT NULL)
"""


def upgrade() -> None:
    bus_tables(op, "reservation")
    op.execute(RESERVATION)
    op.execute(CLAIM)
    op.execute("CREATE UNIQUE INDEX claim_live_machine ON reservation.claim (machine_id) WHERE live")
    op.execute("CREATE INDEX claim_held ON reservation.claim (expires_at) WHERE state = 'HELD'")
    op.execute("CREATE INDEX claim_returning ON reservation.claim (machine_id) WHERE state = 'RETURNING'")
    op.execute("CREATE INDEX reservation_listed ON reservation.reservation (created_at, id)")
    op.execute("CREATE INDEX reservation_tenant ON reservation.reservation (tenant, created_at, id)")
    projection_tables(
        op,
        "reservation",
        [
            POOL,
            "CREATE INDEX pool_eligible ON {schema}.pool (profile, site, rack_point, rack, machine_id) WHERE eligible",
            "CREATE INDEX pool_profile ON {schema}.pool (profile, site, name)",
        ],
    )
    grants(op, "reservation")
