"""Make, change and delete subscribers. The broker's consumer follows by itself (consumers.py), also after a crash.

A password is answered once, when it is made, and kept as a digest.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from libs.bus.context import Context
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.ids import new_id
from libs.contracts.subscription import SubscriberFacts, SubscriberState
from libs.runtime.calls import CallHandlers
from libs.runtime.params import parse
from services.subscription import errors, store
from services.subscription.announcements import emit_subscriber
from services.subscription.errors import changed_meanwhile, refused_tenant
from services.subscription.model import STREAM, consumer_name
from services.subscription.requests import Begin, ById, NewSubscriber, Rotate
from services.subscription.settings import Settings
from services.subscription.signatures import inbox_prefix, new_password, password_digest


def credentials(settings: Settings, facts: SubscriberFacts, password: str) -> dict[str, Any]:
    """All that a NATS client needs; the caller's only chance to see the password."""
    return {
        "server": settings.subscribers_server or settings.nats_url,
        "user": facts.id,
        "password": password,
        "stream": STREAM,
        "consumer": consumer_name(facts.id, facts.generation),
        "inbox_prefix": inbox_prefix(password),
    }


def begins(wanted: Begin, ctx: Context) -> dict[str, Any]:
    if isinstance(wanted.begin, str):
        return {"begins": wanted.begin, "begins_at": ctx.now}
    return {"begins": "time", "begins_at": wanted.begin}


class SubscriberCalls:
    """The writes. `settings` has limits and the broker's address."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def calls(self) -> CallHandlers:
        return {
            "create_subscriber": self.create,
            "rotate_subscriber": self.rotate,
            "delete_subscriber": self.delete,
        }

    async def create(self, ctx: Context, call: Call) -> Answer:
        """POST /subscribers → 201 with the credentials."""
        wanted = parse(NewSubscriber, call.params)
        if isinstance(wanted, Answer):
            return wanted
        if (refused := refused_tenant(call, wanted.of) or await self._refused(ctx, wanted)) is not None:
            return refused
        password = new_password()
        facts = SubscriberFacts(
            id=new_id("sbr"),
            name=wanted.name,
            tenant=wanted.of,
            subjects=wanted.wanted,
            state=SubscriberState.PENDING,
            max_ack_pending=wanted.max_ack_pending,
            ack_wait_seconds=wanted.ack_wait_seconds,
            generation=1,
            created_by=ctx.actor,
            created_at=ctx.now,
            version=1,
        )
        row = {
            **facts.model_dump(),
            **begins(wanted, ctx),
            "subjects": list(facts.subjects),
            "max_waiting": wanted.max_waiting,
            "password_digest": password_digest(password),
            "cleaned": False,
            "updated_at": ctx.now,
        }
        if not await store.add_subscriber(ctx.conn, row):
            return problem(
                409,
                errors.SUBSCRIBER_EXISTS,
                f"There is a subscriber {wanted.name!r} already.",
                "Choose another name, or replace its credentials (slipway subscribers rotate).",
            )
        emit_subscriber(ctx, facts)
        body = {**facts.model_dump(mode="json"), "credentials": credentials(self.settings, facts, password)}
        return Answer(status=201, body=body, etag="1", location=f"/subscribers/{facts.id}", once=("credentials",))

    async def _refused(self, ctx: Context, wanted: NewSubscriber) -> Answer | None:
        if not self.settings.subscribers_issuer_seed.get_secret_value():
            return problem(
                409,
                errors.SUBSCRIBER_OFF,
                "This installation gives no credentials for the broker.",
                "Set SLIPWAY_SUBSCRIBERS_ISSUER_SEED (deployment guide), or use a webhook or the live stream.",
            )
        if await store.count_of(ctx.conn, store.subscriber, wanted.of) >= self.settings.subscribers_per_tenant:
            return problem(
                409,
                errors.SUBSCRIBER_LIMIT,
                f"{self.settings.subscribers_per_tenant} subscribers are allowed for one tenant.",
                "Delete one that is not used; slipway subscribers list shows when each last acknowledged.",
            )
        return None

    async def rotate(self, ctx: Context, call: Call) -> Answer:
        """POST /subscribers/{id}/rotate → new credentials; the old ones end now, or after the grace."""
        wanted = parse(Rotate, call.params)
        if isinstance(wanted, Answer):
            return wanted
        row = await store.find(ctx.conn, store.subscriber, wanted.id, call.tenants, lock=True)
        if row is None:
            return not_found("subscriber", wanted.id)
        password = new_password()
        values: dict[str, Any] = {"password_digest": password_digest(password), "updated_at": ctx.now}
        if wanted.grace_seconds:
            until = ctx.now + timedelta(seconds=wanted.grace_seconds)
            values |= {"old_password_digest": row["password_digest"], "old_password_until": until}
        else:
            values |= {"old_password_digest": None, "old_password_until": None}
            values |= {"generation": row["generation"] + 1, "cleaned": False, "state": SubscriberState.PENDING}
        if not await store.change(ctx.conn, store.subscriber, row, **values):
            return changed_meanwhile()
        facts = store.subscriber_facts({**row, **values, "version": row["version"] + 1})
        emit_subscriber(ctx, facts)
        body = {**facts.model_dump(mode="json"), "credentials": credentials(self.settings, facts, password)}
        return Answer(body=body, etag=str(facts.version), once=("credentials",))

    async def delete(self, ctx: Context, call: Call) -> Answer:
        """DELETE /subscribers/{id}: its consumer and its place in the stream are gone for good."""
        wanted = parse(ById, call.params)
        if isinstance(wanted, Answer):
            return wanted
        row = await store.find(ctx.conn, store.subscriber, wanted.id, call.tenants, lock=True)
        if row is None:
            return not_found("subscriber", wanted.id)
        if call.if_match not in (None, "*", str(row["version"])):
            return changed_meanwhile()
        values = {"state": SubscriberState.DELETED, "cleaned": False, "updated_at": ctx.now}
        if not await store.change(ctx.conn, store.subscriber, row, **values):
            return changed_meanwhile()
        facts = store.subscriber_facts({**row, **values, "version": row["version"] + 1})
        emit_subscriber(ctx, facts)
        return Answer(body=facts.model_dump(mode="json"))
