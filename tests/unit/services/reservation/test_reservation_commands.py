"""Hold, confirm, replace and release on a real database: commands in, events and claims out."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import IntegrityError

from libs.contracts.inventory import MachineFacts, MachineState
from libs.contracts.replies import Outcome, Reply
from libs.contracts.reservation import ClaimState, ConfirmClaim, HoldMachines, ReleaseReservation, ReplaceClaim
from libs.testing.kit import ServiceKit
from services.reservation import sweeps
from services.reservation.app import service
from services.reservation.store import claim_table
from tests.unit.services.reservation.pool_events import PROFILE, machine, on_hold, quarantined, told


@pytest.fixture
async def kit(service_kit: Any) -> ServiceKit:
    kit: ServiceKit = await service_kit(service)
    return kit


async def know(kit: ServiceKit, *machines: MachineFacts) -> None:
    await kit.project("pool", told(*machines))


def hold(reservation_id: str = "rsv-1", count: int = 2, **changes: Any) -> HoldMachines:
    asked = {"reservation_id": reservation_id, "tenant": "acme", "profile": PROFILE, "count": count, **changes}
    return HoldMachines.model_validate(asked)


async def must(kit: ServiceKit, command: Any) -> dict[str, Any]:
    reply = await kit.command(command)
    assert reply is not None and reply.ok, reply
    return reply.data


async def refused(kit: ServiceKit, command: Any) -> Reply:
    reply = await kit.command(command)
    assert reply is not None and reply.outcome is Outcome.REFUSED, reply
    return reply


async def event_names(kit: ServiceKit) -> list[str]:
    return [event.type.rpartition(".")[2] for event in await kit.events()]


async def states(kit: ServiceKit) -> dict[str, str]:
    async with kit.database.transaction() as conn:
        rows = await conn.execute(
            select(claim_table.c.machine_id, claim_table.c.state).order_by(claim_table.c.position)
        )
        return {row.machine_id: row.state for row in rows}


async def confirmed(kit: ServiceKit, count: int = 2) -> dict[str, Any]:
    """A reservation whose claims are all CLAIMED, accepted at version 6."""
    held = await must(kit, hold(count=count))
    for each in held["machines"]:
        await must(kit, ConfirmClaim(reservation_id="rsv-1", claim_id=each["claim_id"], accepted_version=6))
    return held


async def sweep(kit: ServiceKit) -> None:
    async with kit.app.transaction() as ctx:
        await sweeps.expire_holds(ctx)
    async with kit.app.transaction() as ctx:
        await sweeps.end_returned_claims(ctx)


async def test_a_hold_takes_machines_of_one_rack_when_one_has_enough(kit: ServiceKit) -> None:
    racks = ["r1", "r2", "r1", "r2", "r2"]
    await know(kit, *(machine(number, rack=rack) for number, rack in enumerate(racks)))
    held = await must(kit, hold(count=3))
    assert [each["name"][-1] for each in held["machines"]] == ["1", "3", "4"]
    assert {each["version"] for each in held["machines"]} == {5}
    assert await event_names(kit) == ["held"]


async def test_a_hold_spreads_over_racks_when_no_rack_has_enough(kit: ServiceKit) -> None:
    await know(kit, *(machine(number, rack=f"r{number % 3}") for number in range(6)))
    held = await must(kit, hold(count=5))
    assert len({each["id"] for each in held["machines"]}) == 5


async def test_all_machines_of_a_hold_are_of_one_site(kit: ServiceKit) -> None:
    await know(kit, *(machine(number, site=f"s{number % 3 + 1}") for number in range(5)))
    held = await must(kit, hold(count=2))
    assert len({each["site"] for each in held["machines"]}) == 1
    reply = await refused(kit, hold("rsv-2", count=3))
    assert reply.problem is not None and "at most" in reply.problem.message


async def test_the_same_hold_again_is_the_same_answer(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(4)))
    assert await must(kit, hold()) == await must(kit, hold())
    assert await event_names(kit) == ["held"]
    assert len(await states(kit)) == 2


async def test_the_same_id_for_something_else_is_refused(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(4)))
    await must(kit, hold())
    for other in (hold(count=3), hold(tenant="other"), hold(site="ams1"), hold(profile="cpu")):
        reply = await refused(kit, other)
        assert reply.problem is not None and reply.problem.code == "reservation.id_reused"


async def test_a_refusal_says_why_machine_by_machine(kit: ServiceKit) -> None:
    await know(
        kit,
        machine(1),
        machine(2),
        machine(3, state=MachineState.SANITIZING, eligible=False),
        quarantined(4, "GPU 3 has double-bit errors"),
        machine(5, eligible=False),
        on_hold(6),
        machine(7, state=MachineState.FAILED, failed_step="enrol", eligible=False),
        machine(8, profile="cpu"),
    )
    await must(kit, hold("rsv-0", count=1))
    reply = await refused(kit, hold("rsv-1", count=2))
    assert reply.problem is not None
    assert reply.problem.code == "reservation.not_enough_machines"
    details = reply.problem.details
    assert (details["free"], details["total"]) == (1, 7)
    why = {each["name"][-1]: (each["why"], each["detail"]) for each in details["machines"]}
    assert why["1"][0] == "held by a reservation"
    assert why["3"][0] == "SANITIZING"
    assert why["4"] == ("QUARANTINED", "GPU 3 has double-bit errors")
    assert "proof" in why["5"][0]
    assert why["6"][1] == "user:ops: cable to be changed"
    assert why["7"][0] == "FAILED(enrol)"
    assert "1 of 7 are free" in reply.problem.message and reply.problem.next_step
    assert await event_names(kit) == ["held", "refused"]


async def test_a_refused_hold_stays_refused_and_holds_nothing(kit: ServiceKit) -> None:
    await know(kit, machine(1))
    first = await refused(kit, hold())
    await know(kit, machine(2))
    assert await refused(kit, hold()) == first
    assert await states(kit) == {}
    await must(kit, hold("rsv-2"))


async def test_an_unknown_profile_is_refused_by_name(kit: ServiceKit) -> None:
    reply = await refused(kit, hold(profile="tpu"))
    assert reply.problem is not None and "no machine of profile 'tpu'" in reply.problem.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", 0),
        ("count", -1),
        ("count", 5000),
        ("ttl_seconds", -1),
        ("ttl_seconds", 10**9),
        ("tenant", "Acme Research"),
        ("profile", " "),
        ("reservation_id", ""),
        ("site", "fra1; DROP TABLE"),
    ],
)
async def test_a_hold_that_makes_no_sense_names_the_field(kit: ServiceKit, field: str, value: Any) -> None:
    reply = await refused(kit, hold(**{field: value}))
    assert reply.problem is not None and reply.problem.details["field"] == field
    assert await event_names(kit) == []


async def test_excluded_machines_are_never_chosen(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(3)))
    held = await must(kit, hold(count=1, exclude_machine_ids=("m00000", "m00001")))
    assert held["machines"][0]["id"] == "m00002"
    reply = await refused(kit, hold("rsv-2", count=1, exclude_machine_ids=("m00000", "m00001")))
    assert reply.problem is not None and "given up by this request" in reply.problem.message


async def test_confirming_every_claim_confirms_the_reservation(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(2)))
    await confirmed(kit)
    assert set((await states(kit)).values()) == {"CLAIMED"}
    assert await event_names(kit) == ["held", "changed", "confirmed"]
    assert [event.entityversion for event in await kit.events()] == [1, 2, 3]


async def test_confirming_again_changes_nothing_and_another_version_is_refused(kit: ServiceKit) -> None:
    await know(kit, machine(1))
    held = await must(kit, hold(count=1))
    claim_id = held["machines"][0]["claim_id"]
    early = ConfirmClaim(reservation_id="rsv-1", claim_id=claim_id, accepted_version=4)
    assert (await refused(kit, early)).problem is not None
    again = ConfirmClaim(reservation_id="rsv-1", claim_id=claim_id, accepted_version=6)
    await must(kit, again)
    await must(kit, again)
    assert await event_names(kit) == ["held", "confirmed"]
    await refused(kit, ConfirmClaim(reservation_id="rsv-1", claim_id=claim_id, accepted_version=7))
    await refused(kit, ConfirmClaim(reservation_id="rsv-1", claim_id="nope", accepted_version=7))
    await refused(kit, ConfirmClaim(reservation_id="nope", claim_id=claim_id, accepted_version=7))


async def test_a_hold_past_its_limit_expires_by_the_databases_clock(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(2)))
    held = await must(kit, hold(ttl_seconds=0))
    late = ConfirmClaim(reservation_id="rsv-1", claim_id=held["machines"][0]["claim_id"], accepted_version=6)
    reply = await refused(kit, late)
    assert reply.problem is not None and reply.problem.code == "reservation.hold_expired"
    await sweep(kit)
    assert set((await states(kit)).values()) == {"EXPIRED"}
    assert await event_names(kit) == ["held", "expired"]
    await must(kit, hold("rsv-2"))
    assert (await refused(kit, hold(ttl_seconds=0))).problem is not None


async def test_a_hold_within_its_limit_does_not_expire(kit: ServiceKit) -> None:
    await know(kit, machine(1))
    await must(kit, hold(count=1))
    await sweep(kit)
    assert await states(kit) == {"m00001": "HELD"}


async def test_a_replaced_claim_returns_and_its_machine_is_not_chosen_again(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(3)))
    held = await confirmed(kit)
    replace = ReplaceClaim(
        reservation_id="rsv-1",
        claim_id=held["machines"][0]["claim_id"],
        replacement_claim_id="new-claim",
        reason="deploy failed",
    )
    new = (await must(kit, replace))["machine"]
    assert (await must(kit, replace))["machine"] == new
    assert (new["claim_id"], new["id"]) == ("new-claim", "m00002")
    assert await states(kit) == {"m00000": "RETURNING", "m00001": "CLAIMED", "m00002": "HELD"}
    again = replace.model_copy(update={"claim_id": "new-claim", "replacement_claim_id": "another"})
    reply = await refused(kit, again)
    assert reply.problem is not None and reply.problem.code == "reservation.not_enough_machines"
    assert (await states(kit))["m00002"] == "HELD"
    found = await kit.query("get_reservation", {"id": "rsv-1"})
    assert found.body["state"] == "CLAIMED"


async def test_a_claim_inventory_refused_is_replaced_without_a_return(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(2)))
    held = await must(kit, hold(count=1))
    await must(
        kit,
        ReplaceClaim(
            reservation_id="rsv-1",
            claim_id=held["machines"][0]["claim_id"],
            replacement_claim_id="other",
            reason="stale version",
        ),
    )
    assert await states(kit) == {"m00000": "REFUSED", "m00001": "HELD"}


async def test_releasing_an_untouched_hold_frees_its_machines_at_once(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(2)))
    await must(kit, hold())
    release = ReleaseReservation(reservation_id="rsv-1", reason="not wanted")
    await must(kit, release)
    await must(kit, release)
    assert set((await states(kit)).values()) == {"ENDED"}
    assert await event_names(kit) == ["held", "ended"]
    await must(kit, hold("rsv-2"))


async def test_a_held_claim_whose_machine_was_seen_taken_returns(kit: ServiceKit) -> None:
    await know(kit, machine(1))
    held = await must(kit, hold(count=1))
    claim_id = held["machines"][0]["claim_id"]
    await know(kit, machine(1, state=MachineState.CLAIMED, eligible=False, claim_id=claim_id, version=6))
    await must(kit, ReleaseReservation(reservation_id="rsv-1", reason="cancelled"))
    assert await states(kit) == {"m00001": "RETURNING"}


async def test_a_returning_claim_ends_only_with_inventorys_word(kit: ServiceKit) -> None:
    await know(kit, machine(1))
    claim_id = (await confirmed(kit, count=1))["machines"][0]["claim_id"]
    await must(kit, ReleaseReservation(reservation_id="rsv-1", reason="deleted"))
    states_on_the_way = [
        machine(1, version=6),  # Not newer than what inventory accepted: from before the claim.
        machine(1, state=MachineState.RELEASING, eligible=False, claim_id=claim_id, version=7),
        machine(1, state=MachineState.SANITIZING, eligible=False, version=8),
        machine(1, state=MachineState.VALIDATING, eligible=False, version=9),
    ]
    for seen in states_on_the_way:
        await know(kit, seen)
        await sweep(kit)
        assert await states(kit) == {"m00001": "RETURNING"}, seen.state
    await know(kit, machine(1, version=10))
    await sweep(kit)
    assert await states(kit) == {"m00001": "ENDED"}
    assert await event_names(kit) == ["held", "confirmed", "returning", "ended"]
    await must(kit, hold("rsv-2", count=1))


@pytest.mark.parametrize("state", [MachineState.QUARANTINED, MachineState.FAILED, MachineState.MAINTENANCE])
async def test_a_machine_kept_out_of_the_pool_ends_its_claim_too(kit: ServiceKit, state: MachineState) -> None:
    await know(kit, machine(1))
    await confirmed(kit, count=1)
    await must(kit, ReleaseReservation(reservation_id="rsv-1", reason="deleted"))
    await know(kit, machine(1, state=state, eligible=False, version=9))
    await sweep(kit)
    assert await states(kit) == {"m00001": "ENDED"}


async def test_a_returning_machine_is_not_handed_out_even_when_the_pool_calls_it_eligible(kit: ServiceKit) -> None:
    await know(kit, machine(1))
    await confirmed(kit, count=1)
    await must(kit, ReleaseReservation(reservation_id="rsv-1", reason="deleted"))
    await know(kit, machine(1, version=10))
    await refused(kit, hold("rsv-2", count=1))


async def test_releasing_what_was_never_reserved_is_no_error(kit: ServiceKit) -> None:
    assert await must(kit, ReleaseReservation(reservation_id="nope", reason="undo")) == {"released": 0}


async def test_the_database_refuses_a_second_live_claim_on_a_machine(kit: ServiceKit) -> None:
    await know(kit, machine(1))
    await must(kit, hold(count=1))
    row = {
        "id": "forged",
        "reservation_id": "rsv-1",
        "position": 7,
        "machine_id": "m00001",
        "machine_name": "x",
        "machine_version": 5,
        "site": "fra1",
        "state": ClaimState.RETURNING.value,
        "ended_because": "",
    }
    with pytest.raises(IntegrityError, match="claim_live_machine"):
        async with kit.database.transaction() as conn:
            await conn.execute(insert(claim_table).values(**row, created_at=text("now()")))


async def test_the_pool_takes_newer_versions_only_and_ignores_contradictions(kit: ServiceKit) -> None:
    await know(kit, machine(1, version=9, state=MachineState.SANITIZING, eligible=False), machine(1, version=8))
    await know(kit, machine(2, state=MachineState.SANITIZING, eligible=True), machine(3, claim_id="somebodys"))
    await refused(kit, hold(count=1))


async def test_reservations_and_claims_are_listed_for_their_tenant_only(kit: ServiceKit) -> None:
    await know(kit, *(machine(number) for number in range(4)))
    await must(kit, hold("rsv-1"))
    await must(kit, hold("rsv-2", tenant="other"))
    mine = await kit.query("list_reservations", tenants=("acme",))
    assert [item["id"] for item in mine.body["items"]] == ["rsv-1"]
    assert len(mine.body["items"][0]["claims"]) == 2
    claims = await kit.query("list_claims", {"state": ["HELD"]}, tenants=("acme",))
    assert {item["reservation_id"] for item in claims.body["items"]} == {"rsv-1"}
    assert (await kit.query("get_reservation", {"id": "rsv-2"}, tenants=("acme",))).status == 404
    assert (await kit.query("get_reservation", {"id": "nope"})).status == 404
    assert len((await kit.query("list_claims", {"limit": 3})).body["items"]) == 3


async def test_availability_counts_by_reason(kit: ServiceKit) -> None:
    await know(kit, machine(1), machine(2), quarantined(3, "x"), machine(4, site="ams1"))
    await must(kit, hold(count=1, site="fra1"))
    body = (await kit.query("get_availability", {"name": PROFILE})).body
    assert (body["free"], body["total"]) == (2, 4)
    assert body["by_reason"] == {"free": 2, "held by a reservation": 1, "QUARANTINED": 1}
    assert body["free_by_site"] == {"ams1": 1, "fra1": 1}
    at_site = (await kit.query("get_availability", {"name": PROFILE, "site": "ams1"})).body
    assert (at_site["free"], at_site["total"]) == (1, 1)
    assert (await kit.query("get_availability", {})).status == 422
