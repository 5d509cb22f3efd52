"""Checkpoints: once a day, and whenever somebody asks, a signed word on where each service's chain stands.

A checkpoint is a row, an event of ours (so it leaves the database with the stream), and part of every export. Whoever
rewrites the events with all their digests would have to replace every copy of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC
from typing import Any

import sqlalchemy as sa
from slipway.proof import CHECKPOINT, statement
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from libs.bus.context import Context
from libs.bus.topology import EVENT_SERVICES
from libs.contracts.audit import CheckpointFacts, CheckpointSigned
from services.audit import store
from services.audit.signing import Signer

SIGNED = ("service", "number", "day", "last_sequence", "events", "digest", "made_at")
_table = store.checkpoint


async def make_checkpoints(ctx: Context, signer: Signer, *, daily: bool) -> list[CheckpointFacts]:
    """Sign every chain that has grown since its last checkpoint; `daily`: none that has one of this day."""
    # One at a time, so that numbers have no gap and each names the one before.
    await ctx.conn.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('audit.checkpoint'))"))
    await publish_key(ctx.conn, signer)
    made = []
    for service in EVENT_SERVICES:
        facts = await _next(ctx, signer, service, daily=daily)
        if facts is not None:
            ctx.emit(CheckpointSigned(checkpoint=facts), entity_id=service, entity_version=facts.number)
            made.append(facts)
    return made


async def publish_key(conn: AsyncConnection, signer: Signer) -> None:
    row = {"key_id": signer.key_id, "public_key": signer.public_key}
    await conn.execute(insert(store.signing_key).values(row).on_conflict_do_nothing())


async def _next(ctx: Context, signer: Signer, service: str, *, daily: bool) -> CheckpointFacts | None:
    last = await latest(ctx.conn, service)
    day = ctx.now.astimezone(UTC).date()
    if daily and last is not None and last["day"] >= day:
        return None
    sequence, digest = await store.chain_end(ctx.conn, service)
    if sequence <= (last["last_sequence"] if last is not None else 0):
        return None
    since = last["last_sequence"] if last is not None else 0
    facts: dict[str, Any] = {
        "service": service,
        "number": last["number"] + 1 if last is not None else 1,
        "day": day,
        "last_sequence": sequence,
        "events": (last["events"] if last is not None else 0)
        + await store.count_between(ctx.conn, service, since, sequence),
        "digest": digest,
        "made_at": ctx.now.astimezone(UTC),
    }
    unsigned = CheckpointFacts(**facts, statement="", key_id=signer.key_id, signature="")
    said = {name: value for name, value in unsigned.model_dump(mode="json").items() if name in SIGNED}
    previous = hashlib.sha256(last["statement"].encode()).hexdigest() if last is not None else ""
    text = statement(CHECKPOINT, {**said, "previous": previous})
    signed = {"statement": text, "key_id": signer.key_id, "signature": signer.sign(text)}
    await ctx.conn.execute(insert(_table), {**facts, **signed, "daily": daily})
    return unsigned.model_copy(update=signed)


async def latest(conn: AsyncConnection, service: str) -> Mapping[Any, Any] | None:
    """The newest checkpoint's row of a service."""
    found = sa.select(_table).where(_table.c.service == service).order_by(_table.c.number.desc()).limit(1)
    return (await conn.execute(found)).mappings().first()


def facts_of(row: Mapping[Any, Any]) -> CheckpointFacts:
    return CheckpointFacts(**{name: row[name] for name in CheckpointFacts.model_fields})


async def keys(conn: AsyncConnection) -> list[dict[str, Any]]:
    """The public keys that ever signed here, as JWKs, oldest first."""
    found = sa.select(store.signing_key.c.public_key).order_by(store.signing_key.c.first_used_at)
    return [dict(row.public_key) for row in await conn.execute(found)]
