"""What the bus keeps besides messages: histories of dead letters, its memory's limit, restores, rebuilds, replays."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_keeping

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    bus_keeping(op, "identity")
