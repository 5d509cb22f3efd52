"""Tables of reservation and the only SQL on its own state. The pool's table is filled by `projections`, read by `pool`.

Invariant kept by the database: a machine has at most one live claim (`claim_live_machine`), and a claim's columns
agree with its state. Expiry is judged by the database's clock alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
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
    any_,
    bindparam,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
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
    Column(
        "reservation_id",
        Text,
        # Deferred: a reservation is written once, when it is known whether its machines could be held.
        ForeignKey("reservation.reservation.id", deferrable=True, initially="DEFERRED"),
        nullable=False,
    ),
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
    Column("rack_point", BigInteger, nullable=False),
    Column("profile", Text),
    Column("state", Text, nullable=False),
    Column("eligible", Boolean, nullable=False),
    Column("claim_id", Text),
    Column("failed_step", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("on_hold", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
)


@dataclass(frozen=True)
class Locked:
    """A reservation that is ours until the end of the transaction.

    `now` is the database's time; `in_use` the ids of claims whose machine the pool has seen change since it was held,
    or carry the claim.
    """

    reservation: Reservation
    now: datetime
    in_use: frozenset[str]


_by_id: BindParameter[str] = bindparam("reservation_id")
_one = select(reservation_table).where(reservation_table.c.id == _by_id)
_one_locked = select(reservation_table, func.now().label("db_now")).where(reservation_table.c.id == _by_id)
_lock_wait = _one_locked.with_for_update()
_lock_skip = _one_locked.with_for_update(skip_locked=True)
_its_claims = (
    select(
        claim_table,
        func.coalesce(
            (pool_table.c.claim_id == claim_table.c.id) | (pool_table.c.version > claim_table.c.machine_version), False
        ).label("in_use"),
    )
    .join(pool_table, pool_table.c.machine_id == claim_table.c.machine_id, isouter=True)
    .where(claim_table.c.reservation_id == _by_id)
    .order_by(claim_table.c.position)
)


async def load(conn: AsyncConnection, reservation_id: str) -> Reservation | None:
    """The reservation with its claims as committed; None when there is none."""
    row = (await conn.execute(_one, {"reservation_id": reservation_id})).one_or_none()
    if row is None:
        return None
    return _reservation(row, (await conn.execute(_its_claims, {"reservation_id": reservation_id})).all())


async def lock(conn: AsyncConnection, reservation_id: str, *, skip_locked: bool = False) -> Locked | None:
    """Lock the reservation until the end of the transaction.

    None when there is none, or (`skip_locked`) when somebody else is at it. The claims are read after the lock, by a
    statement of their own, so that they are as the last holder of the lock left them.
    """
    statement = _lock_skip if skip_locked else _lock_wait
    row = (await conn.execute(statement, {"reservation_id": reservation_id})).one_or_none()
    if row is None:
        return None
    claims = (await conn.execute(_its_claims, {"reservation_id": reservation_id})).all()
    return Locked(_reservation(row, claims), row.db_now, frozenset(claim.id for claim in claims if claim.in_use))


def _reservation(row: Row[Any], claims: Sequence[Row[Any]]) -> Reservation:
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
        claims=tuple(claim_of(claim) for claim in claims),
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
    """Insert a new reservation; `pool.take` has inserted its claims."""
    row = {
        "id": reservation.id,
        "tenant": reservation.tenant,
        "profile": reservation.profile,
        "count": reservation.count,
        "ttl_seconds": reservation.ttl_seconds,
        "cluster_id": reservation.cluster_id,
        "created_at": reservation.created_at,
        **_columns(reservation),
    }
    await conn.execute(insert(reservation_table), row)


# Built once: building an UPDATE from objects costs about as much as running it. Parameters in WHERE have names of their
# own, because those of columns are taken by SET.
_save_reservation = (
    update(reservation_table)
    .where(reservation_table.c.id == bindparam("known_id"), reservation_table.c.version == bindparam("known_version"))
    .values({name: bindparam(name) for name in ("site", "state", "expires_at", "refusal", "version")})
)
_save_claims = (
    update(claim_table)
    .where(
        claim_table.c.id == any_(bindparam("known_ids", type_=ARRAY(Text))),
        claim_table.c.state == bindparam("known_state"),
    )
    .values({name: bindparam(name) for name in ("state", "accepted_version", "expires_at", "ended_because")})
)


async def save(conn: AsyncConnection, before: Reservation, after: Reservation) -> None:
    """Write what changed. Raises Transient when somebody was faster. New claims are in the table already."""
    known = {"known_id": before.id, "known_version": before.version}
    if (await conn.execute(_save_reservation, {**_columns(after), **known})).rowcount != 1:
        raise Transient(f"reservation {before.id} is not at version {before.version} any more")
    old_claims = {claim.id: claim for claim in before.claims}
    alike: dict[tuple[ClaimState, Claim], list[str]] = {}
    for claim in after.claims:
        old = old_claims.get(claim.id)
        if old is not None and old != claim:
            # Claims that differ only in which machine they are for change alike, in one statement.
            change = replace(claim, id="", machine_id="", machine_name="", machine_version=0, site="")
            alike.setdefault((old.state, change), []).append(claim.id)
    for (old_state, change), ids in alike.items():
        await _change_claims(conn, old_state, change, ids)


async def _change_claims(conn: AsyncConnection, old_state: ClaimState, new: Claim, ids: list[str]) -> None:
    row = {
        "known_ids": ids,
        "known_state": old_state.value,
        "state": new.state.value,
        "accepted_version": new.accepted_version,
        "expires_at": new.expires_at,
        "ended_because": new.ended_because,
    }
    if (await conn.execute(_save_claims, row)).rowcount != len(ids):
        raise Transient(f"claims {', '.join(ids)} are not all {old_state} any more")


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
