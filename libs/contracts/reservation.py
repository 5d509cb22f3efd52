"""Reservation: who may have which machines, when. The only owner of claims.

A reservation asks for N machines of a profile, all or nothing; it holds one claim a machine. A claim id is
also Ironic's instance_uuid, which fences deploys.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from libs.contracts.message import Message, command, event
from libs.contracts.replies import Problem


class ClaimState(StrEnum):
    HELD = "HELD"
    CLAIMED = "CLAIMED"
    RETURNING = "RETURNING"
    ENDED = "ENDED"
    EXPIRED = "EXPIRED"
    REFUSED = "REFUSED"

    @property
    def live(self) -> bool:
        return self in (ClaimState.HELD, ClaimState.CLAIMED, ClaimState.RETURNING)


class ClaimFacts(Message):
    """One machine for one tenant. `machine_version` is inventory's version at the time of the hold."""

    id: str
    machine_id: str
    machine_name: str
    machine_version: int
    state: ClaimState
    ended_because: str = ""


class ReservationFacts(Message):
    id: str
    tenant: str
    profile: str
    site: str
    count: int
    state: ClaimState
    cluster_id: str | None = None
    expires_at: datetime | None = None
    claims: tuple[ClaimFacts, ...] = ()
    refusal: Problem | None = None
    created_at: datetime
    version: int


class _ReservationEvent(Message):
    reservation: ReservationFacts

    def key(self) -> str:
        return self.reservation.id


@event("reservation", "reservation", "held")
class ReservationHeld(_ReservationEvent):
    """Machines were found and are held for a tenant."""


@event("reservation", "reservation", "refused")
class ReservationRefused(_ReservationEvent):
    """There were not enough machines; the reasons are in it."""


@event("reservation", "reservation", "confirmed")
class ReservationConfirmed(_ReservationEvent):
    """Every claim is CLAIMED."""


@event("reservation", "reservation", "changed")
class ReservationChanged(_ReservationEvent):
    """A claim was confirmed, replaced or ended; the reservation lives on."""


@event("reservation", "reservation", "returning")
class ReservationReturning(_ReservationEvent):
    """The machines of a reservation are being given back."""


@event("reservation", "reservation", "ended")
class ReservationEnded(_ReservationEvent):
    """Every machine of a reservation has come back."""


@event("reservation", "reservation", "expired")
class ReservationExpired(_ReservationEvent):
    """A hold was not confirmed in time; its machines are free again."""


@command("reservation", "hold_machines")
class HoldMachines(Message):
    """Hold `count` eligible machines of `profile`, all or nothing, for `ttl_seconds`.

    The caller chooses `reservation_id`, so that a repeat is the same hold. Reply data: reservation_id, machines:
    [{id, claim_id, name, version, site}]. Refused with the reason machine by machine.
    """

    reservation_id: str
    tenant: str
    profile: str
    count: int
    site: str | None = None
    cluster_id: str | None = None
    ttl_seconds: int = 1800
    exclude_machine_ids: tuple[str, ...] = ()

    def key(self) -> str:
        return self.reservation_id


@command("reservation", "confirm_claim")
class ConfirmClaim(Message):
    """HELD → CLAIMED for one claim, after inventory accepted the machine at `accepted_version`."""

    reservation_id: str
    claim_id: str
    accepted_version: int

    def key(self) -> str:
        return self.reservation_id


@command("reservation", "replace_claim")
class ReplaceClaim(Message):
    """The machine of `claim_id` is given up (its claim is RETURNING); another one is held in its place.

    `replacement_claim_id` is the caller's choice, so that a repeat is the same replacement.
    Reply data: machine: {id, claim_id, name, version, site}. Refused when no other machine is free.
    """

    reservation_id: str
    claim_id: str
    replacement_claim_id: str
    reason: str
    exclude_machine_ids: tuple[str, ...] = ()

    def key(self) -> str:
        return self.reservation_id


@command("reservation", "release_reservation")
class ReleaseReservation(Message):
    """Every live claim → RETURNING (one that inventory never accepted → ENDED). Idempotent."""

    reservation_id: str
    reason: str

    def key(self) -> str:
        return self.reservation_id
