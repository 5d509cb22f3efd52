"""Tables and the only SQL of the invariants: nodes as sites told them, what sites were heard to say, violations.

Part of the tables' room beside `store.py`. Machines are read in pages with only what is compared, so that a look at a
large fleet needs little memory and holds no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Column,
    DateTime,
    Float,
    Integer,
    Row,
    Select,
    Table,
    Text,
    and_,
    delete,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.tables import bus_tables
from libs.contracts.inventory import MachineState
from libs.contracts.placement import ProviderGone, ProviderObserved
from libs.contracts.site import NodeGone, NodeObserved, SatelliteHeartbeat
from services.inventory.model.subject import Node, Provider, Subject
from services.inventory.model.violations import Coverage, Key, Violation, learned
from services.inventory.store import machine_table, metadata

# Nodes of every site, those of no machine of ours too. `gone_at`: when the site said that it lists the node no more.
node_table = Table(
    "node_seen",
    metadata,
    Column("node_id", Text, primary_key=True),
    Column("site", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("seen", JSONB, nullable=False),
    Column("observed_at", DateTime(timezone=True), nullable=False),
    Column("gone_at", DateTime(timezone=True)),
)
# `parts`: what the satellite says of the site's parts: {"placement": "ok" or what is wrong}; no word: not there.
heard_table = Table(
    "site_heard",
    metadata,
    Column("site", Text, primary_key=True),
    Column("heard_at", DateTime(timezone=True), nullable=False),
    Column("problems", JSONB, nullable=False),
    Column("parts", JSONB, nullable=False),
)
# Resource providers of machines, as a site's Placement shows them.
provider_table = Table(
    "provider_seen",
    metadata,
    Column("machine_id", Text, primary_key=True),
    Column("site", Text, nullable=False),
    Column("total", Integer, nullable=False),
    Column("reserved", Integer, nullable=False),
    Column("consumers", JSONB, nullable=False),
    Column("observed_at", DateTime(timezone=True), nullable=False),
)
violation_table = Table(
    "violation",
    metadata,
    Column("id", Text, primary_key=True),
    Column("invariant", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("ours", Text, nullable=False),
    Column("theirs", Text, nullable=False),
    Column("first_seen_at", DateTime(timezone=True), nullable=False),
    Column("last_seen_at", DateTime(timezone=True), nullable=False),
    Column("opened_at", DateTime(timezone=True)),
    Column("cleared_at", DateTime(timezone=True)),
    Column("repaired_by", Text, nullable=False),
    Column("repair_operation_id", Text),
    Column("version", Integer, nullable=False),
)
# How the last look went, and how long contradictions lasted in normal work.
state_table = Table(
    "invariant_state",
    metadata,
    Column("invariant", Text, primary_key=True),
    Column("site", Text, primary_key=True),
    Column("judged", Integer, nullable=False),
    Column("unknown", Integer, nullable=False),
    Column("why", Text, nullable=False),
    Column("longest_seconds", Float, nullable=False),
    Column("checked_at", DateTime(timezone=True), nullable=False),
)

PAGE = 100  # So much is computed at a time while others wait for their turn: some 10 ms.
MOST_STRANGERS = 10_000
# Heartbeats come every 10 s; three that are missing may be a busy computer, more are silence.
HEARD_WITHIN = timedelta(seconds=45)
KEPT_CLEARED = timedelta(days=30)
_NODE_FIELDS = tuple(field.name for field in fields(Node) if field.name not in ("observed_at", "gone_at"))
_VIOLATION_FIELDS = tuple(field.name for field in fields(Violation))
_m, _n, _p = machine_table.c, node_table.c, provider_table.c
_saga = bus_tables("inventory").saga.c


# -- what sites say ---------------------------------------------------------------------------------


async def node_observed(conn: AsyncConnection, site: str, seen: NodeObserved) -> None:
    """Keep what was seen of a node, unless something newer is kept."""
    row = {
        "node_id": seen.machine_id,
        "site": site,
        "name": seen.name,
        "seen": seen.model_dump(mode="json", include=set(_NODE_FIELDS)),
        "observed_at": seen.observed_at,
        "gone_at": None,
    }
    statement = upsert(node_table).values(row)
    new = {name: statement.excluded[name] for name in row if name != "node_id"}
    newer = and_(
        _n.observed_at < statement.excluded.observed_at,
        or_(_n.gone_at.is_(None), _n.gone_at < statement.excluded.observed_at),
    )
    await conn.execute(statement.on_conflict_do_update(index_elements=["node_id"], set_=new, where=newer))


async def node_gone(conn: AsyncConnection, site: str, seen: NodeGone) -> None:
    """The site lists the node no more; a node that was moved to another site is that one's."""
    statement = update(node_table).where(
        _n.node_id == seen.machine_id, _n.site == site, _n.observed_at < seen.observed_at
    )
    await conn.execute(statement.values(gone_at=seen.observed_at))


async def provider_observed(conn: AsyncConnection, site: str, seen: ProviderObserved) -> None:
    """Keep what was seen of a provider, unless something newer is kept."""
    row = {
        "machine_id": seen.machine_id,
        "site": site,
        "total": seen.total,
        "reserved": seen.reserved,
        "consumers": list(seen.consumers),
        "observed_at": seen.observed_at,
    }
    statement = upsert(provider_table).values(row)
    new = {name: statement.excluded[name] for name in row if name != "machine_id"}
    newer = _p.observed_at < statement.excluded.observed_at
    await conn.execute(statement.on_conflict_do_update(index_elements=["machine_id"], set_=new, where=newer))


async def provider_gone(conn: AsyncConnection, site: str, seen: ProviderGone) -> None:
    """The site's Placement has it no more."""
    same = (_p.machine_id == seen.machine_id, _p.site == site, _p.observed_at < seen.observed_at)
    await conn.execute(delete(provider_table).where(*same))


async def to_be_kept(conn: AsyncConnection, now: datetime, limit: int) -> list[tuple[str, bool]]:
    """(machine id, held) of machines whose provider is not as we want it, at sites whose Placement is read."""
    read = (await sites(conn, now)).placement
    own = _p.consumers.contains(func.to_jsonb(_m.id))
    unheld = and_(~_m.eligible, func.jsonb_array_length(_p.consumers) == 0, _p.total > 0)
    held = and_(_m.eligible, own)
    statement = (
        select(_m.id, ~_m.eligible)
        .join(provider_table, _p.machine_id == _m.id)
        .where(or_(unheld, held), _m.state != MachineState.RETIRED.value, _p.site.in_(sorted(read)))
        .order_by(_m.id)
        .limit(limit)
    )
    return [(machine_id, bool(wanted)) for machine_id, wanted in await conn.execute(statement)]


async def heard(conn: AsyncConnection, beat: SatelliteHeartbeat) -> None:
    """Keep the newest heartbeat of the site."""
    row = {"site": beat.site, "heard_at": beat.at, "problems": list(beat.problems), "parts": dict(beat.parts)}
    statement = upsert(heard_table).values(row)
    new = {name: statement.excluded[name] for name in row if name != "site"}
    newer = heard_table.c.heard_at < statement.excluded.heard_at
    await conn.execute(statement.on_conflict_do_update(index_elements=["site"], set_=new, where=newer))


# -- what is compared -------------------------------------------------------------------------------


class Sites:
    """Which sites speak now, and which of their parts they see."""

    def __init__(self, rows: Iterable[Any], now: datetime) -> None:
        alive = {row.site: row for row in rows if row.heard_at >= now - HEARD_WITHIN}
        # What is wrong with another part of the site says nothing about its nodes; older satellites name no parts.
        self.heard = {
            site for site, row in alive.items() if row.parts.get("ironic", "" if row.problems else "ok") == "ok"
        }
        self.placement = {site for site, row in alive.items() if row.parts.get("placement") == "ok"}


async def sites(conn: AsyncConnection, now: datetime) -> Sites:
    return Sites((await conn.execute(select(heard_table))).all(), now)


async def worked_on(conn: AsyncConnection) -> set[str]:
    """Ids of the machines that a process of ours runs on."""
    open_now = select(_saga.target_id).where(_saga.phase.in_(("running", "undoing")), _saga.target_kind == "machine")
    return set((await conn.execute(open_now)).scalars())


async def tried_lately(conn: AsyncConnection, kind: str) -> set[str]:
    """What processes of this kind are about that are open, or ended in the last minute: too soon to try again."""
    lately = _saga.updated_at > func.now() - timedelta(minutes=1)
    statement = select(_saga.target_id).where(_saga.kind == kind, or_(_saga.phase != "finished", lately))
    return set((await conn.execute(statement)).scalars())


def _subjects() -> Select[Any]:
    facts = _m.facts
    shares = func.jsonb_path_query_first(
        facts, literal_column("'$.holds[*] ? (@.reason like_regex \"is also that of\").reason'")
    )
    return select(
        _m.id,
        _m.name,
        _m.site,
        _m.state,
        _m.state_since,
        _m.claim_id,
        _m.operation_id,
        _m.profile,
        shares.label("shares"),
        _saga.phase,
        _n.seen,
        _n.observed_at,
        _n.gone_at,
        _m.eligible,
        _p.total,
        _p.reserved,
        _p.consumers,
        _p.observed_at.label("booked_at"),
    ).select_from(
        machine_table.outerjoin(node_table, _n.node_id == _m.id)
        .outerjoin(bus_tables("inventory").saga, _saga.id == _m.operation_id)
        .outerjoin(provider_table, _p.machine_id == _m.id)
    )


async def machines(conn: AsyncConnection, heard_sites: Sites, busy: set[str], after: str) -> list[Subject]:
    """The next page of machines after the id `after`, as they are compared."""
    rows = (await conn.execute(_subjects().where(_m.id > after).order_by(_m.id).limit(PAGE))).all()
    return [_subject(row, heard_sites, busy) for row in rows]


async def strangers(conn: AsyncConnection, heard_sites: Sites) -> list[Subject]:
    """Nodes that no machine of ours is."""
    known = select(_m.id).where(_m.id == _n.node_id).exists()
    rows = (await conn.execute(select(node_table).where(~known).order_by(_n.node_id).limit(MOST_STRANGERS))).all()
    return [
        Subject(
            id=row.node_id,
            name=row.name,
            site=row.site,
            state=None,
            state_since=row.observed_at,
            claim_id=None,
            operation_id=None,
            operation_phase="",
            worked_on=False,
            profile=None,
            shares="",
            node=_node(row),
            site_heard=row.site in heard_sites.heard,
        )
        for row in rows
    ]


def _subject(row: Row[Any], heard_sites: Sites, busy: set[str]) -> Subject:
    return Subject(
        id=row.id,
        name=row.name,
        site=row.site,
        state=MachineState(row.state),
        state_since=row.state_since,
        claim_id=row.claim_id,
        operation_id=row.operation_id,
        operation_phase=row.phase if row.phase not in (None, "finished") else "",
        worked_on=row.id in busy,
        profile=row.profile,
        shares=row.shares or "",
        node=_node(row),
        site_heard=row.site in heard_sites.heard,
        placement_heard=row.site in heard_sites.placement,
        provider=_provider(row),
        eligible=row.eligible,
    )


def _provider(row: Row[Any]) -> Provider | None:
    if row.total is None:
        return None
    return Provider(row.total, row.reserved, tuple(row.consumers), row.booked_at)


def _node(row: Any) -> Node | None:
    if row.seen is None:
        return None
    seen = dict(row.seen)
    since = seen["reserved_since"]
    return Node(
        **{
            **seen,
            "retired": bool(seen["retired"]),
            "reserved_since": datetime.fromisoformat(since) if since else None,
            "observed_at": row.observed_at,
            "gone_at": row.gone_at,
        }
    )


# -- violations -------------------------------------------------------------------------------------


def violation_of(row: Mapping[str, Any]) -> Violation:
    return Violation(**{name: row[name] for name in _VIOLATION_FIELDS})


async def not_cleared(conn: AsyncConnection) -> dict[Key, Violation]:
    """Every violation that was not seen to end, those within their grace period too."""
    rows = (await conn.execute(select(violation_table).where(violation_table.c.cleared_at.is_(None)))).mappings()
    return {(row["invariant"], row["subject"]): violation_of(dict(row)) for row in rows}


async def lock(conn: AsyncConnection, violation_id: str) -> Violation | None:
    statement = select(violation_table).where(violation_table.c.id == violation_id).with_for_update()
    row = (await conn.execute(statement)).mappings().first()
    return violation_of(dict(row)) if row else None


async def set_repaired(conn: AsyncConnection, violation_id: str, by: str, operation_id: str | None) -> None:
    """Who had it repaired, and by which operation."""
    statement = update(violation_table).where(violation_table.c.id == violation_id)
    await conn.execute(statement.values(repaired_by=by, repair_operation_id=operation_id))


async def node_ids(conn: AsyncConnection) -> set[str]:
    """Every node that a site lists, those that are no machine of ours too."""
    known = select(_m.id).where(_m.id == _n.node_id).exists()
    return set((await conn.execute(select(_n.node_id).where(~known, _n.gone_at.is_(None)))).scalars())


async def save(conn: AsyncConnection, violations: Sequence[Violation]) -> None:
    """Write them, many at once; what was noted about a repair meanwhile stays."""
    rows = [{**asdict(violation), "severity": violation.rule.severity.value} for violation in violations]
    if not rows:
        return
    statement = upsert(violation_table)
    kept = ("id", "repaired_by", "repair_operation_id")
    new = {name: statement.excluded[name] for name in rows[0] if name not in kept}
    await conn.execute(statement.on_conflict_do_update(index_elements=["id"], set_=new), rows)


async def forget(conn: AsyncConnection, violations: Sequence[Violation]) -> None:
    """Remove what went before anybody was told."""
    ids = [violation.id for violation in violations]
    await conn.execute(
        delete(violation_table).where(violation_table.c.id.in_(ids), violation_table.c.opened_at.is_(None))
    )


async def forget_cleared(conn: AsyncConnection, now: datetime) -> None:
    await conn.execute(delete(violation_table).where(violation_table.c.cleared_at < now - KEPT_CLEARED))


async def longest(conn: AsyncConnection) -> dict[Key, timedelta]:
    """How long contradictions lasted in normal work, by invariant and site."""
    rows = await conn.execute(select(state_table.c.invariant, state_table.c.site, state_table.c.longest_seconds))
    return {(row.invariant, row.site): timedelta(seconds=row.longest_seconds) for row in rows}


async def save_state(
    conn: AsyncConnection,
    coverage: Mapping[Key, Coverage],
    lasted: Mapping[Key, timedelta],
    before: Mapping[Key, timedelta],
    now: datetime,
) -> None:
    """Write how the look went and what was learned."""
    rows = [
        {
            "invariant": key[0],
            "site": key[1],
            "judged": one.judged,
            "unknown": one.unknown,
            "why": one.why,
            "longest_seconds": _learned(key, before, lasted).total_seconds(),
            "checked_at": now,
        }
        for key, one in coverage.items()
    ]
    if rows:
        statement = upsert(state_table)
        new = {name: statement.excluded[name] for name in rows[0] if name not in ("invariant", "site")}
        await conn.execute(statement.on_conflict_do_update(index_elements=["invariant", "site"], set_=new), rows)
    await conn.execute(delete(state_table).where(state_table.c.checked_at < now))


def _learned(key: Key, before: Mapping[Key, timedelta], lasted: Mapping[Key, timedelta]) -> timedelta:
    known = before.get(key, timedelta(0))
    return learned(known, lasted[key]) if key in lasted else known
