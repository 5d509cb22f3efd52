"""Answers for the gateway about machines and where they are. Every one says how old the source's data is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, literal_column, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.ids import is_uuid
from libs.contracts.inventory import DeviceTypeFacts, ProfileFacts, RackFacts, SiteFacts
from libs.contracts.message import json_data
from libs.runtime.calls import QueryHandlers
from libs.runtime.pages import Listing, list_page
from services.inventory import store
from services.inventory.listed import listed_body
from services.inventory.model.machine import Machine, objections


def machine_body(machine: Machine) -> dict[str, Any]:
    """The facts and why it can't be claimed; `rack_id`, `deadline_at`, `fault` and `source_problem` for operators."""
    return {
        **json_data(machine.facts()),
        "rack_id": machine.rack_id,
        "objections": list(objections(machine)),
        "deadline_at": machine.deadline_at.isoformat() if machine.deadline_at else None,
        "fault": machine.fault,
        "source_problem": machine.source_problem,
    }


_m = store.machine_table.c
_YES_NO = {"yes", "no"}


def _in_rack(values: Sequence[Any]) -> ColumnElement[bool]:
    """By name or id. One index is asked for each, so that a second filter need not be read for the whole fleet."""
    ids = [value for value in values if is_uuid(str(value))]
    if not ids:
        return _m.rack.in_(values)
    return _m.rack_id.in_(ids) if len(ids) == len(values) else or_(_m.rack.in_(values), _m.rack_id.in_(ids))


def _is_held(values: Sequence[Any]) -> ColumnElement[bool]:
    if set(values) - _YES_NO:
        raise ValueError(f"{values[0]!r} is neither yes nor no")
    return _m.held.in_([value == "yes" for value in values])


def _before(values: Sequence[Any]) -> ColumnElement[bool]:
    """In its state since before this instant."""
    return _m.state_since < datetime.fromisoformat(str(values[0]))


MACHINES = Listing(
    table=store.machine_table,
    key=_m.id,
    row=lambda row: listed_body(row["facts"]),
    # The inspection is the largest part of a row, and no list shows it.
    columns=(_m.facts.op("-", return_type=JSONB())(literal_column("'inspection'::text")).label("facts"),),
    filters={
        "state": _m.state,
        "site": _m.site,
        "profile": _m.profile,
        "health": _m.health,
        "device_type": _m.device_type,
        "claim_id": _m.claim_id,
        "cluster_id": _m.cluster_id,
        "tenant": _m.tenant,
    },
    conditions={"rack": _in_rack, "held": _is_held, "state_before": _before},
    sorts={"name": _m.name, "state": _m.state, "site": _m.site, "rack": _m.rack, "state_since": _m.state_since},
    default_sort="name",
    text=_m.search,
)
SITES = Listing(
    table=store.site_table,
    key=store.site_table.c.slug,
    row=lambda row: json_data(SiteFacts.model_validate(dict(row))),
    sorts={"slug": store.site_table.c.slug, "name": store.site_table.c.name},
    default_sort="slug",
    search=(store.site_table.c.slug, store.site_table.c.name),
)
RACKS = Listing(
    table=store.rack_table,
    key=store.rack_table.c.id,
    row=lambda row: json_data(RackFacts.model_validate(dict(row))),
    filters={"site": store.rack_table.c.site, "name": store.rack_table.c.name},
    sorts={"name": store.rack_table.c.name, "site": store.rack_table.c.site},
    default_sort="name",
    search=(store.rack_table.c.name,),
)
DEVICE_TYPES = Listing(
    table=store.device_type_table,
    key=store.device_type_table.c.slug,
    row=lambda row: json_data(DeviceTypeFacts.model_validate(dict(row))),
    sorts={"slug": store.device_type_table.c.slug, "model": store.device_type_table.c.model},
    default_sort="slug",
    search=(store.device_type_table.c.slug, store.device_type_table.c.model),
)
PROFILES = Listing(
    table=store.profile_table,
    key=store.profile_table.c.name,
    row=lambda row: json_data(ProfileFacts.model_validate(row["facts"])),
    sorts={"name": store.profile_table.c.name},
    default_sort="name",
    search=(store.profile_table.c.name,),
)


async def _as_of(conn: AsyncConnection) -> str | None:
    """When the source was last read well, null when never."""
    table = store.source_table
    statement = select(table.c.last_good_at).where(table.c.name == store.NETBOX_SOURCE)
    good: datetime | None = (await conn.execute(statement)).scalar()
    return good.isoformat() if good else None


async def list_machines(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, MACHINES, call, as_of=await _as_of(conn))


async def list_sites(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, SITES, call, as_of=await _as_of(conn))


async def list_racks(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, RACKS, call, as_of=await _as_of(conn))


async def list_device_types(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, DEVICE_TYPES, call, as_of=await _as_of(conn))


async def list_profiles(conn: AsyncConnection, call: Call) -> Answer:
    return await list_page(conn, PROFILES, call)


async def get_machine(conn: AsyncConnection, call: Call) -> Answer:
    wanted = str(call.params.get("machine_id", ""))
    found = await store.find(conn, wanted)
    if not found:
        return not_found("machine", wanted)
    if len(found) > 1:
        return ambiguous(wanted, found)
    (machine,) = found
    return Answer(body={**machine_body(machine), "as_of": await _as_of(conn)}, etag=f'"{machine.version}"')


def ambiguous(name: str, found: list[Machine]) -> Answer:
    """Two machines of one name: nobody may guess which."""
    return problem(
        409,
        "machine.ambiguous",
        f"There are {len(found)} machines called {name!r}.",
        "Use the id of the one you mean.",
        machines=[{"id": machine.id, "site": machine.site, "rack": machine.rack} for machine in found],
    )


async def get_site(conn: AsyncConnection, call: Call) -> Answer:
    slug = str(call.params.get("slug") or call.params.get("site") or "")
    table = store.site_table
    row = (await conn.execute(select(table).where(table.c.slug == slug))).mappings().first()
    if row is None:
        return not_found("site", slug)
    return Answer(body={**json_data(SiteFacts.model_validate(dict(row))), "as_of": await _as_of(conn)})


async def get_rack(conn: AsyncConnection, call: Call) -> Answer:
    rack_id = str(call.params.get("rack_id", ""))
    table = store.rack_table
    row = (await conn.execute(select(table).where(table.c.id == rack_id))).mappings().first()
    if row is None:
        return not_found("rack", rack_id)
    machines = await store.machines_where(conn, _m.rack_id == rack_id)
    body = {**json_data(RackFacts.model_validate(dict(row))), "machines": [_brief(machine) for machine in machines]}
    return Answer(body={**body, "as_of": await _as_of(conn)})


def _brief(machine: Machine) -> dict[str, Any]:
    return {"id": machine.id, "name": machine.name, "position": machine.position, "state": machine.state.value}


async def get_profile(conn: AsyncConnection, call: Call) -> Answer:
    name = str(call.params.get("name", ""))
    facts = await store.profile(conn, name)
    if facts is None:
        return not_found("profile", name)
    return Answer(body=json_data(facts), etag=f'"{facts.version}"')


async def list_sources(conn: AsyncConnection, call: Call) -> Answer:
    """How reading NetBox goes: when it last went well, since when not, and which records can't be used."""
    rows = (await conn.execute(select(store.source_table))).mappings().all()
    waiting = (
        await conn.execute(select(store.writeback_table).order_by(store.writeback_table.c.due_at).limit(50))
    ).mappings()
    writes = [{name: w[name] for name in ("netbox_id", "machine_id", "attempts", "last_error")} for w in waiting]
    items = [_source_body(dict(row), writes) for row in rows]
    return Answer(body={"items": items, "next_cursor": None, "as_of": items[0]["last_good_at"] if items else None})


def _source_body(row: dict[str, Any], writes: list[dict[str, Any]]) -> dict[str, Any]:
    times = {
        name: row[name].isoformat() if row[name] else None
        for name in ("last_good_at", "last_full_at", "failing_since", "watermark")
    }
    others = {name: row[name] for name in ("name", "last_error", "devices_seen", "problems")}
    return {**others, **times, "healthy": row["last_good_at"] is not None and not row["last_error"], "writes": writes}


QUERIES: QueryHandlers = {
    "list_machines": list_machines,
    "get_machine": get_machine,
    "list_sites": list_sites,
    "get_site": get_site,
    "list_racks": list_racks,
    "get_rack": get_rack,
    "list_device_types": list_device_types,
    "list_profiles": list_profiles,
    "get_profile": get_profile,
    "list_sources": list_sources,
}
