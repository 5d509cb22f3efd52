"""The log of a template's run."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import grants

revision = "0002"
down_revision = "0001"

RUN_LINE = """
CREATE TABLE provisioning.run_line (
    run_id text NOT NULL,
    line integer NOT NULL CHECK (line >= 0),
    operation_id text NOT NULL,
    cluster_id text NOT NULL REFERENCES provisioning.cluster (id),
    content text NOT NULL,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (run_id, line))
"""


def upgrade() -> None:
    op.execute(RUN_LINE)
    op.execute("CREATE INDEX run_line_operation ON provisioning.run_line (operation_id, line)")
    grants(op, "provisioning", history=("run_line",))
