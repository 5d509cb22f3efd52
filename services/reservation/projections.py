"""The pool: inventory's machines as reservation sees them, straight from the machine events. Rebuilt at will.

`eligible` is inventory's own word, taken only together with AVAILABLE and no claim: a contradiction is no good news.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from libs.contracts.inventory import MachineFacts, MachineState
from libs.projection import Projection, upsert_newer
from services.reservation.pool import point
from services.reservation.store import pool_table

MACHINE_EVENTS = "slipway.inventory.machine."


def pool_row(machine: MachineFacts) -> dict[str, Any]:
    """One machine's row."""
    reason = machine.reason.message if machine.reason else ""
    holds = "; ".join(f"{hold.owner}: {hold.reason}" for hold in machine.holds)
    return {
        "machine_id": machine.id,
        "name": machine.name,
        "site": machine.site,
        "rack": machine.rack,
        "rack_point": point(machine.rack),
        "profile": machine.profile or None,
        "state": machine.state.value,
        "eligible": machine.eligible and machine.state is MachineState.AVAILABLE and machine.claim_id is None,
        "claim_id": machine.claim_id,
        "failed_step": machine.failed_step,
        "reason": "; ".join(part for part in (reason, holds) if part),
        "on_hold": bool(machine.holds),
        "version": machine.version,
    }


async def apply_pool(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    """Apply one batch of inventory's events in order."""
    rows = [
        pool_row(MachineFacts.model_validate(event.data["machine"]))
        for event in events
        if event.type.startswith(MACHINE_EVENTS)
    ]
    if rows:
        await upsert_newer(conn, pool_table, rows, key=("machine_id",), version="version")


POOL = Projection("pool", streams=("inventory",), tables=(pool_table,), apply=apply_pool)
PROJECTIONS = (POOL,)
