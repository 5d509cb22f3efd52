"""Machines, sites, racks, device types, profiles, the source's state, the write-back and validation's findings."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

# A claim is on a machine exactly while it is in a tenant's hands (or its release failed); nothing that is not
# AVAILABLE, unclaimed and of a profile is eligible; FAILED names its step.
MACHINE = """
CREATE TABLE inventory.machine (
    id text PRIMARY KEY,
    name text NOT NULL CHECK (name <> ''),
    site text NOT NULL CHECK (site <> ''),
    rack text NOT NULL,
    rack_id text NOT NULL,
    profile text,
    device_type text NOT NULL,
    serial text NOT NULL,
    netbox_id bigint UNIQUE,
    state text NOT NULL CHECK (state IN (
        'EXPECTED', 'ENROLLING', 'SANITIZING', 'VALIDATING', 'AVAILABLE', 'CLAIMED', 'PROVISIONING', 'ASSIGNED',
        'RELEASING', 'QUARANTINED', 'REMEDIATING', 'MAINTENANCE', 'FAILED', 'DECOMMISSIONING', 'RETIRED')),
    failed_step text NOT NULL,
    health text NOT NULL CHECK (health IN ('UNKNOWN', 'HEALTHY', 'SUSPECT', 'FAILED')),
    eligible boolean NOT NULL,
    claim_id text,
    operation_id text,
    state_since timestamptz NOT NULL,
    deadline_at timestamptz,
    validated_at timestamptz,
    version integer NOT NULL CHECK (version >= 1),
    facts jsonb NOT NULL,
    CHECK ((state = 'FAILED') = (failed_step <> '')),
    CHECK (NOT eligible OR (state = 'AVAILABLE' AND claim_id IS NULL AND profile IS NOT NULL
                            AND validated_at IS NOT NULL AND health NOT IN ('SUSPECT', 'FAILED'))),
    CHECK (state NOT IN ('CLAIMED', 'PROVISIONING', 'ASSIGNED', 'RELEASING') OR claim_id IS NOT NULL),
    CHECK (claim_id IS NULL OR state IN ('CLAIMED', 'PROVISIONING', 'ASSIGNED', 'RELEASING')
           OR (state = 'FAILED' AND failed_step = 'release')),
    CHECK (state NOT IN ('ENROLLING', 'SANITIZING', 'VALIDATING', 'CLAIMED', 'PROVISIONING', 'RELEASING',
                         'REMEDIATING', 'DECOMMISSIONING') OR deadline_at IS NOT NULL))
"""
FINDING = """
CREATE TABLE {schema}.finding (
    id text PRIMARY KEY,
    machine_id text NOT NULL,
    severity text NOT NULL,
    open boolean NOT NULL,
    version integer NOT NULL)
"""
OTHERS = (
    """
    CREATE TABLE inventory.site (
        slug text PRIMARY KEY,
        name text NOT NULL,
        netbox_id bigint,
        satellite_seen_at timestamptz,
        version integer NOT NULL CHECK (version >= 1))
    """,
    """
    CREATE TABLE inventory.rack (
        id text PRIMARY KEY,
        name text NOT NULL,
        site text NOT NULL,
        netbox_id bigint,
        version integer NOT NULL CHECK (version >= 1))
    """,
    """
    CREATE TABLE inventory.device_type (
        slug text PRIMARY KEY,
        manufacturer text NOT NULL,
        model text NOT NULL,
        netbox_id bigint,
        version integer NOT NULL CHECK (version >= 1))
    """,
    """
    CREATE TABLE inventory.profile (
        name text PRIMARY KEY,
        version integer NOT NULL CHECK (version >= 1),
        facts jsonb NOT NULL)
    """,
    """
    CREATE TABLE inventory.source_state (
        name text PRIMARY KEY,
        last_good_at timestamptz,
        last_full_at timestamptz,
        watermark timestamptz,
        failing_since timestamptz,
        last_error text NOT NULL DEFAULT '',
        read_wanted boolean NOT NULL DEFAULT false,
        version integer NOT NULL DEFAULT 0,
        devices_seen integer NOT NULL DEFAULT 0,
        problems jsonb NOT NULL DEFAULT '[]')
    """,
    """
    CREATE TABLE inventory.netbox_writeback (
        netbox_id bigint PRIMARY KEY,
        machine_id text NOT NULL,
        fields jsonb NOT NULL,
        status text CHECK (status IN ('active', 'offline')),
        number integer NOT NULL,
        attempts integer NOT NULL,
        due_at timestamptz NOT NULL,
        last_error text NOT NULL)
    """,
    "CREATE INDEX machine_name ON inventory.machine (name)",
    "CREATE INDEX machine_serial ON inventory.machine (serial)",
    "CREATE INDEX machine_listed ON inventory.machine (site, rack, name)",
    "CREATE INDEX machine_overdue ON inventory.machine (deadline_at) WHERE deadline_at IS NOT NULL",
    "CREATE INDEX machine_validated ON inventory.machine (validated_at) WHERE state = 'AVAILABLE'",
    "CREATE INDEX machine_sick ON inventory.machine (id) WHERE health IN ('SUSPECT', 'FAILED')",
    "CREATE INDEX netbox_writeback_due ON inventory.netbox_writeback (due_at)",
)


def upgrade() -> None:
    bus_tables(op, "inventory")
    op.execute(MACHINE)
    for statement in OTHERS:
        op.execute(statement)
    projection_tables(
        op,
        "inventory",
        [FINDING, "CREATE INDEX finding_open ON {schema}.finding (machine_id) WHERE open"],
    )
    grants(op, "inventory")
