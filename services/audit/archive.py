"""What the services ask of the archive: do you hold these events of mine, and give me those that I have lost.

A service removes events from its outbox only after the digest over their numbers and ids is the same here; a broker
that lost its store is filled again with what this answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.archive import MOST_AT_ONCE, digest_of
from libs.contracts.calls import Answer, Call, not_found
from libs.contracts.envelope import Envelope, sequence_text
from libs.contracts.ids import derived_uuid
from libs.runtime.params import parse
from services.audit import store
from services.audit.record import canonical

PAGE_BYTES = 600 * 1024  # NATS carries 1 MiB by default; the rest is for escaping.


class _Range(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    service: str = Field(min_length=1)
    first: int = Field(ge=1)
    last: int = Field(ge=1)


async def archived(conn: AsyncConnection, call: Call) -> Answer:
    """How many events of the range are here, and the digest over their numbers and ids in order."""
    wanted = parse(_Range, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if call.tenants is not None:
        return not_found("archive", "audit")
    statement = (
        sa.select(store.event.c.sequence, store.event.c.id)
        .where(store.event.c.service == wanted.service)
        .where(store.event.c.sequence.between(wanted.first, min(wanted.last, wanted.first + MOST_AT_ONCE - 1)))
        .order_by(store.event.c.sequence)
    )
    rows = [(row[0], row[1]) for row in await conn.execute(statement)]
    return Answer(body={"count": len(rows), "digest": digest_of(rows)})


async def archived_events(conn: AsyncConnection, call: Call) -> Answer:
    """The kept texts of the range in order, without a hole, cut by size; ask again after the last one.

    Numbers that retention removed are answered with stand-ins: an event's number is its place in the stream.
    """
    wanted = parse(_Range, call.params)
    if isinstance(wanted, Answer):
        return wanted
    if call.tenants is not None:
        return not_found("archive", "audit")
    last = min(wanted.last, wanted.first + MOST_AT_ONCE - 1)
    texts = await store.kept_between(conn, wanted.service, wanted.first, last)
    removed = await store.removed_ranges(conn, wanted.service, wanted.first, last)
    now: datetime = (await conn.execute(sa.select(sa.func.now()))).scalar_one()
    items: list[str] = []
    size = 0
    for sequence in range(wanted.first, last + 1):
        text = texts.get(sequence)
        if text is None and any(low <= sequence <= high for low, high in removed):
            text = stand_in(wanted.service, sequence, now)
        size += len((text or "").encode())
        if text is None or (items and size > PAGE_BYTES):
            break
        items.append(text)
    return Answer(body={"items": items})


def stand_in(service: str, sequence: int, now: datetime) -> str:
    """The text of an event that says only that another one stood here and was removed. Nobody acts on it."""
    id_ = derived_uuid("removed", service, str(sequence))
    made = Envelope(
        id=id_,
        source=f"/slipway/{service}",
        type=f"slipway.{service}.event.removed",
        time=now,
        subject=f"{service}-{sequence}",
        correlationid=id_,
        sequence=sequence_text(sequence),
        data={},
    )
    return canonical(made)


QUERIES: dict[str, Callable[[AsyncConnection, Call], Awaitable[Answer]]] = {
    "archived": archived,
    "archived_events": archived_events,
}
