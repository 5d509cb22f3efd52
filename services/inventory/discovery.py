"""Discovery's doors: what sites saw of unknown BMCs and of DHCP, and what operators ask and decide about it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context, ObservationHandlers
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.dhcp import DhcpObserved, LeaseObserved
from libs.contracts.discovery import BmcObserved, CandidateFacts, CandidateState
from libs.contracts.ids import new_id
from libs.runtime.calls import CallHandlers, QueryHandlers
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import invalid, parse
from libs.runtime.service import App, Periodic
from services.inventory import discovery_store as store
from services.inventory.model.candidates import (
    candidate_of,
    decided,
    first_seen,
    is_known,
    machine_of,
    seen_again,
    sighting,
)
from services.inventory.store import site_table

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=500)]
# Leases that ended this long ago explain nothing any more.
KEEP_LEASES = timedelta(days=1)
FORGET_EVERY_SECONDS = 3600.0


class _Ignored(BaseModel):
    candidate_id: Name
    reason: Reason


class _Scan(BaseModel):
    site: Name
    networks: Annotated[list[Name], Field(max_length=50)] = []


# -- what sites saw ---------------------------------------------------------------------------------


async def bmc_observed(ctx: Context, observed: BmcObserved) -> None:
    """An unknown BMC becomes a candidate; one that is known by now closes its candidate."""
    seen = sighting(observed)
    await store.lock_site(ctx.conn, seen.site)
    machine, note = machine_of(seen, await store.bmcs_like(ctx.conn, seen))
    before = candidate_of(seen, await store.candidates_like(ctx.conn, seen))
    if machine is not None:
        if before is not None:
            await store.save_candidate(ctx, before, is_known(before, machine))
        return
    after = seen_again(before, seen, note) if before is not None else first_seen(new_id("cnd"), seen, note)
    await store.save_candidate(ctx, before, after)


async def dhcp_observed(ctx: Context, seen: DhcpObserved) -> None:
    await store.save_dhcp_server(ctx.conn, seen)


async def lease_observed(ctx: Context, seen: LeaseObserved) -> None:
    await store.save_lease(ctx.conn, seen)


async def forget_leases(app: App) -> None:
    """Leases come and go; what is over for a day is dropped."""
    async with app.database.transaction() as conn:
        await store.forget_leases(conn, datetime.now(UTC) - KEEP_LEASES)


# -- what operators ask and decide ------------------------------------------------------------------


async def scan_bmcs(ctx: Context, call: Call) -> Answer:
    """Let a site ask its BMC ranges; what it finds shows among the candidates."""
    wanted = parse(_Scan, call.params)
    if isinstance(wanted, Answer):
        return wanted
    known = (await ctx.conn.execute(select(site_table.c.slug).where(site_table.c.slug == wanted.site))).scalar()
    if known is None:
        return invalid([{"field": "site", "message": f"there is no site {wanted.site!r}"}])
    scan_id = new_id("scn")
    data = {"site": wanted.site, "networks": wanted.networks, "scan_id": scan_id}
    operation = await ctx.start_saga("scan_bmcs", data, target_kind="scan", target_id=scan_id, site=wanted.site)
    return Answer(status=202, body={"operation_id": operation}, location=f"/operations/{operation}")


async def ignore_candidate(ctx: Context, call: Call) -> Answer:
    """It is none of ours, or not yet: it stays out of the list of new ones, also when it is seen again."""
    wanted = parse(_Ignored, call.params)
    if isinstance(wanted, Answer):
        return wanted
    before = await store.candidate(ctx.conn, wanted.candidate_id, lock=True)
    if before is None:
        return not_found("candidate", wanted.candidate_id)
    if before.state not in (CandidateState.NEW, CandidateState.IGNORED):
        return closed(before)
    after = decided(before, CandidateState.IGNORED, by=call.actor, reason=wanted.reason)
    await store.save_candidate(ctx, before, after)
    return Answer(body=candidate_body(after))


def closed(candidate: CandidateFacts) -> Answer:
    """Nothing is left to decide about it."""
    words = f"The candidate {candidate.id} is {candidate.state}: it is machine {candidate.machine_id}."
    return problem(409, "candidate.closed", words, "Look at the machine: GET /machines/{machine_id}.")


def candidate_body(candidate: CandidateFacts) -> dict[str, Any]:
    return candidate.model_dump(mode="json")


_c, _l, _d = store.candidate_table.c, store.lease_table.c, store.dhcp_server_table.c
CANDIDATES = Listing(
    table=store.candidate_table,
    key=_c.id,
    row=lambda row: dict(row["facts"]),
    filters={"state": _c.state, "site": _c.site},
    sorts={"address": _c.address, "last_seen_at": _c.last_seen_at, "site": _c.site},
    default_sort="-last_seen_at",
    search=(_c.address, _c.bmc_mac, _c.uuid, _c.id),
)
LEASES = Listing(
    table=store.lease_table,
    key=_l.hw_address + "/" + _l.ip_address,
    row=lambda row: dict(row["seen"]),
    filters={"site": _l.site, "state": _l.state, "machine_id": _l.machine_id},
    sorts={"ip_address": _l.ip_address, "observed_at": _l.observed_at},
    default_sort="ip_address",
    search=(_l.ip_address, _l.hw_address),
)


def _server(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(row["seen"])


DHCP_SERVERS = Listing(
    table=store.dhcp_server_table,
    key=_d.site,
    row=_server,
    filters={"site": _d.site},
    sorts={"site": _d.site},
    default_sort="site",
)


async def list_candidates(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, CANDIDATES, call)


async def list_dhcp_servers(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, DHCP_SERVERS, call)


async def list_leases(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, LEASES, call)


OBSERVATIONS: ObservationHandlers = {
    BmcObserved: bmc_observed,
    DhcpObserved: dhcp_observed,
    LeaseObserved: lease_observed,
}
CALLS: CallHandlers = {"scan_bmcs": scan_bmcs, "ignore_candidate": ignore_candidate}
QUERIES: QueryHandlers = {
    "list_candidates": list_candidates,
    "list_dhcp_servers": list_dhcp_servers,
    "list_leases": list_leases,
}
PERIODIC = (Periodic("forget_leases", FORGET_EVERY_SECONDS, forget_leases),)
