"""Wires subscription together. Run: python -m services.subscription.app"""

from __future__ import annotations

from libs.runtime.service import App, Periodic, Service, main
from services.subscription import callout, consumers, store
from services.subscription.broker_tokens import Issuer
from services.subscription.handlers import SubscriberCalls
from services.subscription.queries import SUBSCRIBER_QUERIES
from services.subscription.settings import Settings

KEEP_SECONDS = 0.5
MEASURE_SECONDS = 5.0


async def answer_the_broker(app: App) -> None:
    """Sign subscribers in, where the installation has them."""
    settings = app.settings
    assert isinstance(settings, Settings) and app.nats is not None
    seed = settings.subscribers_issuer_seed.get_secret_value()
    if seed:
        await callout.serve(app.nats, app.database, Issuer(seed))


def make_service(settings: Settings) -> Service:
    """The service with these settings."""
    return Service(
        name="subscription",
        metadata=store.metadata,
        queries=SUBSCRIBER_QUERIES,
        calls=SubscriberCalls(settings).calls(),
        periodic=(
            Periodic("consumers", KEEP_SECONDS, consumers.keep),
            Periodic("measure", MEASURE_SECONDS, consumers.measure),
        ),
        on_start=answer_the_broker,
        settings=settings,
    )


service = make_service(Settings())

if __name__ == "__main__":
    main(service)
