"""Answers about reservations, claims and how many machines are free. Another tenant's reservation does not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found
from libs.contracts.reservation import ClaimFacts, ReservationFacts
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.reservation import availability, model, store
from services.reservation.store import claim_table, reservation_table

_CLAIM_FIELDS = tuple(ClaimFacts.model_fields)


def _claims_of_a_reservation() -> Any:
    body = func.jsonb_build_object(*(part for name in _CLAIM_FIELDS for part in (name, claim_table.c[name])))
    ordered = func.jsonb_agg(aggregate_order_by(body, claim_table.c.position))
    return select(ordered).where(claim_table.c.reservation_id == reservation_table.c.id).scalar_subquery()


_listed = select(reservation_table, _claims_of_a_reservation().label("claims")).subquery("listed")
_claims = (
    select(claim_table, reservation_table.c.tenant, reservation_table.c.profile, reservation_table.c.cluster_id)
    .join(reservation_table, reservation_table.c.id == claim_table.c.reservation_id)
    .subquery("claims")
)


def _reservation_body(row: Mapping[str, Any]) -> dict[str, Any]:
    facts = ReservationFacts(
        **{name: row[name] for name in ReservationFacts.model_fields if name not in ("claims", "site")},
        site=row["site"] or "-",
        claims=row["claims"] or (),
    )
    return facts.model_dump(mode="json")


def _claim_body(row: Mapping[str, Any]) -> dict[str, Any]:
    facts = ClaimFacts(**{name: row[name] for name in _CLAIM_FIELDS})
    more = {name: row[name] for name in ("reservation_id", "tenant", "profile", "site", "cluster_id", "live")}
    times = {name: row[name].isoformat() if row[name] else None for name in ("expires_at", "created_at")}
    return {**facts.model_dump(mode="json"), **more, **times}


RESERVATIONS = Listing(
    table=_listed,
    key=_listed.c.id,
    row=_reservation_body,
    filters={name: _listed.c[name] for name in ("state", "tenant", "profile", "site", "cluster_id")},
    sorts={"created_at": _listed.c.created_at, "id": _listed.c.id},
    default_sort="-created_at",
    tenant=_listed.c.tenant,
)
CLAIMS = Listing(
    table=_claims,
    key=_claims.c.id,
    row=_claim_body,
    filters={
        name: _claims.c[name]
        for name in ("state", "machine_id", "machine_name", "reservation_id", "tenant", "site", "profile", "cluster_id")
    },
    sorts={"created_at": _claims.c.created_at, "machine_name": _claims.c.machine_name},
    default_sort="-created_at",
    tenant=_claims.c.tenant,
    search=(_claims.c.machine_name,),
)


class _ById(BaseModel):
    id: str = Field(min_length=1, max_length=200)


class _OfProfile(BaseModel):
    name: str = Field(min_length=1, max_length=200)
    site: str | None = Field(default=None, max_length=63)


async def list_reservations(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, RESERVATIONS, call)


async def list_claims(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, CLAIMS, call)


async def get_reservation(conn: AsyncConnection, call: Call) -> Answer:
    """`params.id` (or reservation_id, as the route names it)."""
    wanted = parse(_ById, {"id": call.params.get("id", call.params.get("reservation_id"))})
    if isinstance(wanted, Answer):
        return wanted
    found = await store.load(conn, wanted.id)
    if found is None or not call.may_see(found.tenant):
        return not_found("reservation", wanted.id)
    return Answer(body=model.facts(found).model_dump(mode="json"), etag=f'"{found.version}"')


async def get_availability(conn: AsyncConnection, call: Call) -> Answer:
    """{profile, site, free, total, by_reason, free_by_site}: everybody's machines, no word on whose they are."""
    wanted = parse(_OfProfile, {"name": call.params.get("name"), "site": call.params.get("site") or None})
    if isinstance(wanted, Answer):
        return wanted
    seen = await availability.count(conn, wanted.name, wanted.site)
    return Answer(
        body={
            "profile": wanted.name,
            "site": wanted.site,
            "free": seen.free,
            "total": seen.total,
            "by_reason": seen.by_reason,
            "free_by_site": seen.free_by_site,
        }
    )


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "list_reservations": list_reservations,
    "get_reservation": get_reservation,
    "list_claims": list_claims,
    "get_availability": get_availability,
}
