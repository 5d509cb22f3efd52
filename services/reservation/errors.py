"""Permanent codes of what reservation refuses, with the words a person reads. Codes never change their meaning."""

from __future__ import annotations

from libs.contracts.replies import Problem

NOT_ENOUGH_MACHINES = "reservation.not_enough_machines"
NOT_FOUND = "reservation.not_found"
ID_REUSED = "reservation.id_reused"
BAD_REQUEST = "reservation.bad_request"
HOLD_EXPIRED = "reservation.hold_expired"
NOT_LIVE = "reservation.not_live"
CLAIM_NOT_FOUND = "reservation.claim_not_found"
CLAIM_NOT_HELD = "reservation.claim_not_held"


def reservation_not_found(reservation_id: str) -> Problem:
    return Problem(
        code=NOT_FOUND,
        message=f"There is no reservation {reservation_id!r}.",
        next_step="Hold machines first.",
    )


def id_reused(reservation_id: str) -> Problem:
    return Problem(
        code=ID_REUSED,
        message=f"Reservation {reservation_id} exists already for another tenant, profile, count or site.",
        next_step="Choose a new reservation id for a different request.",
    )


def bad_request(field: str, message: str) -> Problem:
    return Problem(
        code=BAD_REQUEST,
        message=f"{field}: {message}",
        next_step=f"Correct {field} and send the request again.",
        details={"field": field},
    )


def hold_expired(what: str) -> Problem:
    return Problem(
        code=HOLD_EXPIRED,
        message=f"The time limit of {what} has passed; its machines may be held by others now.",
        next_step="Hold machines again with a new reservation.",
    )


def not_live(reservation_id: str, state: str) -> Problem:
    return Problem(
        code=NOT_LIVE,
        message=f"Reservation {reservation_id} is {state}; nothing can be claimed or replaced in it any more.",
        next_step="Hold machines again with a new reservation.",
    )


def claim_not_found(claim_id: str, reservation_id: str) -> Problem:
    return Problem(
        code=CLAIM_NOT_FOUND,
        message=f"Reservation {reservation_id} has no claim {claim_id!r}.",
        next_step="Look at the reservation's claims.",
    )


def claim_not_held(claim_id: str, state: str) -> Problem:
    return Problem(
        code=CLAIM_NOT_HELD,
        message=f"Claim {claim_id} is {state}; only a HELD claim can be confirmed.",
        next_step="Look at the reservation's claims.",
    )
