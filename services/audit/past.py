"""The state of a machine, cluster or tenant as of an instant, from the events that are kept.

Events carry the whole entity (decision 0006), so the newest one up to the instant is the answer. Whether it is the
newest there ever was has to be certain: where retention has removed events that could have come after it, the answer is
a refusal that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.calls import Answer, Call, not_found, problem
from libs.runtime.params import parse
from services.audit import errors, store
from services.audit.requests import StateAt

OWNERS = {"machine": "inventory", "cluster": "provisioning", "tenant": "identity"}
ENDED = frozenset({"DELETED", "RETIRED", "FAILED"})
MAX_NAMESAKES = 50  # Clusters that ever had one name; more than anybody asks about by name.
_event = store.event


async def get_state(conn: AsyncConnection, call: Call) -> Answer:
    """The entity's facts as of `at`, and in `as_of_event` which event they are from."""
    wanted = parse(StateAt, call.params)
    if isinstance(wanted, Answer):
        return wanted
    now: datetime = (await conn.execute(sa.select(sa.func.now()))).scalar_one()
    if wanted.at > now:
        return problem(
            422,
            errors.IN_THE_FUTURE,
            f"{wanted.at.isoformat()} has not come yet; it is {now.isoformat()}.",
            "Ask for an instant that is over, or leave `at` out for the present state.",
        )
    ids = [wanted.entity_id]
    if not await _known(conn, wanted, call.tenants):
        ids = await _named(conn, wanted, call.tenants)
        if not ids:
            return not_found(wanted.entity_kind, wanted.entity_id)
    found = [await _state(conn, wanted, id_, call.tenants) for id_ in ids]
    return found[0] if len(found) == 1 else _one_of(wanted, ids, found)


def _scope(wanted: StateAt, tenants: Sequence[str] | None) -> list[sa.ColumnElement[bool]]:
    scope = [_event.c.entity_kind == wanted.entity_kind, _event.c.service == OWNERS[wanted.entity_kind]]
    return scope if tenants is None else [*scope, _event.c.tenant.in_(tenants)]


async def _known(conn: AsyncConnection, wanted: StateAt, tenants: Sequence[str] | None) -> bool:
    mine = sa.select(sa.literal(1)).where(_event.c.entity_id == wanted.entity_id, *_scope(wanted, tenants)).limit(1)
    return (await conn.execute(mine)).first() is not None


async def _named(conn: AsyncConnection, wanted: StateAt, tenants: Sequence[str] | None) -> list[str]:
    """Entities of this kind that bore the name at the instant, or, if none did yet, that ever did."""
    mentioned = (
        sa.select(_event.c.entity_id, sa.func.min(_event.c.time).label("since"))
        .where(_event.c.mentions.contains([wanted.entity_id]), *_scope(wanted, tenants))
        .group_by(_event.c.entity_id)
        .order_by(sa.desc("since"))
        .limit(MAX_NAMESAKES)
    )
    bearers, later = [], []
    for row in (await conn.execute(mentioned)).all():
        newest = await _newest(conn, wanted, row.entity_id, tenants, wanted.at)
        if newest is not None and _facts(wanted, newest).get("name") == wanted.entity_id:
            bearers.append(row.entity_id)
        elif newest is None:
            first = await _first_after(conn, wanted, row.entity_id, tenants, -1)
            if first is not None and _facts(wanted, first).get("name") == wanted.entity_id:
                later.append(row.entity_id)
    return bearers or later[-1:]


async def _newest(
    conn: AsyncConnection, wanted: StateAt, id_: str, tenants: Sequence[str] | None, until: datetime
) -> Mapping[Any, Any] | None:
    found = (
        sa.select(_event)
        .where(_event.c.entity_id == id_, _event.c.time <= until, *_scope(wanted, tenants))
        .order_by(_event.c.entity_version.desc())
        .limit(1)
    )
    return (await conn.execute(found)).mappings().first()


async def _first_after(
    conn: AsyncConnection, wanted: StateAt, id_: str, tenants: Sequence[str] | None, version: int
) -> Mapping[Any, Any] | None:
    found = (
        sa.select(_event)
        .where(_event.c.entity_id == id_, _event.c.entity_version > version, *_scope(wanted, tenants))
        .order_by(_event.c.entity_version)
        .limit(1)
    )
    return (await conn.execute(found)).mappings().first()


async def _state(conn: AsyncConnection, wanted: StateAt, id_: str, tenants: Sequence[str] | None) -> Answer:
    newest = await _newest(conn, wanted, id_, tenants, wanted.at)
    version = newest["entity_version"] if newest is not None else 0
    following = await _first_after(conn, wanted, id_, tenants, version)
    if following is None or following["entity_version"] != version + 1:
        # Versions between may be among what was removed, unless all that was removed is older than this event.
        after = newest["sequence"] if newest is not None else 0
        until = following["sequence"] if following is not None else store.MAX_SEQUENCE
        if await store.removed_ranges(conn, OWNERS[wanted.entity_kind], after + 1, until):
            return _removed(wanted, id_)
    if newest is None:
        assert following is not None, f"{id_} was seen a moment ago"
        return problem(
            404,
            errors.NOT_YET,
            f"The {wanted.entity_kind} {id_!r} did not exist at {wanted.at.isoformat()}; "
            f"the first that is known of it is of {following['time'].isoformat()}.",
            "Ask for a later instant.",
        )
    return Answer(body={**_facts(wanted, newest), "as_of_event": await _origin(conn, wanted, newest)})


async def _origin(conn: AsyncConnection, wanted: StateAt, row: Mapping[Any, Any]) -> dict[str, Any]:
    known = sa.select(sa.func.max(_event.c.time)).where(_event.c.service == row["service"])
    newest: datetime = (await conn.execute(known)).scalar_one()
    return {
        "at": wanted.at.isoformat(),
        "id": row["id"],
        "type": row["type"],
        "service": row["service"],
        "sequence": row["sequence"],
        "entity_version": row["entity_version"],
        "time": row["time"].isoformat(),
        # Nothing of the owner is known here that happened later than this.
        "known_until": newest.isoformat(),
    }


def _facts(wanted: StateAt, row: Mapping[Any, Any]) -> dict[str, Any]:
    facts = orjson.loads(row["envelope"])["data"].get(wanted.entity_kind)
    return facts if isinstance(facts, dict) else {}


def _removed(wanted: StateAt, id_: str) -> Answer:
    return problem(
        410,
        errors.REMOVED,
        f"The state of {wanted.entity_kind} {id_!r} at {wanted.at.isoformat()} can't be told: retention has removed "
        "events that may have been about it.",
        "Ask for a later instant, or look into an export from before (slipway events verify --file).",
    )


def _one_of(wanted: StateAt, ids: Sequence[str], answers: Sequence[Answer]) -> Answer:
    """Of several that bore the name: the only one that had not ended."""
    living = [answer for answer in answers if answer.status == 200 and answer.body.get("state") not in ENDED]
    if len(living) == 1:
        return living[0]
    return problem(
        409,
        errors.AMBIGUOUS,
        f"{len(ids)} {wanted.entity_kind}s bore the name {wanted.entity_id!r} until {wanted.at.isoformat()}: "
        f"{', '.join(sorted(ids))}.",
        "Ask for one by its id.",
    )


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {"get_state": get_state}
