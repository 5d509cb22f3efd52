"""What each machine was last given by its site's DHCP server."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import grants

revision = "0007"
down_revision = "0006"

STATEMENTS = (
    """
    CREATE TABLE inventory.dhcp_reservation (
        machine_id text PRIMARY KEY,
        site text NOT NULL,
        name text NOT NULL,
        version integer NOT NULL,
        digest text NOT NULL,
        state text NOT NULL CHECK (state IN ('PENDING', 'DONE', 'REFUSED', 'FAILED', 'UNMANAGED')),
        operation_id text NOT NULL,
        asked_at timestamptz NOT NULL,
        seen jsonb NOT NULL)
    """,
    "CREATE INDEX dhcp_reservation_trouble ON inventory.dhcp_reservation (asked_at) WHERE state <> 'DONE'",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
    grants(op, "inventory")
