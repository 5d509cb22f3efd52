"""What NetBox was last known to show of our fields, hints of its webhooks, an index of what people ask for there."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import grants

revision = "0003"
down_revision = "0002"

STATEMENTS = (
    """
    CREATE TABLE inventory.netbox_shown (
        netbox_id bigint PRIMARY KEY,
        shows jsonb,
        sent jsonb NOT NULL,
        sent_at timestamptz NOT NULL)
    """,
    """
    CREATE TABLE inventory.netbox_hint (
        netbox_id bigint PRIMARY KEY,
        hinted_at timestamptz NOT NULL,
        due_at timestamptz NOT NULL,
        number integer NOT NULL CHECK (number >= 1),
        why text NOT NULL)
    """,
    "CREATE INDEX netbox_hint_due ON inventory.netbox_hint (hinted_at)",
    """
    CREATE INDEX machine_wished ON inventory.machine (id)
        WHERE state <> 'RETIRED' AND ((facts ->> 'netbox_status') NOT IN ('staged', 'active')
                                      OR (facts ->> 'drifts') <> '[]')
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
    grants(op, "inventory")
