"""Candidates, and each site's DHCP server and leases as they were last seen."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import grants

revision = "0005"
down_revision = "0004"

STATEMENTS = (
    """
    CREATE TABLE inventory.candidate (
        id text PRIMARY KEY,
        site text NOT NULL,
        bmc_mac text NOT NULL,
        address text NOT NULL,
        uuid text NOT NULL,
        state text NOT NULL CHECK (state IN ('NEW', 'IGNORED', 'APPROVED', 'KNOWN')),
        last_seen_at timestamptz NOT NULL,
        version integer NOT NULL CHECK (version >= 1),
        facts jsonb NOT NULL,
        CHECK (state NOT IN ('APPROVED', 'KNOWN') OR facts ->> 'machine_id' IS NOT NULL))
    """,
    "CREATE UNIQUE INDEX candidate_mac ON inventory.candidate (site, bmc_mac) WHERE bmc_mac <> ''",
    "CREATE INDEX candidate_address ON inventory.candidate (site, address)",
    """
    CREATE TABLE inventory.dhcp_server (
        site text PRIMARY KEY,
        observed_at timestamptz NOT NULL,
        seen jsonb NOT NULL)
    """,
    """
    CREATE TABLE inventory.dhcp_lease (
        site text NOT NULL,
        hw_address text NOT NULL,
        ip_address text NOT NULL,
        state text NOT NULL,
        expires_at timestamptz,
        machine_id text,
        observed_at timestamptz NOT NULL,
        seen jsonb NOT NULL,
        PRIMARY KEY (site, hw_address, ip_address))
    """,
    "CREATE INDEX dhcp_lease_machine ON inventory.dhcp_lease (machine_id)",
    "CREATE INDEX machine_bmc_mac ON inventory.machine ((facts ->> 'bmc_mac'))",
    "CREATE INDEX machine_bmc_address ON inventory.machine ((facts ->> 'bmc_address'))",
    "CREATE INDEX machine_told_of ON inventory.machine (id) WHERE facts ->> 'origin' = 'manifest'",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
    grants(op, "inventory")
