"""Make, change, pause, test, replay and delete webhooks. Sending is the sender's work; this only says what shall be."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import orjson

from libs.bus.context import Context
from libs.bus.follow import LOOK_BACK, numbering_for
from libs.bus.position import Position
from libs.contracts.calls import Answer, Call, not_found, problem
from libs.contracts.envelope import NONE_TOKEN, new_message_id
from libs.contracts.ids import new_id
from libs.contracts.subscription import WebhookFacts, WebhookState
from libs.runtime.calls import CallHandlers
from libs.runtime.params import invalid, parse
from services.subscription import errors, store, webhook_store
from services.subscription.adapters.receiver import permitted
from services.subscription.announcements import emit_webhook
from services.subscription.errors import changed_meanwhile, refused_tenant
from services.subscription.model import url_problem
from services.subscription.requests import ById, ChangeWebhook, NewWebhook, OneDelivery, Replay, Rotate
from services.subscription.settings import Settings
from services.subscription.signatures import receiver_key

PING_TYPE = "slipway.subscription.ping"
LEAST_KEY_CHARACTERS = 32
LISTS = ("services", "types", "entities")


def tenants_of(row: Mapping[Any, Any]) -> tuple[str, ...] | None:
    """Whose events a webhook gets; None: everybody's."""
    return None if row["tenant"] == NONE_TOKEN else (row["tenant"],)


def beginning(tenant: str, begin: str | datetime, now: datetime) -> Position:
    """Where a webhook begins that was made at `now`."""
    numbering = numbering_for(None if tenant == NONE_TOKEN else (tenant,))
    if begin == "start":
        return Position(numbering)
    since = now if isinstance(begin, str) else begin
    return Position(numbering, since + LOOK_BACK)  # A follower looks back; what was before is not wanted.


class WebhookCalls:
    """The writes. `settings` has limits, the key of all secrets and what may be reached."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.key = settings.webhook_key.get_secret_value()

    def calls(self) -> CallHandlers:
        return {
            "create_webhook": self.create,
            "change_webhook": self.change,
            "pause_webhook": self.pause,
            "enable_webhook": self.enable,
            "rotate_webhook": self.rotate,
            "test_webhook": self.test,
            "replay_webhook": self.replay,
            "retry_delivery": self.retry,
            "delete_webhook": self.delete,
        }

    async def create(self, ctx: Context, call: Call) -> Answer:
        """POST /webhooks → 201 with what its receiver checks signatures with."""
        wanted = parse(NewWebhook, call.params)
        if isinstance(wanted, Answer):
            return wanted
        refused = refused_tenant(call, wanted.of) or self._bad_url(wanted.url) or await self._full(ctx, wanted.of)
        if refused is not None:
            return refused
        facts = WebhookFacts(
            id=new_id("whk"),
            name=wanted.name,
            tenant=wanted.of,
            url=wanted.url,
            services=wanted.services,
            types=wanted.types,
            entities=wanted.entities,
            signature=wanted.signature,
            state=WebhookState.ACTIVE,
            generation=1,
            created_by=ctx.actor,
            created_at=ctx.now,
            version=1,
        )
        row = {**facts.model_dump(), **{name: list(getattr(facts, name)) for name in LISTS}, "updated_at": ctx.now}
        position = beginning(wanted.of, wanted.begin, ctx.now).token()
        if not await webhook_store.add_webhook(ctx.conn, row, position, ctx.now):
            return problem(
                409, errors.WEBHOOK_EXISTS, f"There is a webhook {wanted.name!r} already.", "Choose another name."
            )
        emit_webhook(ctx, facts)
        return Answer(
            status=201, body=self._with_key(facts), etag="1", location=f"/webhooks/{facts.id}", once=("signing_key",)
        )

    async def change(self, ctx: Context, call: Call) -> Answer:
        """PATCH /webhooks/{id}: its URL or what it wants."""
        wanted = parse(ChangeWebhook, call.params)
        if isinstance(wanted, Answer):
            return wanted
        if wanted.url is not None and (refused := self._bad_url(wanted.url)) is not None:
            return refused
        given = wanted.model_dump(exclude_none=True, exclude={"id"})
        values = {name: list(value) if name in LISTS else value for name, value in given.items()}
        return await self._changed(ctx, call, wanted.id, values)

    async def pause(self, ctx: Context, call: Call) -> Answer:
        """POST /webhooks/{id}/pause: nothing is sent until it is enabled; nothing is lost either."""
        return await self._changed(
            ctx, call, str(call.params.get("id", "")), {"state": WebhookState.PAUSED, "problem": ""}
        )

    async def enable(self, ctx: Context, call: Call) -> Answer:
        """POST /webhooks/{id}/enable: go on where it stopped; what waits is tried at once."""
        id_ = str(call.params.get("id", ""))
        answer = await self._changed(ctx, call, id_, {"state": WebhookState.ACTIVE, "problem": ""})
        if answer.status < 400:
            await webhook_store.forget_failures(ctx.conn, answer.body["id"], ctx.now)
        return answer

    async def rotate(self, ctx: Context, call: Call) -> Answer:
        """POST /webhooks/{id}/rotate: a new key; for the grace requests carry a signature of each."""
        wanted = parse(Rotate, call.params)
        if isinstance(wanted, Answer):
            return wanted
        row = await store.find(ctx.conn, store.webhook, wanted.id, call.tenants, lock=True)
        if row is None:
            return not_found("webhook", wanted.id)
        until = ctx.now + timedelta(seconds=wanted.grace_seconds) if wanted.grace_seconds else None
        values = {"generation": row["generation"] + 1, "old_generation_until": until}
        answer = await self._changed(ctx, call, row["id"], values)
        if answer.status >= 400:
            return answer
        facts = WebhookFacts.model_validate(answer.body)
        return Answer(body=self._with_key(facts), etag=str(facts.version), once=("signing_key",))

    async def test(self, ctx: Context, call: Call) -> Answer:
        """POST /webhooks/{id}/test → 202: a ping is sent, whatever the webhook's state; look at its delivery."""
        wanted = parse(ById, call.params)
        if isinstance(wanted, Answer):
            return wanted
        row = await store.find(ctx.conn, store.webhook, wanted.id, call.tenants)
        if row is None:
            return not_found("webhook", wanted.id)
        waiting = waiting_row(row["id"], webhook_store.PING, ping(row, ctx.now), ctx.now)
        [id_] = await webhook_store.add_waiting(ctx.conn, [waiting])
        return Answer(
            status=202,
            body={"webhook_id": row["id"], "delivery_id": id_},
            location=f"/webhooks/{row['id']}/deliveries/{id_}",
        )

    async def replay(self, ctx: Context, call: Call) -> Answer:
        """POST /webhooks/{id}/replay → 202: send again from an instant, from the start, or behind a number."""
        wanted = parse(Replay, call.params)
        if isinstance(wanted, Answer):
            return wanted
        row = await store.find(ctx.conn, store.webhook, wanted.id, call.tenants, lock=True)
        if row is None:
            return not_found("webhook", wanted.id)
        if wanted.begin is not None:
            position = beginning(row["tenant"], wanted.begin, ctx.now)
        else:
            position = await self._behind(ctx, row, str(wanted.service), int(wanted.after or 0))
        await webhook_store.move(ctx.conn, row["id"], position.token(), ctx.now)
        return Answer(status=202, body={"webhook_id": row["id"], "note": "Events come again with the ids they had."})

    async def _behind(self, ctx: Context, row: Mapping[Any, Any], service: str, number: int) -> Position:
        """Where it is, but of one service behind `number`."""
        numbering = numbering_for(tenants_of(row))
        progress = await webhook_store.load(ctx.conn, row["id"])
        assert progress is not None
        now = Position.parse(progress["position"], numbering)
        key = service if row["tenant"] == NONE_TOKEN else f"{row['tenant']}/{service}"
        return Position(numbering, None, {**now.seen, key: number})

    async def retry(self, ctx: Context, call: Call) -> Answer:
        """POST /webhooks/{id}/deliveries/{delivery_id}/retry → 202 for one that was given up."""
        wanted = parse(OneDelivery, call.params)
        if isinstance(wanted, Answer):
            return wanted
        row = await store.find(ctx.conn, store.webhook, wanted.id, call.tenants)
        if row is None:
            return not_found("webhook", wanted.id)
        if not await webhook_store.retry(ctx.conn, row["id"], wanted.delivery_id, ctx.now):
            return problem(
                409,
                errors.DELIVERY_STATE,
                f"Delivery {wanted.delivery_id} of {row['name']} was not given up.",
                "List those that were: GET /webhooks/{id}/deliveries?state=GIVEN_UP",
            )
        return Answer(status=202, body={"webhook_id": row["id"], "delivery_id": wanted.delivery_id})

    async def delete(self, ctx: Context, call: Call) -> Answer:
        """DELETE /webhooks/{id}: nothing more is sent."""
        answer = await self._changed(
            ctx, call, str(call.params.get("id", "")), {"state": WebhookState.DELETED, "problem": ""}
        )
        if answer.status < 400:
            await webhook_store.drop_waiting(ctx.conn, answer.body["id"])
        return answer

    async def _changed(self, ctx: Context, call: Call, id_: str, values: dict[str, Any]) -> Answer:
        row = await store.find(ctx.conn, store.webhook, id_, call.tenants, lock=True)
        if row is None:
            return not_found("webhook", id_)
        if call.if_match not in (None, "*", str(row["version"])):
            return changed_meanwhile()
        if not await store.change(ctx.conn, store.webhook, row, **values, updated_at=ctx.now):
            return changed_meanwhile()
        facts = webhook_store.webhook_facts({**row, **values, "version": row["version"] + 1})
        emit_webhook(ctx, facts)
        return Answer(body=facts.model_dump(mode="json"), etag=str(facts.version))

    def _with_key(self, facts: WebhookFacts) -> dict[str, Any]:
        key = receiver_key(self.key, facts.id, facts.generation, facts.signature)
        return {**facts.model_dump(mode="json"), "signing_key": key}

    def _bad_url(self, url: str) -> Answer | None:
        wrong = url_problem(url, plain_http=self.settings.webhook_plain_http)
        if not wrong:
            try:
                address = ipaddress.ip_address(str(urlsplit(url).hostname))
            except ValueError:
                return None  # A name: where it leads is looked at whenever it is used.
            if not permitted(address, self.settings.webhook_allow_networks):
                wrong = f"leads to {address}, which is not a public address; an operator can allow its network"
        return invalid([{"field": "url", "message": wrong}]) if wrong else None

    async def _full(self, ctx: Context, tenant: str) -> Answer | None:
        if len(self.key) < LEAST_KEY_CHARACTERS:
            return problem(
                409,
                errors.WEBHOOK_OFF,
                "This installation sends no webhooks.",
                "Set SLIPWAY_WEBHOOK_KEY (deployment guide), or use a subscriber or the live stream.",
            )
        if await store.count_of(ctx.conn, store.webhook, tenant) >= self.settings.webhooks_per_tenant:
            return problem(
                409,
                errors.WEBHOOK_LIMIT,
                f"{self.settings.webhooks_per_tenant} webhooks are allowed for one tenant.",
                "Delete one that is not used.",
            )
        return None


def ping(row: Mapping[Any, Any], now: datetime) -> dict[str, Any]:
    """A CloudEvent that says nothing but that the way is open."""
    id_ = new_message_id()
    return {
        "id": id_,
        "source": "/slipway/subscription",
        "type": PING_TYPE,
        "specversion": "1.0",
        "time": now.isoformat(),
        "subject": id_,
        "datacontenttype": "application/json",
        "tenant": row["tenant"],
        "data": {"webhook": row["id"], "name": row["name"]},
    }


def waiting_row(webhook_id: str, kind: str, envelope: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """A delivery that is due now."""
    return {
        "webhook_id": webhook_id,
        "kind": kind,
        "message_id": envelope["id"],
        "entity_id": envelope["subject"],
        "type": envelope["type"],
        "payload": orjson.dumps(envelope),
        "state": webhook_store.WAITING,
        "due_at": now,
        "created_at": now,
    }
