"""Wires subscription together. Run: python -m services.subscription.app"""

from __future__ import annotations

from libs.runtime.service import App, Periodic, Service, main
from services.subscription import callout, consumers, store, webhook_store
from services.subscription.adapters.receiver import HttpReceiver
from services.subscription.broker_tokens import Issuer
from services.subscription.handlers import SubscriberCalls
from services.subscription.model import Patience
from services.subscription.queries import SUBSCRIBER_QUERIES
from services.subscription.sender import Sender
from services.subscription.settings import Settings
from services.subscription.webhook_calls import LEAST_KEY_CHARACTERS, WebhookCalls
from services.subscription.webhook_queries import WEBHOOK_QUERIES

KEEP_SECONDS = 0.5
MEASURE_SECONDS = 5.0
PRUNE_SECONDS = 600.0


async def answer_the_broker(app: App) -> None:
    """Sign subscribers in, where the installation has them."""
    settings = app.settings
    assert isinstance(settings, Settings) and app.nats is not None
    seed = settings.subscribers_issuer_seed.get_secret_value()
    if seed:
        await callout.serve(app.nats, app.database, Issuer(seed))


async def send_webhooks(app: App) -> None:
    """Send until cancelled, where the installation has webhooks."""
    settings = app.settings
    assert isinstance(settings, Settings)
    key = settings.webhook_key.get_secret_value()
    if len(key) < LEAST_KEY_CHARACTERS:
        return
    receiver = HttpReceiver(settings.webhook_timeout_seconds, settings.webhook_allow_networks)
    patience = Patience(
        settings.webhook_first_retry_seconds,
        settings.webhook_longest_retry_seconds,
        settings.webhook_attempts,
        settings.webhook_disable_after_seconds,
    )
    try:
        await Sender(app, receiver, key, patience).run()
    finally:
        await receiver.close()


async def prune_deliveries(app: App) -> None:
    async with app.read() as conn:
        await webhook_store.prune(conn)


def make_service(settings: Settings) -> Service:
    """The service with these settings."""
    return Service(
        name="subscription",
        metadata=store.metadata,
        queries={**SUBSCRIBER_QUERIES, **WEBHOOK_QUERIES},
        calls={**SubscriberCalls(settings).calls(), **WebhookCalls(settings).calls()},
        periodic=(
            Periodic("consumers", KEEP_SECONDS, consumers.keep),
            Periodic("measure", MEASURE_SECONDS, consumers.measure),
            Periodic("webhooks", KEEP_SECONDS, send_webhooks),
            Periodic("deliveries", PRUNE_SECONDS, prune_deliveries),
        ),
        on_start=answer_the_broker,
        settings=settings,
    )


service = make_service(Settings())

if __name__ == "__main__":
    main(service)
