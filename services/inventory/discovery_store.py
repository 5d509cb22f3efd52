"""Tables and the only SQL of discovery: candidates, and each site's DHCP server as it was last seen.

Part of the tables' room beside `store.py`. Who changes a site's candidates or expected machines holds the site's lock,
so that two operators and a scan do not make one thing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Column, DateTime, Integer, Table, Text, case, delete, func, or_, select
from sqlalchemy.dialects.postgresql import JSONB, array
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.contracts.dhcp import DhcpObserved, LeaseObserved
from libs.contracts.discovery import CandidateFacts, CandidateUpdated
from libs.contracts.hardware_ids import serial_number
from libs.contracts.inventory import MachineState
from services.inventory.model.candidates import KnownBmc, Sighting
from services.inventory.model.expected import MANIFEST, ExpectedMachine
from services.inventory.model.machine import Machine
from services.inventory.store import machine_of, machine_table, metadata

candidate_table = Table(
    "candidate",
    metadata,
    Column("id", Text, primary_key=True),
    Column("site", Text, nullable=False),
    Column("bmc_mac", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("uuid", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("last_seen_at", DateTime(timezone=True), nullable=False),
    Column("version", Integer, nullable=False),
    Column("facts", JSONB, nullable=False),
)
dhcp_server_table = Table(
    "dhcp_server",
    metadata,
    Column("site", Text, primary_key=True),
    Column("observed_at", DateTime(timezone=True), nullable=False),
    Column("seen", JSONB, nullable=False),
)
lease_table = Table(
    "dhcp_lease",
    metadata,
    Column("site", Text, primary_key=True),
    Column("hw_address", Text, primary_key=True),
    Column("ip_address", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("machine_id", Text),
    Column("observed_at", DateTime(timezone=True), nullable=False),
    Column("seen", JSONB, nullable=False),
)


async def lock_site(conn: AsyncConnection, site: str) -> None:
    """One at a time for what is discovered or expected at the site, until the end of the transaction."""
    await conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"inventory.expected:{site}", 0))))


async def bmcs_like(conn: AsyncConnection, seen: Sighting) -> list[KnownBmc]:
    """Machines that may have this BMC: by its MAC anywhere, by its address at its site."""
    facts, columns = machine_table.c.facts, machine_table.c
    same_mac = facts["bmc_mac"].astext == seen.bmc_mac
    same_address = (columns.site == seen.site) & (facts["bmc_address"].astext == seen.address)
    statement = select(
        columns.id, columns.name, facts["bmc_mac"].astext.label("mac"), facts["bmc_address"].astext.label("address")
    ).where(or_(same_mac, same_address) if seen.bmc_mac else same_address, columns.state != MachineState.RETIRED.value)
    rows = await conn.execute(statement.order_by(columns.name))
    return [KnownBmc(row.id, row.name, row.mac or "", row.address or "") for row in rows]


async def machines_like(conn: AsyncConnection, rows: Sequence[ExpectedMachine]) -> list[Machine]:
    """Machines that share a key with one of the rows: name or BMC address at its site, serial number, a MAC."""
    if not rows:
        return []
    facts, columns = machine_table.c.facts, machine_table.c
    macs = [*{mac for row in rows for mac in (*row.nic_macs, row.bmc_mac) if mac}]
    serials = [*{form for row in rows for form in (row.serial, serial_number(row.serial))}]
    at_site = columns.site.in_({row.site for row in rows})
    statement = select(facts).where(
        or_(
            func.upper(columns.serial).in_(serials),
            columns.serial.in_(serials),
            at_site & columns.name.in_([row.name for row in rows]),
            at_site & facts["bmc_address"].astext.in_([row.bmc_address for row in rows]),
            facts["bmc_mac"].astext.in_(macs),
            facts["nic_macs"].has_any(array(macs, type_=Text)),
        ),
        columns.state != MachineState.RETIRED.value,
    )
    return [machine_of(found) for found in (await conn.execute(statement)).scalars()]


async def told_of(conn: AsyncConnection) -> list[Machine]:
    """Machines that people told of and no source of record has yet."""
    facts = machine_table.c.facts
    statement = select(facts).where(facts["origin"].astext == MANIFEST, machine_table.c.netbox_id.is_(None))
    return [machine_of(found) for found in (await conn.execute(statement)).scalars()]


async def candidates_like(conn: AsyncConnection, seen: Sighting) -> list[CandidateFacts]:
    """Candidates of the site that share a key with it, latest first."""
    columns = candidate_table.c
    same = [columns.address == seen.address]
    same += [columns.bmc_mac == seen.bmc_mac] if seen.bmc_mac else []
    same += [columns.uuid == seen.uuid] if seen.uuid else []
    statement = select(columns.facts).where(columns.site == seen.site, or_(*same)).order_by(columns.last_seen_at.desc())
    return [CandidateFacts.model_validate(facts) for facts in (await conn.execute(statement)).scalars()]


async def candidate(conn: AsyncConnection, candidate_id: str, *, lock: bool = False) -> CandidateFacts | None:
    statement = select(candidate_table.c.facts).where(candidate_table.c.id == candidate_id)
    facts = (await conn.execute(statement.with_for_update() if lock else statement)).scalar()
    return CandidateFacts.model_validate(facts) if facts else None


async def save_candidate(ctx: Context, before: CandidateFacts | None, after: CandidateFacts) -> None:
    """Keep it; an event when more than the time it was last seen changed."""
    if after == before:
        return
    row = {
        name: getattr(after, name) for name in ("id", "site", "bmc_mac", "address", "uuid", "last_seen_at", "version")
    }
    row |= {"state": after.state.value, "facts": after.model_dump(mode="json")}
    statement = upsert(candidate_table).values(row)
    new = {name: value for name, value in row.items() if name != "id"}
    await ctx.conn.execute(statement.on_conflict_do_update(index_elements=["id"], set_=new))
    if before is None or after.version != before.version:
        event = CandidateUpdated(candidate=after)
        ctx.emit(event, entity_id=after.id, entity_version=after.version, site=after.site)


async def save_dhcp_server(conn: AsyncConnection, seen: DhcpObserved) -> None:
    """Keep the newest; what could not be looked at keeps the problems known before, and says since when."""
    row = {"site": seen.site, "observed_at": seen.observed_at, "seen": seen.model_dump(mode="json")}
    statement = upsert(dhcp_server_table).values(row)
    new = statement.excluded
    failed = func.jsonb_build_object("error", new.seen["error"], "observed_at", new.seen["observed_at"])
    kept = dhcp_server_table.c.seen.op("||", return_type=JSONB)(failed)
    merged = case((new.seen["error"].astext == "", new.seen), else_=kept)
    await conn.execute(
        statement.on_conflict_do_update(
            index_elements=["site"],
            set_={"observed_at": new.observed_at, "seen": merged},
            where=dhcp_server_table.c.observed_at < new.observed_at,
        )
    )


async def save_lease(conn: AsyncConnection, seen: LeaseObserved) -> None:
    """Keep the newest word on one lease."""
    row = {name: getattr(seen, name) for name in ("site", "hw_address", "ip_address", "expires_at", "machine_id")}
    row |= {"state": seen.state, "observed_at": seen.observed_at, "seen": seen.model_dump(mode="json")}
    statement = upsert(lease_table).values(row)
    keys = ["site", "hw_address", "ip_address"]
    newer = {name: statement.excluded[name] for name in row if name not in keys}
    older = lease_table.c.observed_at < statement.excluded.observed_at
    await conn.execute(statement.on_conflict_do_update(index_elements=keys, set_=newer, where=older))


async def forget_leases(conn: AsyncConnection, before: datetime) -> int:
    """Drop leases that ended long ago, or that no site has repeated."""
    ended = or_(lease_table.c.expires_at < before, lease_table.c.observed_at < before)
    return (await conn.execute(delete(lease_table).where(ended))).rowcount
