"""Which event tells of a change of a reservation: one event for each version, so that none is missed."""

from __future__ import annotations

from libs.bus.context import Context
from libs.contracts.message import Message
from libs.contracts.reservation import (
    ClaimState,
    ReservationChanged,
    ReservationConfirmed,
    ReservationEnded,
    ReservationExpired,
    ReservationHeld,
    ReservationRefused,
    ReservationReturning,
)
from services.reservation import model
from services.reservation.model import Reservation

_ARRIVALS = {
    ClaimState.HELD: ReservationHeld,
    ClaimState.REFUSED: ReservationRefused,
    ClaimState.CLAIMED: ReservationConfirmed,
    ClaimState.RETURNING: ReservationReturning,
    ClaimState.ENDED: ReservationEnded,
    ClaimState.EXPIRED: ReservationExpired,
}


def event_of(before: Reservation | None, after: Reservation) -> Message:
    """The event for `before` → `after`; `before` is None for a new reservation."""
    facts = model.facts(after)
    if before is not None and before.state is after.state:
        return ReservationChanged(reservation=facts)
    return _ARRIVALS[after.state](reservation=facts)


def announce(ctx: Context, before: Reservation | None, after: Reservation) -> None:
    """Emit it."""
    ctx.emit(
        event_of(before, after),
        entity_id=after.id,
        entity_version=after.version,
        site=after.site or "-",
        tenant=after.tenant,
    )
