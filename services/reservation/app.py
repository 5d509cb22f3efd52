"""Reservation as a process: `python -m services.reservation.app`."""

from __future__ import annotations

from libs.runtime.service import App, Periodic, Service, main
from services.reservation import store, sweeps
from services.reservation.handlers import COMMANDS
from services.reservation.projections import PROJECTIONS
from services.reservation.queries import QUERIES
from services.reservation.settings import Settings

EXPIRY_ACTOR = "system:hold-expiry"
RETURNS_ACTOR = "system:returned-claims"


async def expire_holds(app: App) -> None:
    async with app.transaction(actor=EXPIRY_ACTOR) as ctx:
        await sweeps.expire_holds(ctx)


async def end_returned_claims(app: App) -> None:
    async with app.transaction(actor=RETURNS_ACTOR) as ctx:
        await sweeps.end_returned_claims(ctx)


_settings = Settings()
service = Service(
    name="reservation",
    metadata=store.metadata,
    settings=_settings,
    commands=COMMANDS,
    projections=PROJECTIONS,
    queries=QUERIES,
    periodic=(
        Periodic("expire_holds", _settings.reservation_expire_every_seconds, expire_holds),
        Periodic("end_returned_claims", _settings.reservation_end_every_seconds, end_returned_claims),
    ),
)

if __name__ == "__main__":
    main(service)
