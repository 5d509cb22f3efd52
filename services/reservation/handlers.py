"""Commands to reservation: hold, confirm, replace, release. Each is one transaction and may be repeated at will."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from libs.bus.context import CommandHandlers, Context
from libs.contracts.ids import is_slug, new_uuid
from libs.contracts.replies import Outcome, Problem, Reply, ok
from libs.contracts.reservation import ClaimState, ConfirmClaim, HoldMachines, ReleaseReservation, ReplaceClaim
from services.reservation import availability, errors, model, pool, store
from services.reservation.announcements import announce
from services.reservation.model import Claim, Reservation


def _no(problem: Problem) -> Reply:
    return Reply(outcome=Outcome.REFUSED, problem=problem)


def _machine(claim: Claim) -> dict[str, Any]:
    return {
        "id": claim.machine_id,
        "claim_id": claim.id,
        "name": claim.machine_name,
        "version": claim.machine_version,
        "site": claim.site,
    }


def _held(reservation: Reservation) -> Reply:
    claims = [claim for claim in reservation.claims if claim.state in (ClaimState.HELD, ClaimState.CLAIMED)]
    return ok(reservation_id=reservation.id, machines=[_machine(claim) for claim in claims])


def _flaw(command: HoldMachines) -> Problem | None:
    if not command.reservation_id.strip():
        return errors.bad_request("reservation_id", "it is blank")
    if not is_slug(command.tenant):
        return errors.bad_request("tenant", f"{command.tenant!r} is not a tenant's id")
    if not command.profile.strip():
        return errors.bad_request("profile", "it is blank")
    if not 1 <= command.count <= model.MAX_MACHINES:
        return errors.bad_request("count", f"{command.count} is not between 1 and {model.MAX_MACHINES}")
    if not 0 <= command.ttl_seconds <= model.MAX_TTL_SECONDS:
        return errors.bad_request("ttl_seconds", f"{command.ttl_seconds} is not between 0 and {model.MAX_TTL_SECONDS}")
    if command.site is not None and not is_slug(command.site):
        return errors.bad_request("site", f"{command.site!r} is not a site's slug")
    return None


def _again(existing: Reservation, command: HoldMachines) -> Reply:
    """The answer to a repeated hold: the same machines, or the same refusal."""
    same = (
        existing.tenant == command.tenant
        and existing.profile == command.profile
        and existing.count == command.count
        and command.site in (None, existing.site)
    )
    if not same:
        return _no(errors.id_reused(existing.id))
    if existing.refusal is not None:
        return _no(existing.refusal)
    if existing.state is ClaimState.EXPIRED:
        return _no(errors.hold_expired(f"reservation {existing.id}"))
    return _held(existing) if existing.open else _no(errors.not_live(existing.id, existing.state))


async def hold_machines(ctx: Context, command: HoldMachines) -> Reply:
    """Hold N machines, all or nothing. The reservation is kept even when it is refused."""
    flaw = _flaw(command)
    if flaw is not None:
        return _no(flaw)
    found = await store.lock(ctx.conn, command.reservation_id)
    if found is not None:
        return _again(found.reservation, command)
    asked = Reservation(
        id=command.reservation_id,
        tenant=command.tenant,
        profile=command.profile,
        site=command.site,
        count=command.count,
        state=ClaimState.HELD,
        ttl_seconds=command.ttl_seconds,
        created_at=ctx.now,
        cluster_id=command.cluster_id,
    )
    excluded = frozenset(command.exclude_machine_ids)
    claims = await pool.take(ctx.conn, _wanted(asked, tuple(new_uuid() for _ in range(command.count)), excluded))
    if claims is None:
        problem = await _why_not(ctx, asked, command.count, excluded)
        after = replace(asked, state=ClaimState.REFUSED, refusal=problem)
    else:
        after = replace(asked, site=claims[0].site, expires_at=claims[0].expires_at, claims=claims)
    await store.add(ctx.conn, after)
    announce(ctx, None, after)
    return _held(after) if after.refusal is None else _no(after.refusal)


def _wanted(
    reservation: Reservation, claim_ids: tuple[str, ...], excluded: frozenset[str], first_position: int = 0
) -> pool.Wanted:
    return pool.Wanted(
        reservation_id=reservation.id,
        profile=reservation.profile,
        site=reservation.site,
        claim_ids=claim_ids,
        ttl_seconds=reservation.ttl_seconds,
        excluded=excluded,
        first_position=first_position,
    )


async def _why_not(ctx: Context, reservation: Reservation, wanted: int, excluded: frozenset[str]) -> Problem:
    seen = await availability.count(ctx.conn, reservation.profile, reservation.site, excluded)
    machines = await availability.not_free(ctx.conn, reservation.profile, reservation.site)
    return availability.refusal(reservation.profile, reservation.site, wanted, seen, machines)


async def confirm_claim(ctx: Context, command: ConfirmClaim) -> Reply:
    """HELD → CLAIMED for one claim."""
    found = await store.lock(ctx.conn, command.reservation_id)
    if found is None:
        return _no(errors.reservation_not_found(command.reservation_id))
    before = found.reservation
    after = model.confirm(before, command.claim_id, command.accepted_version, found.now)
    if isinstance(after, Problem):
        return _no(after)
    await _keep(ctx, before, after)
    return ok(claim_id=command.claim_id)


async def replace_claim(ctx: Context, command: ReplaceClaim) -> Reply:
    """Give one machine up and hold another of the same profile and site in its place."""
    found = await store.lock(ctx.conn, command.reservation_id)
    if found is None:
        return _no(errors.reservation_not_found(command.reservation_id))
    before = found.reservation
    held = before.claim(command.replacement_claim_id)
    if held is not None:
        return ok(machine=_machine(held))
    old = before.claim(command.claim_id)
    if old is None:
        return _no(errors.claim_not_found(command.claim_id, before.id))
    if not before.open:
        return _no(errors.not_live(before.id, before.state))
    # A machine this reservation had before is never tried again: what was wrong with it may not show yet.
    excluded = frozenset(command.exclude_machine_ids) | {claim.machine_id for claim in before.claims}
    wanted = _wanted(before, (command.replacement_claim_id,), excluded, first_position=len(before.claims))
    claims = await pool.take(ctx.conn, wanted)
    if claims is None:
        return _no(await _why_not(ctx, before, 1, excluded))
    after = model.substitute(before, old.id, claims[0], old.id in found.in_use, command.reason)
    await _keep(ctx, before, after)
    return ok(machine=_machine(claims[0]))


async def release_reservation(ctx: Context, command: ReleaseReservation) -> Reply:
    """Every live claim is given up. One that was never made is released already."""
    found = await store.lock(ctx.conn, command.reservation_id)
    if found is None:
        return ok(released=0)
    before = found.reservation
    after = model.release(before, found.in_use, command.reason)
    await _keep(ctx, before, after)
    return ok(released=sum(1 for claim in before.claims if claim.state.live))


async def _keep(ctx: Context, before: Reservation, after: Reservation) -> None:
    if after is not before:
        await store.save(ctx.conn, before, after)
        announce(ctx, before, after)


COMMANDS: CommandHandlers = {
    HoldMachines: hold_machines,
    ConfirmClaim: confirm_claim,
    ReplaceClaim: replace_claim,
    ReleaseReservation: release_reservation,
}
