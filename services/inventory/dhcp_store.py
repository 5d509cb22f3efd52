"""The table and the only SQL of what each machine was last given by its site's DHCP server.

Part of the tables' room beside `store.py`. A machine is looked at again when its version moved, so that a look at a
fleet that rests costs one join.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, DateTime, Integer, Table, Text, and_, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.inventory.discovery_store import dhcp_server_table
from services.inventory.model.machine import Machine
from services.inventory.store import machine_of, machine_table, metadata

PENDING, DONE, REFUSED, FAILED, UNMANAGED = "PENDING", "DONE", "REFUSED", "FAILED", "UNMANAGED"

reservation_table = Table(
    "dhcp_reservation",
    metadata,
    Column("machine_id", Text, primary_key=True),
    Column("site", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("operation_id", Text, nullable=False),
    Column("asked_at", DateTime(timezone=True), nullable=False),
    Column("seen", JSONB, nullable=False),
)


async def due(
    conn: AsyncConnection, failed_before: datetime, limit: int
) -> list[tuple[Machine, dict[str, Any] | None]]:
    """Machines of sites with a DHCP server whose reservations were not looked at since they changed, or failed."""
    r, m = reservation_table.c, machine_table.c
    moved = or_(r.machine_id.is_(None), r.version != m.version)
    again = and_(r.state == FAILED, r.asked_at < failed_before)
    statement = (
        select(m.facts, *reservation_table.c)
        .select_from(machine_table.outerjoin(reservation_table, r.machine_id == m.id))
        .where(m.site.in_(select(dhcp_server_table.c.site)), or_(moved, again))
        .order_by(m.id)
        .limit(limit)
    )
    rows = (await conn.execute(statement)).mappings()
    return [
        (machine_of(row["facts"]), {c.name: row[c.name] for c in r} if row["machine_id"] is not None else None)
        for row in rows
    ]


async def reservation(conn: AsyncConnection, machine_id: str) -> dict[str, Any] | None:
    statement = select(reservation_table).where(reservation_table.c.machine_id == machine_id).with_for_update()
    row = (await conn.execute(statement)).mappings().first()
    return dict(row) if row is not None else None


async def save(conn: AsyncConnection, row: dict[str, Any]) -> None:
    statement = upsert(reservation_table).values(row)
    new = {name: value for name, value in row.items() if name != "machine_id"}
    await conn.execute(statement.on_conflict_do_update(index_elements=["machine_id"], set_=new))


RETRY_AFTER = timedelta(minutes=10)
