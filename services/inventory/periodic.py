"""What inventory does by the clock: read the source, write back, end what lasts too long, follow the findings.

Network calls come first, transactions after them. With several replicas one at a time works the source (a lease);
everything else locks the machines it changes and may run anywhere.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from prometheus_client import Gauge

from libs.bus.context import Context
from libs.bus.lease import Lease
from libs.contracts.inventory import MachineState, SourceRead
from libs.contracts.replies import Problem
from libs.runtime.service import App
from services.inventory import departures, processes, source_store, store
from services.inventory.adapters.source import HintedSource, MachineSource, SourceUnavailable, Walk, Write
from services.inventory.intake import Intake, take_in
from services.inventory.model import holds, renewal
from services.inventory.model.intent import wants_decommission
from services.inventory.model.leaving import Wish
from services.inventory.model.machine import Change, Machine
from services.inventory.model.source import follow_status
from services.inventory.settings import InventorySettings
from services.inventory.states import FAIL, MACHINE, QUARANTINE, RELEASE

SOURCE_ACTOR = "system:netbox"
LIMIT_ACTOR = "system:limits"
HEALTH_ACTOR = "system:health"
POLICY_ACTOR = "system:policy"
WRITES_AT_ONCE = 50
LONGEST_WRITE_BACKOFF = timedelta(minutes=5)
# A holder that died is replaced after it. A walk that lasts longer may meet another's: harmless, for both only take in
# differences.
SOURCE_LEASE_SECONDS = 30.0
MAX_PROBLEMS_KEPT = 500
HINTS_AT_ONCE = 100
# While NetBox can't be read, a hint waits; the poll finds the change anyway when it is back.
HINT_AGAIN = timedelta(seconds=10)

log = structlog.get_logger("inventory")
SOURCE_AGE = Gauge("slipway_source_age_seconds", "Age of the last good data of the source", ["source"])


def source_of(app: App) -> MachineSource | None:
    source: MachineSource | None = app.state.get("source")
    return source


def _settings(app: App) -> InventorySettings:
    settings = app.settings
    assert isinstance(settings, InventorySettings)
    return settings


# -- reading ----------------------------------------------------------------------------------------


async def read_source(app: App) -> None:
    """Poll what changed, or walk everything when that is due or was asked for."""
    source = source_of(app)
    if source is None or not await _leads(app):
        return
    async with app.read() as conn:
        state = await store.source_state(conn)
    now = datetime.now(UTC)
    since = _since(state, _settings(app), now)

    def transaction() -> AbstractAsyncContextManager[Context]:
        return app.transaction(actor=SOURCE_ACTOR)

    try:
        walk = await source.read(since)
    except SourceUnavailable as error:
        await _read_failed(app, state, str(error), now)
        return
    looked = _looked(app)
    intake = await take_in(walk, transaction, now, lambda number: looked.get(number, _LONG_AGO) >= now)
    await _read_well(app, state, walk, intake, now)


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def _looked(app: App) -> dict[int, datetime]:
    """When each device was last read alone. A walk that began before that knows it only as it was."""
    looked: dict[int, datetime] = app.state.setdefault("looked", {})
    return looked


async def follow_hints(app: App) -> None:
    """Read again what NetBox's webhooks pointed at, many hints of a device at once."""
    source = source_of(app)
    if not isinstance(source, HintedSource):
        return
    began = datetime.now(UTC)
    async with app.read() as conn:
        hints = await source_store.hinted(conn, began, HINTS_AT_ONCE)
    if not hints or not await _leads(app):
        return
    try:
        walk = await source.look_at(sorted(hints))
    except SourceUnavailable as error:
        log.warning("hint_not_followed", devices=len(hints), error=str(error))
        async with app.transaction(actor=SOURCE_ACTOR) as ctx:
            await source_store.put_off(ctx.conn, hints, ctx.now + HINT_AGAIN)
        return
    _looked(app).update(dict.fromkeys(hints, began))
    intake = await take_in(walk, lambda: app.transaction(actor=SOURCE_ACTOR), began)
    async with app.transaction(actor=SOURCE_ACTOR) as ctx:
        await source_store.followed(ctx.conn, hints)
        state = await store.source_state(ctx.conn)
        await store.set_source_state(ctx.conn, problems=_problems(state, walk, intake))


async def follow_wishes(app: App) -> None:
    """What people asked for by a status in NetBox and could not begin then: begin it when it can."""
    async with app.read() as conn:
        wished = await source_store.with_wishes(conn)
    for machine_id in wished:
        async with app.transaction(actor=SOURCE_ACTOR) as ctx:
            machine = await store.load(ctx.conn, machine_id)
            if machine is None or not _asks(machine, ctx.now):
                continue
            locked = await store.lock(ctx.conn, machine_id)
            if locked is not None:
                await _follow_wish(app, ctx, locked)


def _asks(machine: Machine, now: datetime) -> bool:
    return wants_decommission(machine) or follow_status(machine, now).machine != machine


async def _follow_wish(app: App, ctx: Context, machine: Machine) -> None:
    change = follow_status(machine, ctx.now)
    await store.save(ctx, machine, change)
    at_once = _settings(app).netbox_decommission_at_once
    if wants_decommission(change.machine) and await source_store.leaving(ctx.conn) < at_once:
        await departures.start(ctx, change.machine, Wish("its status in NetBox is decommissioning", SOURCE_ACTOR))


async def _leads(app: App) -> bool:
    async with app.database.transaction() as conn:
        lease = Lease(app.service.name, "source", app.holder, SOURCE_LEASE_SECONDS)
        return await lease.take(conn) is not None


def _since(state: dict[str, Any], settings: InventorySettings, now: datetime) -> datetime | None:
    """From when to read changes; None: everything."""
    last_full, watermark = state["last_full_at"], state["watermark"]
    if state["read_wanted"] or last_full is None or watermark is None:
        return None
    if now - last_full >= timedelta(seconds=settings.netbox_full_walk_seconds):
        return None
    known: datetime = watermark
    return known - timedelta(seconds=settings.netbox_overlap_seconds)


async def _read_failed(app: App, state: dict[str, Any], error: str, started: datetime) -> None:
    """Keep the last good state, say how old it is; one event when it begins."""
    log.warning("source_failed", error=error)
    good = state["last_good_at"]
    if good is not None:
        SOURCE_AGE.labels(store.NETBOX_SOURCE).set((started - good).total_seconds())
    async with app.transaction(actor=SOURCE_ACTOR) as ctx:
        first = state["failing_since"] is None
        values: dict[str, Any] = {"last_error": error[:2000], "failing_since": state["failing_since"] or ctx.now}
        await store.set_source_state(ctx.conn, **values, version=state["version"] + first)
        if first:
            _emit_read(ctx, state["version"] + 1, started, complete=False, errors=(error,))


async def _read_well(app: App, state: dict[str, Any], walk: Walk, intake: Intake, started: datetime) -> None:
    SOURCE_AGE.labels(store.NETBOX_SOURCE).set(0)
    worth_telling = bool(walk.full or intake.changed or state["failing_since"])
    async with app.transaction(actor=SOURCE_ACTOR) as ctx:
        values: dict[str, Any] = {
            "last_good_at": started,
            "failing_since": None,
            "last_error": "",
            "problems": _problems(state, walk, intake),
            "version": state["version"] + worth_telling,
        }
        if walk.newest is not None:
            # The source's own clock, also when that was set back: nothing is read from a moment that is not yet.
            values["watermark"] = walk.newest
        if walk.full:
            values |= {"last_full_at": started, "read_wanted": False, "devices_seen": len(walk.devices)}
        await store.set_source_state(ctx.conn, **values)
        if worth_telling:
            words = tuple(f"{p.name or p.key}: {p.problem}" for p in intake.problems[:100])
            seen = len(walk.devices)
            _emit_read(ctx, values["version"], started, complete=True, errors=words, seen=seen, changed=intake.changed)


def _problems(state: dict[str, Any], walk: Walk, intake: Intake) -> list[dict[str, str]]:
    """What is wrong with which record: everything after a full walk, else what was seen now beside the rest."""
    kept = [] if walk.full else [p for p in state["problems"] if p["key"] not in {d.key for d in walk.devices}]
    known = {p["key"]: p for p in kept}
    known |= {p.key: {"key": p.key, "name": p.name, "problem": p.problem} for p in intake.problems}
    return list(known.values())[:MAX_PROBLEMS_KEPT]


def _emit_read(
    ctx: Context,
    version: int,
    started: datetime,
    *,
    complete: bool,
    errors: tuple[str, ...],
    seen: int = 0,
    changed: int = 0,
) -> None:
    event = SourceRead(
        complete=complete,
        devices_seen=seen,
        changed=changed,
        errors=errors,
        started_at=started,
        finished_at=ctx.now,
    )
    ctx.emit(event, entity_id=store.NETBOX_SOURCE, entity_version=version)


# -- writing back -----------------------------------------------------------------------------------


async def write_back(app: App) -> None:
    """Write our own fields of devices that changed, many in one request; what is refused is tried again later."""
    source = source_of(app)
    if source is None:
        return
    async with app.read() as conn:
        rows = await store.due_writes(conn, datetime.now(UTC), WRITES_AT_ONCE)
    if not rows or not await _leads(app):
        return
    writes = [Write(row["netbox_id"], row["fields"], row["status"]) for row in rows]
    async with app.transaction(actor=SOURCE_ACTOR) as ctx:
        await source_store.sending(ctx.conn, {write.netbox_id: write.fields for write in writes}, ctx.now)
    try:
        results = await source.write(writes)
    except SourceUnavailable as error:
        results = [str(error) for _ in rows]
        log.warning("write_back_failed", devices=len(rows), error=str(error))
    for row, refusal in zip(rows, results, strict=True):
        # Each alone: who handles several machines in one transaction takes these rows in another order.
        async with app.transaction(actor=SOURCE_ACTOR) as ctx:
            await _note_write(ctx, row, refusal)


async def _note_write(ctx: Context, row: dict[str, Any], refusal: str) -> None:
    if refusal:
        wait = min(timedelta(seconds=2 ** min(row["attempts"], 10)), LONGEST_WRITE_BACKOFF)
        await store.write_failed(ctx.conn, row, refusal, ctx.now + wait)
    else:
        await store.written(ctx.conn, [row])
        await source_store.shows(ctx.conn, row["netbox_id"], row["fields"])


# -- time limits ------------------------------------------------------------------------------------


async def end_overdue(app: App) -> None:
    """Fire the event that the table names for a state that lasted too long."""
    async with app.read() as conn:
        late = await store.overdue(conn, datetime.now(UTC))
    for machine_id in late:
        async with app.transaction(actor=LIMIT_ACTOR) as ctx:
            machine = await store.lock(ctx.conn, machine_id)
            if machine is not None and machine.deadline_at is not None and machine.deadline_at <= ctx.now:
                await _end(ctx, machine)


async def _end(ctx: Context, machine: Machine) -> None:
    limit = MACHINE.limits[machine.state]
    reason = Problem(
        code="machine.time_limit",
        message=f"{machine.name} was {machine.state} for longer than {limit.seconds // 60} minutes",
        details={"state": machine.state.value, "since": machine.state_since.isoformat()},
    )
    log.warning("time_limit", machine=machine.name, state=machine.state.value, then=limit.then)
    match limit.then:
        case name if name == RELEASE and machine.claim_id is not None:
            # A machine that a deploy got stuck on is suspect; one that nobody touched yet is not.
            suspect = reason if machine.state is MachineState.PROVISIONING else None
            await processes.give_back(ctx, machine, machine.claim_id, quarantine=suspect)
        case name if name == FAIL:
            decision = renewal.mark_failed(machine, operation_id=None, problem=reason, now=ctx.now)
            assert isinstance(decision, Change)
            await store.save(ctx, machine, decision)
            if machine.operation_id is not None:
                await ctx.cancel_saga(machine.operation_id, reason.message)
        case name if name == QUARANTINE:
            await store.save(ctx, machine, Change(machine).moved(QUARANTINE, ctx.now, reason=reason))


# -- health and policy ------------------------------------------------------------------------------


async def follow_findings(app: App) -> None:
    """Bring each machine's health in line with validation's findings."""
    async with app.read() as conn:
        candidates = await store.health_candidates(conn)
    for machine_id in candidates:
        async with app.transaction(actor=HEALTH_ACTOR) as ctx:
            machine = await store.lock(ctx.conn, machine_id)
            if machine is not None:
                found = await store.found_health(ctx.conn, machine_id)
                await store.save(ctx, machine, holds.apply_health(machine, found))


async def revalidate_old(app: App) -> None:
    """Judge again what was last judged too long ago, a few at a time so that the pool does not run dry."""
    settings = _settings(app)
    moment = datetime.now(UTC) - timedelta(days=settings.revalidate_after_days)
    async with app.read() as conn:
        old = await store.validated_before(conn, moment, settings.revalidate_at_once)
    for machine_id in old:
        async with app.transaction(actor=POLICY_ACTOR) as ctx:
            machine = await store.lock(ctx.conn, machine_id)
            if machine is not None and machine.state is MachineState.AVAILABLE:
                await processes.revalidate(ctx, machine)
