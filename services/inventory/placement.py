"""Keeps each site's Placement in step: what may not be claimed is held there, and what Nova gave away is not offered.

Level-based: every few seconds the providers that differ from what is wanted are brought there by their site, some at a
time. An allocation of somebody else's on an unclaimed machine is a hold of ours, which goes when the allocation goes.
"""

from __future__ import annotations

from libs.bus.context import Context, ObservationHandlers
from libs.contracts.envelope import now_utc
from libs.contracts.inventory import Hold
from libs.contracts.placement import ProviderGone, ProviderObserved
from libs.runtime.service import App, Periodic
from services.inventory import repairs, store, violation_store
from services.inventory.model.holds import automatic_hold
from services.inventory.model.machine import Change, Machine

ACTOR = "system:placement"
ALLOCATION = "allocation"
EVERY_SECONDS = 5.0
# As many orders at once as a Placement carries out in the time between two looks.
AT_ONCE = 50


async def keep(app: App) -> None:
    """Have the providers that differ brought to where they should be, unless that is under way."""
    async with app.read() as conn:
        wanted = await violation_store.to_be_kept(conn, now_utc(), AT_ONCE)
        under_way = await violation_store.tried_lately(conn, "reserve_provider")
    for machine_id, _ in wanted:
        if machine_id in under_way:
            continue
        async with app.transaction(actor=ACTOR) as ctx:
            machine = await store.lock(ctx.conn, machine_id)
            if machine is not None:
                await repairs.reserve(ctx, machine)


async def provider_observed(ctx: Context, seen: ProviderObserved) -> None:
    """A site's Placement shows who has the machine."""
    assert ctx.cause is not None
    await violation_store.provider_observed(ctx.conn, ctx.cause.site, seen)
    machine = await store.lock(ctx.conn, seen.machine_id)
    if machine is None:
        return
    foreign = [consumer for consumer in seen.consumers if consumer not in (machine.id, machine.claim_id)]
    await _hold(ctx, machine, foreign)


async def provider_gone(ctx: Context, seen: ProviderGone) -> None:
    assert ctx.cause is not None
    await violation_store.provider_gone(ctx.conn, ctx.cause.site, seen)
    machine = await store.lock(ctx.conn, seen.machine_id)
    if machine is not None:
        await _hold(ctx, machine, [])


async def _hold(ctx: Context, machine: Machine, foreign: list[str]) -> None:
    """The machine's hold for allocations of others' is there exactly while there are some."""
    hold: Hold = automatic_hold(
        machine.id, ACTOR, ALLOCATION, f"Placement has allocated it to {', '.join(foreign)}", ctx.now
    )
    kept = tuple(other for other in machine.holds if other.id != hold.id)
    if bool(foreign) != (len(kept) < len(machine.holds)):
        await store.save(ctx, machine, Change(machine).noted(holds=(*kept, hold) if foreign else kept))


OBSERVATIONS: ObservationHandlers = {ProviderObserved: provider_observed, ProviderGone: provider_gone}
PERIODIC = (Periodic("keep_placement", EVERY_SECONDS, keep),)
