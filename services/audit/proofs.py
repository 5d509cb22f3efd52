"""Answers that let others check the store: chains walked page by page, checkpoints, removals, keys, exports.

The walk itself is `slipway.proof`, the same code that auditors run on a copy. What is signed is checked by who asks,
with a key that they hold; here nobody is asked to be believed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from slipway.proof import ChainWalk, Problem, with_digest
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.topology import EVENT_SERVICES
from libs.contracts.audit import RemovalFacts
from libs.contracts.calls import Answer, Call, not_found
from libs.contracts.envelope import BadMessage, decode
from libs.runtime.pages import Listing, list_page
from libs.runtime.params import parse
from services.audit import checkpoints, store
from services.audit.record import event_row
from services.audit.requests import ChainPage, ExportPage, cut_page

_Rows = Sequence[Mapping[Any, Any]]
FILTERS = ("service", "type", "entity_id", "tenant", "actor", "correlation_id")


async def export_events(conn: AsyncConnection, call: Call) -> Answer:
    """Envelopes as they were published, each with its `chaindigest`, by service and sequence.

    `next_cursor` goes on where the page was cut.
    """
    wanted = parse(ExportPage, call.params)
    if isinstance(wanted, Answer):
        return wanted
    conditions = store.within(wanted.start, wanted.stop)
    if call.tenants is not None:
        conditions.append(store.event.c.tenant.in_(call.tenants))
    for name in FILTERS:
        if values := getattr(wanted, name):
            conditions.append(store.event.c[name].in_(values))
    rows = await store.exported(conn, conditions, wanted.place(), wanted.limit + 1)
    shown, more = cut_page(rows, wanted.limit)
    cursor = f"{shown[-1]['service']}:{shown[-1]['sequence']}" if shown and more else None
    items = [orjson.loads(with_digest(row["envelope"], row["digest"])) for row in shown]
    return Answer(body={"items": items, "next_cursor": cursor})


async def verify_chain(conn: AsyncConnection, call: Call) -> Answer:
    """With `service`: walk one page of its chain. Without: every service and where its chain ends."""
    if call.tenants is not None:
        return not_found("chain", "audit")
    if not call.params.get("service"):
        return Answer(body={"items": [await _end(conn, service) for service in EVENT_SERVICES], "next_cursor": None})
    wanted = parse(ChainPage, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if wanted.service not in EVENT_SERVICES:
        return not_found("chain", wanted.service)
    return Answer(body=await _walk(conn, wanted))


async def _end(conn: AsyncConnection, service: str) -> dict[str, Any]:
    sequence, digest = await store.chain_end(conn, service)
    checkpoint = await checkpoints.latest(conn, service)
    return {
        "service": service,
        "last_sequence": sequence,
        "digest": digest,
        "checkpoint": checkpoint["number"] if checkpoint is not None else 0,
        "signed_up_to": checkpoint["last_sequence"] if checkpoint is not None else 0,
        "read_up_to": await store.read_position(conn, service),
    }


async def _walk(conn: AsyncConnection, wanted: ChainPage) -> dict[str, Any]:
    until = store.MAX_SEQUENCE if wanted.until is None else wanted.until
    rows, more = await store.chain(conn, wanted.service, wanted.after, until, wanted.limit)
    # What was removed behind the page's last event belongs to the next page.
    reach = rows[-1]["sequence"] if more else until
    removals = await store.removals_within(conn, wanted.service, wanted.after, reach)
    walk = ChainWalk(wanted.service, wanted.after, wanted.digest, removals)
    problems: list[Problem] = []
    for row in rows:
        problems += walk.take(row["sequence"], row["envelope"], row["digest"])
        problems += misplaced(row)
    if not more:
        problems += walk.finish()
        if wanted.until is None:
            problems += await _strangers(conn, wanted.service, walk)
    return {
        "service": wanted.service,
        "checked": walk.checked,
        "sequence": walk.sequence,
        "digest": walk.digest,
        "problems": [problem.document() for problem in problems],
        "more": more,
    }


def misplaced(row: Mapping[Any, Any]) -> Iterator[Problem]:
    """Columns of a row that do not say what its text says: lists would show, or hide, something else."""
    try:
        said = event_row(decode(row["envelope"].encode()), row["digest"])
    except BadMessage as error:
        yield Problem(
            "altered", row["service"], row["sequence"], "an event", str(error), "The text can't be read as an event."
        )
        return
    for name, value in said.items():
        if row[name] != value:
            yield Problem(
                "altered",
                row["service"],
                row["sequence"],
                f"{name} {value!r}, as the event's text says",
                f"{name} {row[name]!r} in the column",
                "A column was changed, or a row was put in under a number that is not its own.",
            )


async def _strangers(conn: AsyncConnection, service: str, walk: ChainWalk) -> list[Problem]:
    """Events beyond what was read from the stream, and events that came under numbers that were taken."""
    found = []
    position = await store.read_position(conn, service)
    if walk.sequence > position:
        found.append(
            Problem(
                "inserted",
                service,
                walk.sequence,
                f"nothing after {position}, how far the stream was read",
                f"events up to {walk.sequence}",
                "Events were put in that did not come from the stream (or restored, and not read from it again yet).",
            )
        )
    for row in await store.contradictions(conn, service):
        found.append(
            Problem(
                "contradicted",
                service,
                row["sequence"],
                "one event under this number",
                f"event {orjson.loads(row['envelope']).get('id')} at {row['found_at'].isoformat()}",
                "Another event came from the stream than the one that is kept: one of the two is not genuine.",
            )
        )
    return found


def _padded(service: sa.ColumnElement[Any], number: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.concat(service, ":", sa.func.lpad(sa.cast(number, sa.Text), 20, "0"))


CHECKPOINTS = Listing(
    table=store.checkpoint,
    key=_padded(store.checkpoint.c.service, store.checkpoint.c.number),
    filters={"service": store.checkpoint.c.service},
    row=lambda row: checkpoints.facts_of(row).model_dump(mode="json"),
)
REMOVALS = Listing(
    table=store.removal,
    key=_padded(store.removal.c.service, store.removal.c.first_sequence),
    filters={"service": store.removal.c.service},
    row=lambda row: RemovalFacts(**{n: row[n] for n in RemovalFacts.model_fields}).model_dump(mode="json"),
)


async def list_checkpoints(conn: AsyncConnection, call: Call) -> Answer:
    return not_found("checkpoint", "audit") if call.tenants is not None else await list_page(conn, CHECKPOINTS, call)


async def list_removals(conn: AsyncConnection, call: Call) -> Answer:
    return not_found("removal", "audit") if call.tenants is not None else await list_page(conn, REMOVALS, call)


async def list_keys(conn: AsyncConnection, call: Call) -> Answer:
    """The public keys that ever signed here, as a JWK Set."""
    return Answer(body={"keys": await checkpoints.keys(conn)})


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "export_events": export_events,
    "verify_chain": verify_chain,
    "list_checkpoints": list_checkpoints,
    "list_removals": list_removals,
    "list_keys": list_keys,
}
