"""Resource providers as sites' Placements show them."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import grants

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE inventory.provider_seen (
            machine_id text PRIMARY KEY,
            site text NOT NULL,
            total integer NOT NULL,
            reserved integer NOT NULL,
            consumers jsonb NOT NULL,
            observed_at timestamptz NOT NULL)
        """
    )
    grants(op, "inventory")
