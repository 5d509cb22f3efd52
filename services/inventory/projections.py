"""Validation's findings, kept as far as they decide a machine's health. Rebuilt at will from validation's events."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from libs.projection import Projection, upsert_newer
from services.inventory.store import finding_table

FINDING_EVENTS = "slipway.validation.finding."


async def apply_findings(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    """Apply one batch of validation's events, in order."""
    rows = [
        {name: event.data["finding"][name] for name in ("id", "machine_id", "severity", "open", "version")}
        for event in events
        if event.type.startswith(FINDING_EVENTS)
    ]
    if rows:
        await upsert_newer(conn, finding_table, rows, key=("id",), version="version")


FINDINGS = Projection("findings", streams=("validation",), tables=(finding_table,), apply=apply_findings)
PROJECTIONS = (FINDINGS,)
