"""Keeps each site's DHCP reservations as inventory's facts say: level-based, one process for each machine that differs.

Nothing waits for it: a site whose DHCP server is away gets its reservations when it is back. What can't be reserved is
kept with the reason, machine by machine, for people to see.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import CommandHandlers, Context
from libs.contracts.calls import Answer, Call
from libs.contracts.dhcp import RecordReservations
from libs.contracts.ids import new_operation_id
from libs.contracts.replies import Reply, ok
from libs.runtime.calls import QueryHandlers
from libs.runtime.pages import Listing, list_page
from libs.runtime.service import App, Periodic
from services.inventory import dhcp_store as store
from services.inventory.model.machine import Machine
from services.inventory.model.reservations import digest, wanted_reservations

ACTOR = "system:dhcp"
LOOK_EVERY_SECONDS = 5.0
AT_ONCE = 100
# A new fleet has much to ask for at once. Rows are locked in the order of ids, as everywhere.
IN_ONE_TRANSACTION = 25


async def follow_reservations(app: App) -> None:
    """Ask sites for the reservations that changed, or that could not be made a while ago."""
    before = datetime.now(UTC) - store.RETRY_AFTER
    async with app.read() as conn:
        found = await store.due(conn, before, AT_ONCE)
    for first in range(0, len(found), IN_ONE_TRANSACTION):
        async with app.transaction(actor=ACTOR) as ctx:
            for machine, _ in found[first : first + IN_ONE_TRANSACTION]:
                await _follow(ctx, machine)


async def _follow(ctx: Context, machine: Machine) -> None:
    wanted = wanted_reservations(machine)
    known = await store.reservation(ctx.conn, machine.id)
    if known is not None and known["version"] > machine.version:
        return  # Somebody else was faster.
    same = known is not None and known["digest"] == digest(wanted) and known["state"] != store.FAILED
    nothing = known is None and not wanted
    asked = [entry.model_dump() for entry in wanted]
    row: dict[str, Any] = {
        "machine_id": machine.id,
        "site": machine.site,
        "name": machine.name,
        "version": machine.version,
        "digest": digest(wanted),
        "state": known["state"] if known and same else store.DONE if nothing else store.PENDING,
        "operation_id": known["operation_id"] if known and same else "",
        "asked_at": known["asked_at"] if known and same else ctx.now,
        "seen": known["seen"] if known and same else {"reservations": asked},
    }
    if not same and not nothing:
        row["operation_id"] = await _ask(ctx, machine, asked)
    await store.save(ctx.conn, row)


async def _ask(ctx: Context, machine: Machine, reservations: list[dict[str, str]]) -> str:
    data = {
        "machine_id": machine.id,
        "machine_name": machine.name,
        "site": machine.site,
        "reservations": reservations,
    }
    return await ctx.start_saga(
        "reserve_addresses",
        data,
        target_kind="machine",
        target_id=machine.id,
        site=machine.site,
        operation_id=new_operation_id(ctx.service),
    )


async def record_reservations(ctx: Context, command: RecordReservations) -> Reply:
    """Keep what the site made of it, unless something newer was asked for meanwhile."""
    row = await store.reservation(ctx.conn, command.machine_id)
    if row is None or row["operation_id"] != command.operation_id:
        return ok(kept=False)
    seen = {**row["seen"], "refused": list(command.refused), "lasting": command.lasting, "error": command.error}
    state = store.DONE
    if command.error:
        state = store.FAILED
    elif not command.managed:
        state = store.UNMANAGED
    elif command.refused:
        state = store.REFUSED
    await store.save(ctx.conn, {**row, "state": state, "seen": seen})
    return ok(kept=True)


_r = store.reservation_table.c
DHCP_RESERVATIONS = Listing(
    table=store.reservation_table,
    key=_r.machine_id,
    row=lambda row: {
        **{name: row[name] for name in ("machine_id", "name", "site", "state", "operation_id")},
        "asked_at": row["asked_at"].isoformat(),
        **row["seen"],
    },
    filters={"site": _r.site, "state": _r.state, "machine_id": _r.machine_id},
    sorts={"name": _r.name, "site": _r.site, "asked_at": _r.asked_at},
    default_sort="name",
    search=(_r.name, _r.machine_id),
)


async def list_reservations(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, DHCP_RESERVATIONS, call)


COMMANDS: CommandHandlers = {RecordReservations: record_reservations}
QUERIES: QueryHandlers = {"list_dhcp_reservations": list_reservations}
PERIODIC = (Periodic("follow_reservations", LOOK_EVERY_SECONDS, follow_reservations),)
