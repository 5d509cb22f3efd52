"""What a reservation and its claims are, and what may happen to them. Pure: time and ids come in as arguments.

Invariant: a reservation's state follows from its claims (`settled`). Each decision returns the reservation after it
(the very same object when nothing changed) or the Problem why not. Uniqueness of a machine's live claim is the
database's to guard, choosing machines is `pool`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from libs.contracts.replies import Problem
from libs.contracts.reservation import ClaimFacts, ClaimState, ReservationFacts
from services.reservation import errors
from services.reservation.states import CLAIM, RESERVATION

MAX_MACHINES = 1024  # The largest cluster that the product speaks of; more is a typing error.
MAX_TTL_SECONDS = 7 * 24 * 3600  # A longer hold would be a claim nobody confirmed.


@dataclass(frozen=True)
class Claim:
    """One machine for one reservation. `accepted_version` is inventory's version when it accepted the machine."""

    id: str
    machine_id: str
    machine_name: str
    machine_version: int
    site: str
    state: ClaimState
    accepted_version: int | None = None
    expires_at: datetime | None = None
    ended_because: str = ""

    def moved(self, event: str, because: str = "") -> Claim:
        """The claim after `event`; illegal events raise IllegalTransition."""
        state = CLAIM.target(self.state, event)
        return replace(
            self,
            state=state,
            expires_at=self.expires_at if state is ClaimState.HELD else None,
            ended_because=because or self.ended_because,
        )


@dataclass(frozen=True)
class Reservation:
    """N machines of a profile for one tenant; `site` is None until machines of one site are held."""

    id: str
    tenant: str
    profile: str
    site: str | None
    count: int
    state: ClaimState
    ttl_seconds: int
    created_at: datetime
    cluster_id: str | None = None
    expires_at: datetime | None = None
    refusal: Problem | None = None
    version: int = 1
    claims: tuple[Claim, ...] = ()

    def claim(self, claim_id: str) -> Claim | None:
        return next((claim for claim in self.claims if claim.id == claim_id), None)

    @property
    def open(self) -> bool:
        """Whether claims may still be confirmed or replaced."""
        return self.state in (ClaimState.HELD, ClaimState.CLAIMED)


def settled(before: Reservation, claims: tuple[Claim, ...]) -> Reservation:
    """`before` with `claims`, one version on, in the state that follows from them.

    CLAIMED never falls back to HELD when a claim is replaced: the tenant's reservation stands, one machine changes.
    """
    live = [claim.state for claim in claims if claim.state.live]
    kept = [state for state in live if state is not ClaimState.RETURNING]
    if kept:
        event = "confirm" if all(state is ClaimState.CLAIMED for state in kept) else "change"
    elif live:
        event = "give_back"
    elif before.state is ClaimState.HELD and all(claim.state is ClaimState.EXPIRED for claim in claims):
        event = "expire"
    else:
        event = "end"
    state = RESERVATION.target(before.state, event)
    limits = [claim.expires_at for claim in claims if claim.state is ClaimState.HELD and claim.expires_at is not None]
    return replace(
        before,
        claims=claims,
        state=state,
        expires_at=min(limits) if limits else None,
        version=before.version + 1,
    )


def _with_claims(before: Reservation, change: Callable[[Claim], Claim]) -> Reservation:
    claims = tuple(change(claim) for claim in before.claims)
    return before if claims == before.claims else settled(before, claims)


def confirm(before: Reservation, claim_id: str, accepted_version: int, now: datetime) -> Reservation | Problem:
    """HELD → CLAIMED for one claim. A repeat with the same version changes nothing."""
    claim = before.claim(claim_id)
    if claim is None:
        return errors.claim_not_found(claim_id, before.id)
    if claim.state is ClaimState.CLAIMED and claim.accepted_version == accepted_version:
        return before
    if claim.state is ClaimState.EXPIRED or (claim.expires_at is not None and claim.expires_at <= now):
        return errors.hold_expired(f"claim {claim_id}")
    if claim.state is not ClaimState.HELD:
        return errors.claim_not_held(claim_id, claim.state)
    if accepted_version < claim.machine_version:
        return errors.bad_request("accepted_version", f"{accepted_version} is older than the held machine's version")
    confirmed = replace(claim.moved("confirm"), accepted_version=accepted_version)
    return _with_claims(before, lambda each: confirmed if each.id == claim_id else each)


def given_up(claim: Claim, seen_in_use: bool, because: str, untouched: Literal["drop", "refuse"] = "drop") -> Claim:
    """The claim after its machine is not wanted any more.

    A HELD claim ends at once (event `untouched`) when the pool never saw inventory take its machine (`seen_in_use`
    False). Everything else waits as RETURNING for inventory's word.
    """
    if claim.state is ClaimState.HELD and not seen_in_use:
        return claim.moved(untouched, because)
    if claim.state in (ClaimState.HELD, ClaimState.CLAIMED):
        return claim.moved("give_back", because)
    return claim


def substitute(before: Reservation, claim_id: str, other: Claim, seen_in_use: bool, because: str) -> Reservation:
    """`other` (HELD) takes the place of the claim, which is given up."""
    claims = tuple(
        given_up(claim, seen_in_use, because, "refuse") if claim.id == claim_id else claim for claim in before.claims
    )
    return settled(before, (*claims, other))


def release(before: Reservation, in_use: Collection[str], because: str) -> Reservation:
    """Every live claim is given up. `in_use`: the ids of claims whose machine the pool saw taken."""
    return _with_claims(before, lambda claim: given_up(claim, claim.id in in_use, because))


def expire(before: Reservation, now: datetime) -> Reservation:
    """Claims still HELD at their time limit are EXPIRED."""

    def at_limit(claim: Claim) -> Claim:
        if claim.state is ClaimState.HELD and claim.expires_at is not None and claim.expires_at <= now:
            return claim.moved("expire", "not confirmed within its time limit")
        return claim

    return _with_claims(before, at_limit)


def end_returned(before: Reservation, returned: Collection[str]) -> Reservation:
    """RETURNING claims whose machine inventory has given back are ENDED."""

    def back(claim: Claim) -> Claim:
        return claim.moved("end") if claim.state is ClaimState.RETURNING and claim.id in returned else claim

    return _with_claims(before, back)


def facts(reservation: Reservation) -> ReservationFacts:
    """What others may know of it."""
    return ReservationFacts(
        id=reservation.id,
        tenant=reservation.tenant,
        profile=reservation.profile,
        site=reservation.site or "-",
        count=reservation.count,
        state=reservation.state,
        cluster_id=reservation.cluster_id,
        expires_at=reservation.expires_at,
        claims=tuple(
            ClaimFacts(
                id=claim.id,
                machine_id=claim.machine_id,
                machine_name=claim.machine_name,
                machine_version=claim.machine_version,
                state=claim.state,
                ended_because=claim.ended_because,
            )
            for claim in reservation.claims
        ),
        refusal=reservation.refusal,
        created_at=reservation.created_at,
        version=reservation.version,
    )
