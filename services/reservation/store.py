"""Tables of reservation and the only SQL on its own state. The pool's table is filled by `projections`, read by `pool`.

Invariant kept by the database: a machine has at most one live claim (`claim_live_machine`), and a claim's columns
agree with its state. Expiry is judged by the database's clock alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Computed,
    DateTime,
    ForeignKey,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.errors import Transient
from libs.contracts.replies import Problem
from libs.contracts.reservation import ClaimState
from services.reservation.model import Claim, Reservation

metadata = MetaData(schema="reservation")

reservation_table = Table(
    "reservation",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("site", Text),
    Column("count", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("ttl_seconds", Integer, nullable=False),
    Column("cluster_id", Text),
    Column("expires_at", DateTime(timezone=True)),
    Column("refusal", JSONB(none_as_null=True)),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("version", Integer, nullable=False),
)

claim_table = Table(
    "claim",
    metadata,
    Column("id", Text, primary_key=True),
    Column("reservation_id", Text, ForeignKey("reservation.reservation.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("machine_name", Text, nullable=False),
    Column("machine_version", Integer, nullable=False),
    Column("site", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("live", Boolean, Computed("state IN ('HELD', 'CLAIMED', 'RETURNING')", persisted=True)),
    Column("accepted_version", Integer),
    Column("expires_at", DateTime(timezone=True)),
    Column("ended_because", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
)

pool_table = Table(
    "pool",
    metadata,
    Column("machine_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("rack", Text, nullable=False),
    Column("profile", Text),
    Column("state", Text, nullable=False),
    Column("eligible", Boolean, nullable=False),
    Column("claim_id", Text),
    Column("failed_step", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("on_hold", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
)


async def load(conn: AsyncConnection, reservation_id: str) -> Reservation | None:
    """The reservation with its claims as committed; None when there is none."""
    row = (await conn.execute(select(reservation_table).where(reservation_table.c.id == reservation_id))).one_or_none()
    return None if row is None else await _with_claims(conn, row)


async def lock(
    conn: AsyncConnection, reservation_id: str, *, skip_locked: bool = False
) -> tuple[Reservation, datetime] | None:
    """The reservation, locked until the end of the transaction, and the database's time.

    None when there is none, or (`skip_locked`) when somebody else is at it.
    """
    statement = (
        select(reservation_table, func.now().label("db_now"))
        .where(reservation_table.c.id == reservation_id)
        .with_for_update(skip_locked=skip_locked)
    )
    row = (await conn.execute(statement)).one_or_none()
    return None if row is None else (await _with_claims(conn, row), row.db_now)


async def _with_claims(conn: AsyncConnection, row: Row[Any]) -> Reservation:
    statement = select(claim_table).where(claim_table.c.reservation_id == row.id).order_by(claim_table.c.position)
    claims = tuple(claim_of(each) for each in (await conn.execute(statement)).all())
    return Reservation(
        id=row.id,
        tenant=row.tenant,
        profile=row.profile,
        site=row.site,
        count=row._mapping["count"],  # Row.count is the tuple's method
        state=ClaimState(row.state),
        ttl_seconds=row.ttl_seconds,
        created_at=row.created_at,
        cluster_id=row.cluster_id,
        expires_at=row.expires_at,
        refusal=Problem.model_validate(row.refusal) if row.refusal is not None else None,
        version=row.version,
        claims=claims,
    )


def claim_of(row: Row[Any]) -> Claim:
    return Claim(
        id=row.id,
        machine_id=row.machine_id,
        machine_name=row.machine_name,
        machine_version=row.machine_version,
        site=row.site,
        state=ClaimState(row.state),
        accepted_version=row.accepted_version,
        expires_at=row.expires_at,
        ended_because=row.ended_because,
    )


def _columns(reservation: Reservation) -> dict[str, Any]:
    return {
        "site": reservation.site,
        "state": reservation.state.value,
        "expires_at": reservation.expires_at,
        "refusal": reservation.refusal.model_dump(mode="json") if reservation.refusal else None,
        "version": reservation.version,
    }


async def add(conn: AsyncConnection, reservation: Reservation) -> None:
    """Insert a new reservation without claims; `pool.take` adds those."""
    await conn.execute(
        insert(reservation_table).values(
            id=reservation.id,
            tenant=reservation.tenant,
            profile=reservation.profile,
            count=reservation.count,
            ttl_seconds=reservation.ttl_seconds,
            cluster_id=reservation.cluster_id,
            created_at=reservation.created_at,
            **_columns(reservation),
        )
    )


async def save(conn: AsyncConnection, before: Reservation, after: Reservation) -> None:
    """Write what changed. Raises Transient when somebody was faster. New claims are in the table already."""
    guarded = (
        update(reservation_table)
        .where(reservation_table.c.id == before.id, reservation_table.c.version == before.version)
        .values(**_columns(after))
    )
    if (await conn.execute(guarded)).rowcount != 1:
        raise Transient(f"reservation {before.id} is not at version {before.version} any more")
    known = {claim.id: claim for claim in before.claims}
    for claim in after.claims:
        old = known.get(claim.id)
        if old is not None and old != claim:
            await _save_claim(conn, old, claim)


async def _save_claim(conn: AsyncConnection, old: Claim, new: Claim) -> None:
    guarded = (
        update(claim_table)
        .where(claim_table.c.id == old.id, claim_table.c.state == old.state.value)
        .values(
            state=new.state.value,
            accepted_version=new.accepted_version,
            expires_at=new.expires_at,
            ended_because=new.ended_because,
        )
    )
    if (await conn.execute(guarded)).rowcount != 1:
        raise Transient(f"claim {old.id} is not {old.state} any more")


async def seen_in_use(conn: AsyncConnection, claims: Sequence[Claim]) -> set[str]:
    """Ids of those claims whose machine the pool has seen change since it was held, or carry the claim."""
    if not claims:
        return set()
    statement = (
        select(claim_table.c.id)
        .join(pool_table, pool_table.c.machine_id == claim_table.c.machine_id)
        .where(
            claim_table.c.id.in_([claim.id for claim in claims]),
            (pool_table.c.claim_id == claim_table.c.id) | (pool_table.c.version > claim_table.c.machine_version),
        )
    )
    return set((await conn.execute(statement)).scalars())


async def past_their_limit(conn: AsyncConnection, most: int) -> list[str]:
    """Ids of reservations with a claim that is HELD past its limit by the database's clock."""
    statement = (
        select(claim_table.c.reservation_id)
        .where(claim_table.c.state == "HELD", claim_table.c.expires_at <= func.now())
        .distinct()
        .limit(most)
    )
    return list((await conn.execute(statement)).scalars())


# Inventory's states in which a machine that does not carry the claim any more is surely back or kept out of the pool.
# RELEASING, SANITIZING and VALIDATING are not among them: the machine is still on its way back.
RETURNED_STATES = ("AVAILABLE", "QUARANTINED", "REMEDIATING", "MAINTENANCE", "FAILED", "DECOMMISSIONING", "RETIRED")


async def returned(conn: AsyncConnection, most: int) -> dict[str, set[str]]:
    """RETURNING claims whose machine is back, by reservation id.

    Back means: seen at a version newer than the accepted (or held) one, without this claim, in a settled state. A
    machine the pool does not know is not back.
    """
    statement = (
        select(claim_table.c.reservation_id, claim_table.c.id)
        .join(pool_table, pool_table.c.machine_id == claim_table.c.machine_id)
        .where(
            claim_table.c.state == "RETURNING",
            pool_table.c.version > func.coalesce(claim_table.c.accepted_version, claim_table.c.machine_version),
            pool_table.c.claim_id.is_distinct_from(claim_table.c.id),
            pool_table.c.state.in_(RETURNED_STATES),
        )
        .limit(most)
    )
    found: dict[str, set[str]] = {}
    for row in (await conn.execute(statement)).all():
        found.setdefault(row.reservation_id, set()).add(row.id)
    return found
