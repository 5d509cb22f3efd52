"""Wires cost together. Run: python -m services.cost.app"""

from __future__ import annotations

from libs.runtime.service import App, Periodic, Service, main
from services.cost import store
from services.cost.bootstrap import apply_prices, read_prices
from services.cost.handlers import CALLS, announce_usage
from services.cost.projections import PROJECTIONS
from services.cost.queries import QUERIES
from services.cost.settings import Settings

settings = Settings()


async def apply_price_file(app: App) -> None:
    """On every start, before requests are answered."""
    if settings.bootstrap_prices is None:
        return
    content = read_prices(settings.bootstrap_prices)
    async with app.transaction(actor="system:bootstrap") as ctx:
        await apply_prices(ctx, content)


async def announce(app: App) -> None:
    """Until nothing is left to announce; each round is one transaction."""
    while True:
        async with app.transaction(actor="system:metering") as ctx:
            if await announce_usage(ctx) == 0:
                return


service = Service(
    name="cost",
    metadata=store.metadata,
    projections=PROJECTIONS,
    queries=QUERIES,
    calls=CALLS,
    periodic=(Periodic("announce_usage", settings.announce_every_seconds, announce),),
    on_start=apply_price_file,
    settings=settings,
)

if __name__ == "__main__":
    main(service)
