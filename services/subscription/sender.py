"""Sends webhooks: each by a task of its own under a lease, so that a slow or dead receiver harms nobody else.

A turn reads what is next, sends it outside any transaction, and then writes what became of it. A crash in between sends
that turn again, under the same ids. What failed waits in the table, and with it what comes later about the same entity.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson
import structlog
from prometheus_client import Counter, Gauge, Histogram

from libs.bus.follow import Followed, Follower, Gap, numbering_for, public_event
from libs.bus.lease import Lease
from libs.bus.position import Position
from libs.bus.topology import EVENT_SERVICES
from libs.contracts.envelope import NONE_TOKEN
from libs.contracts.subscription import Signature, WebhookState
from libs.runtime.service import App
from libs.runtime.tasks import end_all
from services.subscription import store, webhook_store
from services.subscription.adapters.receiver import Outcome, Receiver
from services.subscription.announcements import emit_webhook
from services.subscription.model import Interest, Patience, Streak, disable_reason, gives_up
from services.subscription.signatures import signed_headers
from services.subscription.webhook_store import DELIVERED, EVENT, GIVEN_UP, PING, WAITING

LOOK_SECONDS = 1.0
QUIET_SECONDS = 1.0  # How long a turn waits for an event; what is due to be tried again waits no longer.
LEASE_SECONDS = 120.0
LONGEST_TURN = timedelta(seconds=30)  # With one time-out more still well within the lease.
AT_ONCE = 4  # Requests to one receiver.
TURN = 16  # Events of one turn: what a crash sends twice at most.
MOST_WAITING = 500  # Then nothing new is read for this webhook: its place in the stream waits instead.
GAP_TYPE = "slipway.subscription.gap"
CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"

log = structlog.get_logger("sender")
SENT = Counter("slipway_webhook_requests_total", "Requests to receivers", ["webhook", "outcome"])
SECONDS = Histogram("slipway_webhook_seconds", "Time of a request to a receiver", ["webhook"])
WAITS = Gauge("slipway_webhook_waiting", "Deliveries that wait to be tried again", ["webhook"])
FAILING = Gauge("slipway_webhook_failing_seconds", "Since when nothing gets through; 0: it works", ["webhook"])


@dataclass(frozen=True)
class Item:
    """One thing to send. `delivery_id` None: it comes from the stream and has not waited yet."""

    message_id: str
    entity_id: str
    type: str
    payload: bytes
    kind: str = EVENT
    delivery_id: int | None = None
    attempts: int = 0


@dataclass
class Turn:
    """What one turn has to do and what became of it."""

    row: Mapping[Any, Any]
    now: datetime
    items: list[Item]
    read: list[Item] = field(default_factory=list)  # From the stream, in its order.
    began: float = field(default_factory=time.monotonic)
    position: Position | None = None
    gaps: int = 0
    caught_up: bool | None = None
    outcomes: list[tuple[Item, Outcome]] = field(default_factory=list)
    behind: list[Item] = field(default_factory=list)  # Not tried: something of the same entity waits before them.

    @property
    def elapsed(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self.began)


class Sender:
    """All webhooks that this process has the lease of."""

    def __init__(self, app: App, receiver: Receiver, key: str, patience: Patience) -> None:
        self.app, self.receiver, self.key, self.patience = app, receiver, key, patience
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look after every webhook until cancelled."""
        try:
            while True:
                async with self.app.read() as conn:
                    wanted = await webhook_store.to_work_on(conn)
                for webhook_id in wanted:
                    task = self._tasks.get(webhook_id)
                    if task is None or task.done():
                        self._tasks[webhook_id] = asyncio.create_task(self._look_after(webhook_id))
                self._tasks = {id_: task for id_, task in self._tasks.items() if not task.done()}
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await end_all(self._tasks.values())

    async def _look_after(self, webhook_id: str) -> None:
        worker = Worker(self, webhook_id)
        try:
            while await worker.turn():
                pass
        except Exception as error:
            log.warning("webhook_turn_failed", webhook=webhook_id, error=repr(error), exc_info=error)
        finally:
            await worker.close()


class Worker:
    """Sends one webhook's events for as long as the lease is ours."""

    def __init__(self, sender: Sender, webhook_id: str) -> None:
        self.sender, self.app, self.webhook_id = sender, sender.app, webhook_id
        self.lease = Lease("subscription", f"webhook:{webhook_id}", self.app.holder, LEASE_SECONDS)
        self._stack = AsyncExitStack()
        self._follower: Follower | None = None
        self._follows: tuple[Any, ...] = ()
        self._read: list[Followed | Gap] = []

    async def close(self) -> None:
        await self._stack.aclose()

    async def turn(self) -> bool:
        """One turn. False: there is nothing to do for us here now."""
        async with self.app.read() as conn:
            if await self.lease.take(conn) is None:
                return False
            row = await webhook_store.load(conn, self.webhook_id)
            if row is None:
                return False
            now = await store.database_now(conn)
            waiting = await webhook_store.first_waiting(conn, self.webhook_id, TURN)
            blocked, count = await webhook_store.waiting_entities(conn, self.webhook_id)
        WAITS.labels(self.webhook_id).set(count)
        streak = Streak(row["failures"], row["failing_since"])
        active = row["state"] == WebhookState.ACTIVE
        due = [_waited(one) for one in waiting if one["due_at"] <= now and (active or one["kind"] == PING)]
        if streak.open:
            due = [item for item in due if item.kind == PING] or due[:1]
        turn = Turn(row, now, due)
        if active and count < MOST_WAITING and (due or not streak.open):
            # While nothing gets through, one more event is tried each time something is due: when that one does, it was
            # not the receiver that failed but a single event.
            await self._read_on(turn, blocked, 1 if streak.open else TURN, QUIET_SECONDS if not due else 0.01)
        elif not due:
            await asyncio.sleep(QUIET_SECONDS)
            return bool(active)
        if turn.read and not await self._as_before(turn.row):
            self._follows = ()  # Paused, moved or changed while we waited: look again, from where the table says.
            return True
        await self._send(turn)
        await self._write(turn, streak)
        return True

    # -- reading --------------------------------------------------------------------------------

    async def _read_on(self, turn: Turn, blocked: set[str], most: int, timeout: float) -> None:
        """Add what is next in the stream, `most` to be tried; what must wait for something earlier is set aside."""
        follower = await self._at(turn.row)
        if not self._read:
            self._read = await follower.next_batch(timeout)
        interest, room = _interest(turn.row), TURN
        while self._read and room and most:
            one, room = self._read.pop(0), room - 1
            turn.position = one.position
            item = _gap_item(turn.row, one, turn.now) if isinstance(one, Gap) else _event_item(turn.row, one)
            turn.gaps += isinstance(one, Gap)
            if isinstance(one, Followed) and not interest.matches(one.envelope):
                continue
            turn.read.append(item)
            if item.entity_id in blocked:
                turn.behind.append(item)
            else:
                turn.items.append(item)
                most -= 1
        turn.caught_up = follower.caught_up and not self._read

    async def _at(self, row: Mapping[Any, Any]) -> Follower:
        """The follower that stands where the table says; a new one when somebody moved it or it wants other events."""
        follows = (row["moves"], tuple(row["services"]))
        if self._follower is None or follows != self._follows:
            await self._stack.aclose()
            self._stack, self._read = AsyncExitStack(), []
            tenants = None if row["tenant"] == NONE_TOKEN else (row["tenant"],)
            position = Position.parse(row["position"], numbering_for(tenants))
            services = tuple(row["services"]) or EVENT_SERVICES
            assert self.app.nats is not None
            follower = Follower(self.app.nats.jetstream(), tenants, services, position)
            self._follower, self._follows = await self._stack.enter_async_context(follower), follows
        return self._follower

    async def _as_before(self, row: Mapping[Any, Any]) -> bool:
        async with self.app.read() as conn:
            now = await webhook_store.load(conn, self.webhook_id)
        return now is not None and (now["version"], now["moves"]) == (row["version"], row["moves"])

    # -- sending --------------------------------------------------------------------------------

    async def _send(self, turn: Turn) -> None:
        """Entities beside each other, the events of one entity in order and only while they get through."""
        at_once = asyncio.Semaphore(AT_ONCE)
        by_entity: dict[str, list[Item]] = {}
        for item in turn.items:
            by_entity.setdefault(item.entity_id, []).append(item)

        async def in_order(items: Sequence[Item]) -> None:
            for number, item in enumerate(items):
                if turn.elapsed > LONGEST_TURN:
                    turn.behind += items[number:]
                    return
                async with at_once:
                    outcome = await self._post(turn, item)
                turn.outcomes.append((item, outcome))
                if not outcome.ok:
                    turn.behind += items[number + 1 :]
                    return

        await asyncio.gather(*(in_order(items) for items in by_entity.values()))

    async def _post(self, turn: Turn, item: Item) -> Outcome:
        row = turn.row
        generations = [row["generation"]]
        if row["old_generation_until"] is not None and turn.now < row["old_generation_until"]:
            generations.append(row["generation"] - 1)
        now = turn.now + turn.elapsed  # Of this attempt: receivers refuse what is minutes old.
        use = Signature(row["signature"])
        signed = signed_headers(self.sender.key, row["id"], generations, use, item.message_id, now, item.payload)
        headers = {"Content-Type": CONTENT_TYPE, "User-Agent": "Slipway-Webhooks/1", **signed}
        with SECONDS.labels(self.webhook_id).time():
            outcome = await self.sender.receiver.post(row["url"], headers, item.payload)
        SENT.labels(self.webhook_id, "ok" if outcome.ok else str(outcome.status or "none")).inc()
        return outcome

    # -- writing --------------------------------------------------------------------------------

    async def _write(self, turn: Turn, streak: Streak) -> None:
        """What became of the turn, in one transaction, if the lease is still ours."""
        if not turn.outcomes and not turn.behind and turn.position is None:
            return
        reason, delivered, error = "", 0, None
        async with self.app.transaction() as ctx:
            if await self.lease.take(ctx.conn) is None:
                return
            await webhook_store.lock(ctx.conn, self.webhook_id)
            now = await store.database_now(ctx.conn)
            parked: dict[str, dict[str, Any]] = {}
            for item, outcome in turn.outcomes:
                if item.kind == EVENT:
                    streak = streak.after(outcome.ok, now)
                    delivered += outcome.ok
                    reason = reason or disable_reason(streak, outcome.status, now, self.sender.patience)
                error = outcome.error or error
                if (waits := await self._account(ctx.conn, item, outcome, streak, now)) is not None:
                    parked[item.message_id] = self._row(item, now) | waits
            parked |= {item.message_id: self._row(item, now) for item in turn.behind if item.delivery_id is None}
            # In the order of the stream: the ids that they get are the order in which they are tried.
            in_order = [parked[item.message_id] for item in turn.read if item.message_id in parked]
            await webhook_store.add_waiting(ctx.conn, in_order)
            await self._save(ctx.conn, turn, streak, delivered, error, now)
            if reason:
                await self._disable(ctx, turn.row, reason)
        since = streak.since
        FAILING.labels(self.webhook_id).set((now - since).total_seconds() if since else 0)

    async def _account(
        self, conn: Any, item: Item, outcome: Outcome, streak: Streak, now: datetime
    ) -> dict[str, Any] | None:
        """Write one outcome; returns how it waits when it came from the stream and has to wait from now on."""
        attempts = item.attempts + 1
        values: dict[str, Any] = {"attempts": attempts, "status": outcome.status, "error": outcome.error or None}
        if outcome.ok:
            values |= {"state": DELIVERED, "finished_at": now}
        elif item.kind == PING or gives_up(attempts, streak, self.sender.patience):
            values |= {"state": GIVEN_UP, "finished_at": now}
        else:
            values |= {"due_at": now + self.sender.patience.wait(attempts, outcome.retry_after)}
        if item.delivery_id is not None:
            await webhook_store.finish(conn, item.delivery_id, **values)
            return None
        return None if outcome.ok else values

    def _row(self, item: Item, now: datetime) -> dict[str, Any]:
        return {
            "webhook_id": self.webhook_id,
            "kind": item.kind,
            "message_id": item.message_id,
            "entity_id": item.entity_id,
            "type": item.type,
            "payload": item.payload,
            "state": WAITING,
            "attempts": 0,
            "due_at": now,
            "created_at": now,
        }

    async def _save(
        self, conn: Any, turn: Turn, streak: Streak, delivered: int, error: str | None, now: datetime
    ) -> None:
        progress = store.webhook_progress.c
        values: dict[str, Any] = {
            "failures": streak.failures,
            "failing_since": streak.since,
            "delivered": progress.delivered + delivered,
            "gaps": progress.gaps + turn.gaps,
            "updated_at": now,
        }
        if delivered:
            values["last_delivered_at"] = now
        if error is not None:
            values["last_error"] = error
        if turn.caught_up is not None:
            values["caught_up"] = turn.caught_up
        position = turn.position.token() if turn.position is not None else turn.row["position"]
        await webhook_store.save_progress(conn, self.webhook_id, turn.row["moves"], position, **values)

    async def _disable(self, ctx: Any, row: Mapping[Any, Any], reason: str) -> None:
        values = {"state": WebhookState.DISABLED, "problem": reason, "updated_at": ctx.now}
        if await store.change(ctx.conn, store.webhook, row, **values):
            log.warning("webhook_disabled", webhook=row["id"], name=row["name"], tenant=row["tenant"], reason=reason)
            emit_webhook(ctx, webhook_store.webhook_facts({**row, **values, "version": row["version"] + 1}))


def _interest(row: Mapping[Any, Any]) -> Interest:
    return Interest(frozenset(row["services"]), frozenset(row["types"]), frozenset(row["entities"]))


def _waited(row: Mapping[Any, Any]) -> Item:
    names = ("message_id", "entity_id", "type", "kind", "attempts")
    return Item(payload=bytes(row["payload"]), delivery_id=row["id"], **{name: row[name] for name in names})


def _event_item(row: Mapping[Any, Any], one: Followed) -> Item:
    envelope = one.envelope
    payload = one.payload if row["tenant"] == NONE_TOKEN else orjson.dumps(public_event(envelope))
    return Item(envelope["id"], envelope["subject"], envelope["type"], payload)


def _gap_item(row: Mapping[Any, Any], gap: Gap, now: datetime) -> Item:
    """A missing number is sent as an event of its own: silence would look like nothing had happened."""
    id_ = f"gap-{gap.key}-{gap.first}-{gap.last}"
    envelope = {
        "id": id_,
        "source": "/slipway/subscription",
        "type": GAP_TYPE,
        "specversion": "1.0",
        "time": now.isoformat(),
        "subject": gap.key,
        "datacontenttype": "application/json",
        "tenant": row["tenant"],
        "data": {"of": gap.key, "first": gap.first, "last": gap.last},
    }
    return Item(id_, gap.key, GAP_TYPE, orjson.dumps(envelope))
