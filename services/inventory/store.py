"""Inventory's tables and the only SQL on them.

A machine's row is its facts as one document, with columns for what is looked up, listed or ruled out by
constraints. Saving is guarded by the version; the events of a change leave in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Computed,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.errors import Transient
from libs.contracts.inventory import Health, MachineState, ProfileFacts
from services.inventory.model.holds import health_of
from services.inventory.model.machine import Change, Machine
from services.inventory.model.source import Known, written_fields

metadata = MetaData(schema="inventory")

machine_table = Table(
    "machine",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("rack", Text, nullable=False),
    Column("rack_id", Text, nullable=False),
    Column("profile", Text),
    Column("device_type", Text, nullable=False),
    Column("serial", Text, nullable=False),
    Column("netbox_id", BigInteger),
    Column("state", Text, nullable=False),
    Column("failed_step", Text, nullable=False),
    Column("health", Text, nullable=False),
    Column("eligible", Boolean, nullable=False),
    Column("claim_id", Text),
    Column("operation_id", Text),
    Column("state_since", DateTime(timezone=True), nullable=False),
    Column("deadline_at", DateTime(timezone=True)),
    Column("validated_at", DateTime(timezone=True)),
    Column("version", Integer, nullable=False),
    Column("facts", JSONB, nullable=False),
    # Made by the database from the facts, for lists.
    Column("held", Boolean, Computed("(coalesce(jsonb_array_length(facts -> 'holds'), 0) > 0)"), nullable=False),
    Column("tenant", Text, Computed("coalesce(facts ->> 'tenant', '-')"), nullable=False),
    Column("cluster_id", Text, Computed("facts ->> 'cluster_id'")),
    Column("search", Text, Computed("see migration 0006"), nullable=False),
)
_WRITTEN = tuple(c.name for c in machine_table.c if c.computed is None and c.name != "facts")
site_table = Table(
    "site",
    metadata,
    Column("slug", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("netbox_id", BigInteger),
    Column("satellite_seen_at", DateTime(timezone=True)),
    Column("version", Integer, nullable=False),
)
rack_table = Table(
    "rack",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("netbox_id", BigInteger),
    Column("version", Integer, nullable=False),
)
device_type_table = Table(
    "device_type",
    metadata,
    Column("slug", Text, primary_key=True),
    Column("manufacturer", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("netbox_id", BigInteger),
    Column("version", Integer, nullable=False),
)
profile_table = Table(
    "profile",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("facts", JSONB, nullable=False),
)
source_table = Table(
    "source_state",
    metadata,
    Column("name", Text, primary_key=True),
    Column("last_good_at", DateTime(timezone=True)),
    Column("last_full_at", DateTime(timezone=True)),
    Column("watermark", DateTime(timezone=True)),
    Column("failing_since", DateTime(timezone=True)),
    Column("last_error", Text, nullable=False, server_default=""),
    Column("read_wanted", Boolean, nullable=False, server_default="false"),
    Column("version", Integer, nullable=False, server_default="0"),
    Column("devices_seen", Integer, nullable=False, server_default="0"),
    Column("problems", JSONB, nullable=False, server_default="[]"),
)
writeback_table = Table(
    "netbox_writeback",
    metadata,
    Column("netbox_id", BigInteger, primary_key=True),
    Column("machine_id", Text, nullable=False),
    Column("fields", JSONB, nullable=False),
    Column("status", Text),
    Column("number", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", DateTime(timezone=True), nullable=False),
    Column("last_error", Text, nullable=False),
)
# Filled by the projection of validation's findings alone.
finding_table = Table(
    "finding",
    metadata,
    Column("id", Text, primary_key=True),
    Column("machine_id", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
)

NETBOX_SOURCE = "netbox"


def written_row(machine: Machine) -> dict[str, Any]:
    return {**{name: getattr(machine, name) for name in _WRITTEN}, "facts": machine.model_dump(mode="json")}


def machine_of(facts: dict[str, Any]) -> Machine:
    return Machine.model_validate(facts)


async def load(conn: AsyncConnection, machine_id: str) -> Machine | None:
    facts = (await conn.execute(select(machine_table.c.facts).where(machine_table.c.id == machine_id))).scalar()
    return machine_of(facts) if facts else None


async def lock(conn: AsyncConnection, machine_id: str) -> Machine | None:
    """The machine, locked until the end of the transaction."""
    statement = select(machine_table.c.facts).where(machine_table.c.id == machine_id).with_for_update()
    facts = (await conn.execute(statement)).scalar()
    return machine_of(facts) if facts else None


async def find(conn: AsyncConnection, id_or_name: str) -> list[Machine]:
    """The machine with this id, else those with this name (names may be shared between sites)."""
    by_id = await load(conn, id_or_name)
    if by_id is not None:
        return [by_id]
    rows = await conn.execute(select(machine_table.c.facts).where(machine_table.c.name == id_or_name))
    return [machine_of(facts) for facts in rows.scalars()]


async def save(ctx: Context, before: Machine | None, change: Change) -> None:
    """Write the change, emit its events, ask for the write-back. Raises Transient when somebody was faster."""
    after = change.machine
    if before is None:
        done = await ctx.conn.execute(upsert(machine_table).on_conflict_do_nothing(), [written_row(after)])
    elif after == before:
        return
    else:
        statement = update(machine_table).where(machine_table.c.id == after.id)
        done = await ctx.conn.execute(statement.where(machine_table.c.version == before.version), written_row(after))
    if done.rowcount != 1:
        raise Transient(f"machine {after.id} was changed by somebody else")
    for event in change.events:
        ctx.emit(event, entity_id=after.id, entity_version=event.machine.version, site=event.machine.site)
    await _want_written(ctx, before, after)


async def _want_written(ctx: Context, before: Machine | None, after: Machine) -> None:
    if after.netbox_id is None:
        return
    enrolled = (
        after.netbox_status == "staged"
        and after.state is MachineState.AVAILABLE
        and (before is None or before.state is not MachineState.AVAILABLE)
    )
    left = after.state is MachineState.RETIRED and (before is None or before.state is not MachineState.RETIRED)
    fields = written_fields(after)
    if before is not None and written_fields(before) == fields and not enrolled:
        return
    await want_written(ctx, after, status="active" if enrolled else "offline" if left else None)


async def want_written(ctx: Context, machine: Machine, status: str | None = None) -> None:
    """Queue our fields for NetBox; what waits for the same device is replaced."""
    row = {
        "netbox_id": machine.netbox_id,
        "machine_id": machine.id,
        "fields": written_fields(machine),
        "status": status,
        "number": machine.version,
        "attempts": 0,
        "due_at": ctx.now,
        "last_error": "",
    }
    statement = upsert(writeback_table).values(row)
    new = statement.excluded
    statement = statement.on_conflict_do_update(
        index_elements=["netbox_id"],
        set_={
            "machine_id": new.machine_id,
            "fields": new.fields,
            "status": func.coalesce(new.status, writeback_table.c.status),
            "number": func.greatest(new.number, writeback_table.c.number + 1),
            "due_at": func.least(new.due_at, writeback_table.c.due_at),
        },
    )
    await ctx.conn.execute(statement)


async def found_health(conn: AsyncConnection, machine_id: str) -> Health:
    """What the open findings say about a machine."""
    statement = select(finding_table.c.severity).where(finding_table.c.machine_id == machine_id, finding_table.c.open)
    return health_of((await conn.execute(statement)).scalars())


async def health_candidates(conn: AsyncConnection) -> list[str]:
    """Machines whose health may differ from what the findings say now."""
    reported = select(finding_table.c.machine_id).where(finding_table.c.open)
    sick = machine_table.c.health.in_([Health.SUSPECT.value, Health.FAILED.value])
    statement = select(machine_table.c.id).where(or_(sick, machine_table.c.id.in_(reported)))
    return list((await conn.execute(statement)).scalars())


async def overdue(conn: AsyncConnection, now: datetime, limit: int = 100) -> list[str]:
    """Machines that are longer in their state than it may last."""
    statement = (
        select(machine_table.c.id)
        .where(machine_table.c.deadline_at < now)
        .order_by(machine_table.c.deadline_at)
        .limit(limit)
    )
    return list((await conn.execute(statement)).scalars())


async def validated_before(conn: AsyncConnection, moment: datetime, limit: int) -> list[str]:
    """AVAILABLE machines whose last PASS is older than `moment`, oldest first."""
    statement = (
        select(machine_table.c.id)
        .where(machine_table.c.state == MachineState.AVAILABLE.value, machine_table.c.validated_at < moment)
        .order_by(machine_table.c.validated_at)
        .limit(limit)
    )
    return list((await conn.execute(statement)).scalars())


async def known_machines(conn: AsyncConnection) -> list[Known]:
    """Every machine's identifying values as its source has them."""
    facts = machine_table.c.facts
    statement = select(
        machine_table.c.id,
        machine_table.c.name,
        machine_table.c.site,
        facts["theirs"]["serial"].astext.label("serial"),
        facts["bmc_address"].astext.label("bmc_address"),
        facts["bmc_mac"].astext.label("bmc_mac"),
        facts["nic_macs"].label("nic_macs"),
    ).where(machine_table.c.state != MachineState.RETIRED.value)
    rows = (await conn.execute(statement)).all()
    return [
        Known(r.id, r.name, r.site, r.serial or "", r.bmc_address or "", tuple({*r.nic_macs, r.bmc_mac} - {""}))
        for r in rows
    ]


async def machine_keys(conn: AsyncConnection) -> tuple[dict[int, str], set[str]]:
    """NetBox device id → machine id, and all machine ids."""
    rows = (await conn.execute(select(machine_table.c.id, machine_table.c.netbox_id))).all()
    return {row.netbox_id: row.id for row in rows if row.netbox_id is not None}, {row.id for row in rows}


async def held_as_duplicates(conn: AsyncConnection) -> list[str]:
    """Machines that are held because they share something (candidates for letting go)."""
    pattern = machine_table.c.facts["holds"].astext.contains("is also that of")
    return list((await conn.execute(select(machine_table.c.id).where(pattern))).scalars())


async def profiles(conn: AsyncConnection) -> list[ProfileFacts]:
    rows = await conn.execute(select(profile_table.c.facts).order_by(profile_table.c.name))
    return [ProfileFacts.model_validate(facts) for facts in rows.scalars()]


async def profile(conn: AsyncConnection, name: str, *, for_update: bool = False) -> ProfileFacts | None:
    statement = select(profile_table.c.facts).where(profile_table.c.name == name)
    facts = (await conn.execute(statement.with_for_update() if for_update else statement)).scalar()
    return ProfileFacts.model_validate(facts) if facts else None


async def save_profile(conn: AsyncConnection, facts: ProfileFacts) -> None:
    row = {"name": facts.name, "version": facts.version, "facts": facts.model_dump(mode="json")}
    statement = upsert(profile_table).values(row)
    new = {"version": facts.version, "facts": row["facts"]}
    await conn.execute(statement.on_conflict_do_update(index_elements=["name"], set_=new))


async def device_model(conn: AsyncConnection, slug: str) -> str:
    """The device type's model in words, "" when it is not known."""
    statement = select(device_type_table.c.model).where(device_type_table.c.slug == slug)
    return str((await conn.execute(statement)).scalar() or "")


async def load_all(conn: AsyncConnection, machine_ids: Iterable[str]) -> list[Machine]:
    statement = select(machine_table.c.facts).where(machine_table.c.id.in_(list(machine_ids)))
    return [machine_of(facts) for facts in (await conn.execute(statement)).scalars()]


async def machines_where(conn: AsyncConnection, *conditions: Any, limit: int | None = None) -> list[Machine]:
    statement = select(machine_table.c.facts).where(*conditions).order_by(machine_table.c.name).limit(limit)
    return [machine_of(facts) for facts in (await conn.execute(statement)).scalars()]


async def rows_by_key(conn: AsyncConnection, table: Table, key: str) -> dict[str, dict[str, Any]]:
    """All rows of a small table (sites, racks, device types) by their key."""
    return {row[key]: dict(row) for row in (await conn.execute(select(table))).mappings()}


async def put_row(conn: AsyncConnection, table: Table, key: str, row: dict[str, Any]) -> None:
    statement = upsert(table).values(row)
    new = {name: value for name, value in row.items() if name != key}
    await conn.execute(statement.on_conflict_do_update(index_elements=[key], set_=new))


async def source_state(conn: AsyncConnection, name: str = NETBOX_SOURCE) -> dict[str, Any]:
    """How reading the source goes; made when it is not there."""
    await conn.execute(upsert(source_table).values(name=name).on_conflict_do_nothing())
    return dict((await conn.execute(select(source_table).where(source_table.c.name == name))).mappings().one())


async def set_source_state(conn: AsyncConnection, name: str = NETBOX_SOURCE, **values: Any) -> None:
    await conn.execute(update(source_table).where(source_table.c.name == name).values(**values))


async def due_writes(conn: AsyncConnection, now: datetime, limit: int) -> list[dict[str, Any]]:
    statement = (
        select(writeback_table).where(writeback_table.c.due_at <= now).order_by(writeback_table.c.due_at).limit(limit)
    )
    return [dict(row) for row in (await conn.execute(statement)).mappings()]


async def written(conn: AsyncConnection, rows: Iterable[dict[str, Any]]) -> None:
    """Forget what was written, unless something newer waits for the same device."""
    for row in rows:
        same = (writeback_table.c.netbox_id == row["netbox_id"], writeback_table.c.number == row["number"])
        await conn.execute(writeback_table.delete().where(*same))


async def write_failed(conn: AsyncConnection, row: dict[str, Any], error: str, due_at: datetime) -> None:
    statement = update(writeback_table).where(writeback_table.c.netbox_id == row["netbox_id"])
    await conn.execute(statement.values(attempts=row["attempts"] + 1, last_error=error[:2000], due_at=due_at))


async def add_machines(ctx: Context, changes: Sequence[Change]) -> None:
    """Register new machines, many at once."""
    if not changes:
        return
    await ctx.conn.execute(insert(machine_table), [written_row(change.machine) for change in changes])
    for change in changes:
        machine = change.machine
        for event in change.events:
            ctx.emit(event, entity_id=machine.id, entity_version=event.machine.version, site=machine.site)
        if machine.netbox_id is not None:
            await want_written(ctx, machine)
