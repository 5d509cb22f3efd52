"""What is remembered between two readings of NetBox: what it showed of our fields, and which devices to read again.

Part of the tables' room beside `store.py`: here is what only the reading and the writing back need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Integer, Table, Text, delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.inventory import MachineState
from services.inventory.store import machine_table, metadata

# `shows`: our fields as NetBox was last known to show them; `sent`: what we last asked it to show, at `sent_at`. A
# write whose answer was lost may have been done, so both explain what is found there.
shown_table = Table(
    "netbox_shown",
    metadata,
    Column("netbox_id", BigInteger, primary_key=True),
    Column("shows", JSONB),
    Column("sent", JSONB, nullable=False),
    Column("sent_at", DateTime(timezone=True), nullable=False),
)
# Devices that NetBox said have changed. One row a device: many hints ask for one reading.
hint_table = Table(
    "netbox_hint",
    metadata,
    Column("netbox_id", BigInteger, primary_key=True),
    Column("hinted_at", DateTime(timezone=True), nullable=False),
    Column("due_at", DateTime(timezone=True), nullable=False),
    Column("number", Integer, nullable=False),
    Column("why", Text, nullable=False),
)

Fields = Mapping[str, str | None]


async def sending(conn: AsyncConnection, fields: Mapping[int, Fields], now: datetime) -> None:
    """Remember what is about to be written, before it is."""
    for netbox_id, sent in fields.items():
        statement = upsert(shown_table).values(netbox_id=netbox_id, sent=dict(sent), sent_at=now)
        changed = {"sent": statement.excluded.sent, "sent_at": statement.excluded.sent_at}
        await conn.execute(statement.on_conflict_do_update(index_elements=["netbox_id"], set_=changed))


async def shows(conn: AsyncConnection, netbox_id: int, fields: Fields) -> None:
    """NetBox is known to show `fields`: it said so, or took them."""
    statement = shown_table.update().where(shown_table.c.netbox_id == netbox_id)
    await conn.execute(statement.values(shows=dict(fields)))


async def shown(conn: AsyncConnection, netbox_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """What is remembered of these devices, by NetBox's id; a device that we never wrote to is not in it."""
    statement = select(shown_table).where(shown_table.c.netbox_id.in_(list(netbox_ids)))
    return {row["netbox_id"]: dict(row) for row in (await conn.execute(statement)).mappings()}


async def hint(conn: AsyncConnection, netbox_ids: Iterable[int], why: str, now: datetime) -> None:
    """Have these devices read again soon."""
    for netbox_id in sorted(set(netbox_ids)):
        row = {"netbox_id": netbox_id, "hinted_at": now, "due_at": now, "number": 1, "why": why[:200]}
        statement = upsert(hint_table).values(row)
        # A new hint while the device is being read asks for one more reading: the number tells.
        changed = {
            "number": hint_table.c.number + 1,
            "due_at": statement.excluded.due_at,
            "why": statement.excluded.why,
        }
        await conn.execute(statement.on_conflict_do_update(index_elements=["netbox_id"], set_=changed))


async def hinted(conn: AsyncConnection, now: datetime, limit: int) -> dict[int, int]:
    """Devices to read again now, oldest hint first: NetBox's id → number of the hint."""
    statement = select(hint_table.c.netbox_id, hint_table.c.number).where(hint_table.c.due_at <= now)
    rows = await conn.execute(statement.order_by(hint_table.c.hinted_at).limit(limit))
    return {row.netbox_id: row.number for row in rows}


async def followed(conn: AsyncConnection, hints: Mapping[int, int]) -> None:
    """Forget hints that were followed, unless a newer one came meanwhile."""
    if hints:
        pair = tuple_(hint_table.c.netbox_id, hint_table.c.number)
        await conn.execute(delete(hint_table).where(pair.in_(list(hints.items()))))


async def put_off(conn: AsyncConnection, hints: Iterable[int], until: datetime) -> None:
    """NetBox can't be read now: try these again later."""
    await conn.execute(hint_table.update().where(hint_table.c.netbox_id.in_(list(hints))).values(due_at=until))


# Word for word the predicate of the index `machine_wished`, with its values written out: or it is not used.
WISHED = text(
    "state <> 'RETIRED' AND ((facts ->> 'netbox_status') NOT IN ('staged', 'active') OR (facts ->> 'drifts') <> '[]')"
)


async def with_wishes(conn: AsyncConnection) -> Sequence[str]:
    """Machines of NetBox's whose status there asks for something, or that NetBox contradicts."""
    statement = select(machine_table.c.id).where(WISHED, machine_table.c.netbox_id.is_not(None))
    return list((await conn.execute(statement.order_by(machine_table.c.id))).scalars())


async def leaving(conn: AsyncConnection) -> int:
    """How many machines are DECOMMISSIONING."""
    state = machine_table.c.state == MachineState.DECOMMISSIONING.value
    return (await conn.execute(select(func.count()).select_from(machine_table).where(state))).scalar_one()
