"""Keeps the broker's durable consumers as the table says, and measures how each subscriber is doing.

Safe to repeat and to crash anywhere: what is to be done is read from the table and from the broker each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import nats.js.errors
import structlog
from nats.js import JetStreamContext, api
from prometheus_client import Gauge

from libs.contracts.subscription import SubscriberState
from libs.runtime.service import App
from services.subscription import store
from services.subscription.announcements import emit_subscriber
from services.subscription.model import STREAM, consumer_name

# A consumer that was lost with the broker's disk begins again so long before its last acknowledgement.
LOOK_BACK = timedelta(seconds=60)

log = structlog.get_logger("consumers")
BEHIND = Gauge("slipway_subscriber_behind_messages", "Events the subscriber has not taken", ["subscriber", "name"])
PENDING = Gauge("slipway_subscriber_unacknowledged", "Events taken and not acknowledged", ["subscriber", "name"])
UNSEEN = Gauge("slipway_subscriber_unseen_seconds", "Seconds since it last took anything", ["subscriber", "name"])


async def keep(app: App) -> None:
    """Bring every consumer that is not as it shall be in line."""
    assert app.nats is not None
    js = app.nats.jetstream()
    async with app.read() as conn:
        rows = await store.unclean(conn)
    for row in rows:
        if row["state"] == SubscriberState.DELETED:
            await _remove(js, row["id"], row["generation"])
        else:
            await _ensure(js, row)
        async with app.transaction() as ctx:
            if row["state"] != SubscriberState.PENDING:
                await store.mark_clean(ctx.conn, row)
                continue
            values = {"cleaned": True, "state": SubscriberState.ACTIVE}
            if await store.change(ctx.conn, store.subscriber, row, **values):
                emit_subscriber(ctx, store.subscriber_facts({**row, **values, "version": row["version"] + 1}))


async def _ensure(js: JetStreamContext, row: Mapping[Any, Any]) -> None:
    """Make the consumer of this generation, where the one before it stood; then remove that."""
    name = consumer_name(row["id"], row["generation"])
    if await _info(js, name) is None:
        before = await _info(js, consumer_name(row["id"], row["generation"] - 1))
        await js.add_consumer(STREAM, _config(row, name, before))
        log.info("consumer_made", subscriber=row["id"], consumer=name)
    if row["generation"] > 1:
        await _remove(js, row["id"], row["generation"] - 1)


def _config(row: Mapping[Any, Any], name: str, before: api.ConsumerInfo | None) -> api.ConsumerConfig:
    config = api.ConsumerConfig(
        durable_name=name,
        description=f"subscriber {row['name']} of {row['tenant']}",
        filter_subjects=list(row["subjects"]),
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=row["ack_wait_seconds"],
        max_deliver=-1,
        max_ack_pending=row["max_ack_pending"],
        max_waiting=row["max_waiting"],
        deliver_policy=api.DeliverPolicy.BY_START_TIME,
    )
    if before is not None and before.ack_floor is not None:
        config.deliver_policy = api.DeliverPolicy.BY_START_SEQUENCE
        config.opt_start_seq = before.ack_floor.stream_seq + 1
    elif row["acknowledged_at"] is not None:
        config.opt_start_time = row["acknowledged_at"] - LOOK_BACK
    elif row["begins"] == "start":
        config.deliver_policy = api.DeliverPolicy.ALL
    else:
        config.opt_start_time = row["begins_at"]
    return config


async def _info(js: JetStreamContext, name: str) -> api.ConsumerInfo | None:
    try:
        info: api.ConsumerInfo = await js.consumer_info(STREAM, name)
        return info
    except nats.js.errors.NotFoundError:
        return None


async def _remove(js: JetStreamContext, subscriber_id: str, generation: int) -> None:
    """Remove the consumer of this generation and of the one before."""
    for number in (generation, generation - 1):
        if number > 0:
            try:
                await js.delete_consumer(STREAM, consumer_name(subscriber_id, number))
            except nats.js.errors.NotFoundError:
                continue


async def measure(app: App) -> None:
    """Ask the broker how far each subscriber is; one whose consumer has vanished gets it again."""
    assert app.nats is not None
    js = app.nats.jetstream()
    async with app.read() as conn:
        rows = await store.live(conn)
        now = await store.database_now(conn)
    first = (await js.stream_info(STREAM)).state.first_seq if rows else 0
    found = []
    for row in rows:
        info = await _info(js, consumer_name(row["id"], row["generation"]))
        if info is None:
            async with app.read() as conn:
                await store.mark_unclean(conn, row["id"])
            continue
        status = _status(row, info, first, now)
        found.append(status)
        labels = (row["id"], row["name"])
        BEHIND.labels(*labels).set(status["behind"])
        PENDING.labels(*labels).set(status["unacknowledged"])
        seen = status["last_seen_at"] or row["created_at"]
        UNSEEN.labels(*labels).set(max((now - seen).total_seconds(), 0.0))
    _forget_gone({(row["id"], row["name"]) for row in rows})
    async with app.read() as conn:
        await store.put_status(conn, found)


def _forget_gone(live: set[tuple[str, str]]) -> None:
    """A deleted subscriber's numbers would stand still for ever."""
    for gauge in (BEHIND, PENDING, UNSEEN):
        for sample in next(iter(gauge.collect())).samples:
            labels = (sample.labels["subscriber"], sample.labels["name"])
            if labels not in live:
                gauge.remove(*labels)


def _status(row: Mapping[Any, Any], info: api.ConsumerInfo, first: int, now: Any) -> dict[str, Any]:
    floor = info.ack_floor.stream_seq if info.ack_floor else 0
    delivered = info.delivered
    return {
        "subscriber_id": row["id"],
        "behind": info.num_pending or 0,
        "unacknowledged": info.num_ack_pending or 0,
        "redelivered": info.num_redelivered or 0,
        "acknowledged_through": floor,
        # The stream's limits took what it had not got: told, never passed over.
        "lost_before": first if floor and first > floor + 1 and info.num_pending else 0,
        "last_seen_at": delivered.last_active if delivered else None,
        "acknowledged_at": info.ack_floor.last_active if info.ack_floor else None,
        "measured_at": now,
    }
