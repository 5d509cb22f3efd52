"""Retention: events older than the policy in force go, in rounds, unless a legal hold keeps them.

Two things stay of what goes: a signed removal, which stands for it in its chain, and the event that says so. Nothing
goes that no signed checkpoint covers. What may go is decided twice: here, to plan, and by the owner's function
`audit.remove_events`, which takes nobody's word for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from slipway.proof import REMOVAL, statement
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.topology import EVENT_SERVICES
from libs.contracts.audit import RemovalDone, RemovalFacts, RetentionChanged, RetentionFacts
from services.audit import checkpoints, store
from services.audit.signing import Signer

AT_ONCE = 2000  # Rows of one transaction: well below a second.
SIGNED = (
    "service",
    "first_sequence",
    "last_sequence",
    "events",
    "digest_before",
    "digest",
    "newest",
    "policy_version",
)
_policy = store.retention_policy


@dataclass(frozen=True)
class Expired:
    """Neighbouring rows of one service that may go: (sequence, digest, time), in order."""

    service: str
    rows: Sequence[tuple[int, str, datetime]]
    digest_before: str


def facts_of(row: Mapping[Any, Any]) -> RetentionFacts:
    return RetentionFacts(**{name: row[name] for name in RetentionFacts.model_fields})


async def policies(conn: AsyncConnection) -> list[RetentionFacts]:
    """Every policy that was ever set, the newest first."""
    found = await conn.execute(sa.select(_policy).order_by(_policy.c.version.desc()))
    return [facts_of(row) for row in found.mappings()]


async def in_force(conn: AsyncConnection) -> RetentionFacts | None:
    """The policy that counts now; None: none was ever set, and everything is kept."""
    row = (await conn.execute(sa.text("SELECT * FROM audit.policy_in_force()"))).mappings().first()
    return facts_of(row) if row is not None and row["version"] is not None else None


async def set_policy(ctx: Context, keep_days: int | None, reason: str, version: int) -> RetentionFacts | None:
    """Set policy number `version`; None when somebody was faster. When it comes into force the database decides."""
    row = {"version": version, "keep_days": keep_days, "reason": reason, "set_by": ctx.actor}
    done = await ctx.conn.execute(insert(_policy).values(row).on_conflict_do_nothing().returning(_policy))
    kept = done.mappings().first()
    if kept is None:
        return None
    facts = facts_of(kept)
    ctx.emit(RetentionChanged(retention=facts), entity_id="policy", entity_version=facts.version)
    return facts


async def last_expired(conn: AsyncConnection, service: str, keep_days: int) -> int:
    """The highest number of an expired event of the service that a checkpoint covers; 0: none."""
    covered = await checkpoints.latest(conn, service)
    if covered is None:
        return 0
    statement = sa.text(
        "SELECT sequence FROM audit.event WHERE service = :service AND sequence <= :covered "
        "AND time < now() - make_interval(days => :days) ORDER BY sequence DESC LIMIT 1"
    )
    values = {"service": service, "days": keep_days, "covered": covered["last_sequence"]}
    return int(await conn.scalar(statement, values) or 0)


async def expired(
    conn: AsyncConnection, service: str, keep_days: int, after: int, until: int
) -> tuple[list[Expired], int, int]:
    """What may go among the next rows after `after`: runs, how many are held, how far it looked (0: to the end).

    An event among them that is young (a clock was wrong) only parts two runs.
    """
    columns = (
        "sequence, digest, time, time >= now() - make_interval(days => :days) AS young, "
        "audit.is_held(entity_id, mentions, tenant, correlation_id) AS held"
    )
    found = await conn.execute(
        sa.text(
            f"SELECT {columns} FROM audit.event WHERE service = :service AND sequence > :after AND sequence <= :until "
            "ORDER BY sequence LIMIT :most"
        ),
        {"service": service, "after": after, "until": until, "most": AT_ONCE, "days": keep_days},
    )
    rows = [tuple(row) for row in found]
    runs: list[list[tuple[int, str, datetime]]] = [[]]
    for sequence, digest, time, young, held in rows:
        if young or held:
            runs.append([])
        else:
            runs[-1].append((sequence, digest, time))
    gone = [Expired(service, run, (await store.chain_end(conn, service, run[0][0]))[1]) for run in runs if len(run) > 0]
    return gone, sum(held and not young for _, _, _, young, held in rows), rows[-1][0] if len(rows) == AT_ONCE else 0


async def remove(ctx: Context, signer: Signer, policy: RetentionFacts, run: Expired) -> RemovalFacts:
    """Remove a run of events and say so, signed."""
    facts: dict[str, Any] = {
        "service": run.service,
        "first_sequence": run.rows[0][0],
        "last_sequence": run.rows[-1][0],
        "events": len(run.rows),
        "digest_before": run.digest_before,
        "digest": run.rows[-1][1],
        "newest": max(time for _, _, time in run.rows),
        "policy_version": policy.version,
    }
    unsigned = RemovalFacts(**facts, statement="", key_id=signer.key_id, signature="")
    text = statement(REMOVAL, {n: v for n, v in unsigned.model_dump(mode="json").items() if n in SIGNED})
    done = unsigned.model_copy(update={"statement": text, "signature": signer.sign(text)})
    await checkpoints.publish_key(ctx.conn, signer)
    await ctx.conn.execute(
        sa.text("SELECT audit.remove_events(:service, :first, :last, :statement, :key, :signature)"),
        {
            "service": run.service,
            "first": done.first_sequence,
            "last": done.last_sequence,
            "statement": text,
            "key": signer.key_id,
            "signature": done.signature,
        },
    )
    number = await ctx.conn.scalar(
        sa.select(sa.func.count()).select_from(store.removal).where(store.removal.c.service == run.service)
    )
    ctx.emit(RemovalDone(removal=done), entity_id=run.service, entity_version=int(number or 0))
    return done


@dataclass
class Round:
    """Where a round of retention stands; it ends when `service` is None. Nothing of it must survive a crash."""

    service: str | None = EVENT_SERVICES[0]
    after: int = 0
    events: int = 0
    held: int = 0

    def next_service(self) -> None:
        place = EVENT_SERVICES.index(self.service) + 1 if self.service is not None else len(EVENT_SERVICES)
        self.service = EVENT_SERVICES[place] if place < len(EVENT_SERVICES) else None
        self.after = 0


async def remove_some(ctx: Context, signer: Signer, round_: Round) -> bool:
    """Go on with a round by one bounded step; false when nothing is left to look at."""
    # Two rounds at a time would plan the same removals.
    await ctx.conn.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('audit.retention'))"))
    policy = await in_force(ctx.conn)
    if policy is None or policy.keep_days is None or round_.service is None:
        return False
    until = await last_expired(ctx.conn, round_.service, policy.keep_days)
    runs, held, reached = await expired(ctx.conn, round_.service, policy.keep_days, round_.after, until)
    for run in runs:
        round_.events += (await remove(ctx, signer, policy, run)).events
    round_.held += held
    round_.after = reached
    if reached == 0:
        round_.next_service()
    if round_.service is None:
        await ctx.conn.execute(sa.text("SELECT audit.drop_empty_partitions()"))
    return round_.service is not None


async def preview(conn: AsyncConnection, keep_days: int) -> list[dict[str, Any]]:
    """For each service what a policy would remove now: how many events, of what time, and how many holds keep."""
    lines = []
    for service in EVENT_SERVICES:
        until = await last_expired(conn, service, keep_days)
        found = await conn.execute(
            sa.text(
                "SELECT count(*) AS matching, count(*) FILTER (WHERE held) AS held, min(sequence) AS first_sequence, "
                "max(sequence) AS last_sequence, min(time) AS oldest, max(time) AS newest FROM (SELECT sequence, time, "
                "audit.is_held(entity_id, mentions, tenant, correlation_id) AS held FROM audit.event "
                "WHERE service = :service AND sequence <= :until AND time < now() - make_interval(days => :days)) AS e"
            ),
            {"service": service, "until": until, "days": keep_days},
        )
        row = found.mappings().one()
        if row["matching"]:
            instants = {name: row[name].isoformat() for name in ("oldest", "newest")}
            numbers = {name: row[name] for name in ("first_sequence", "last_sequence", "held")}
            lines.append({"service": service, "removed": row["matching"] - row["held"], **numbers, **instants})
    return lines
