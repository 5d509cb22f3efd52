"""What of a site's leases is a problem, and what is told to the hub when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from libs.contracts.dhcp import DhcpObserved, LeaseObserved
from libs.contracts.message import Message
from services.satellite.adapters.dhcp_twin import DhcpTwin
from services.satellite.dhcp import Lease, LeaseState, Reservation, problems
from services.satellite.dhcp_watch import DhcpWatch
from services.satellite.errors import Failure

NOW = datetime(2026, 6, 10, 19, tzinfo=UTC)
ONE, TWO = "94:6d:ae:00:00:01", "94:6d:ae:00:00:02"


def lease(port: str, address: str, state: LeaseState = LeaseState.ACTIVE, minutes: int = 10) -> Lease:
    return Lease(port, address, state, NOW + timedelta(minutes=minutes))


def test_a_declined_reserved_address_is_named_with_its_machine_and_its_end() -> None:
    (found,) = problems(
        [Reservation(ONE, "10.1.2.3", "gpu-1", "m-1")], [lease(TWO, "10.1.2.3", LeaseState.DECLINED)], NOW
    )
    assert found.kind == "declined" and found.machine_ids == ("m-1",) and "10.1.2.3" in found.message
    assert "reserved for gpu-1" in found.message and "2026-06-10T19:10" in found.message and "ARP" in found.next_step


def test_a_reserved_address_that_another_client_has_is_a_problem_of_its_machine() -> None:
    (found,) = problems([Reservation(ONE, "10.1.2.3", "gpu-1", "m-1")], [lease(TWO, "10.1.2.3")], NOW)
    assert (found.kind, found.machine_ids, found.hw_addresses) == ("taken", ("m-1",), (ONE, TWO))


def test_one_address_offered_to_two_machines_is_a_problem() -> None:
    (found,) = problems([], [lease(ONE, "172.18.0.43"), lease(TWO, "172.18.0.43")], NOW)
    assert found.kind == "given_twice" and found.hw_addresses == (ONE, TWO)


def test_one_port_reserved_for_two_machines_is_a_problem_of_both() -> None:
    both = [Reservation(ONE, "10.1.2.3", "gpu-1", "m-1"), Reservation(ONE, "10.9.2.3", "gpu-2", "m-2")]
    (found,) = problems(both, [], NOW)
    assert found.kind == "duplicate_port" and found.machine_ids == ("m-1", "m-2")


@pytest.mark.parametrize(
    "leases",
    [
        [],
        [lease(ONE, "10.1.2.3")],
        [lease(ONE, "10.1.2.3"), lease(ONE, "10.1.2.77")],  # iPXE asks with another client id: a second lease.
        [lease(TWO, "10.1.2.3")],  # The other member of the bond.
        [lease("94:6d:ae:00:00:09", "10.1.2.3", minutes=-1)],
        [lease("94:6d:ae:00:00:09", "10.1.2.3", LeaseState.EXPIRED)],
        [lease("94:6d:ae:00:00:09", "10.1.2.3", LeaseState.DECLINED, minutes=-1)],
    ],
    ids=["none", "its own", "two of one port", "bond", "over", "expired", "no longer declined"],
)
def test_what_is_usual_is_no_problem(leases: list[Lease]) -> None:
    mine = [Reservation(ONE, "10.1.2.3", "gpu-1", "m-1"), Reservation(TWO, "", "gpu-1", "m-1")]
    assert problems(mine, leases, NOW) == ()


# -- telling ----------------------------------------------------------------------------------------


class Told(list[Message]):
    fails = False

    async def say(self, message: Message) -> None:
        if self.fails:
            raise ConnectionError("the leaf is away")
        self.append(message)

    def taken(self) -> list[Message]:
        found = list(self)
        self.clear()
        return found


def watch(dhcp: DhcpTwin, told: Told) -> DhcpWatch:
    return DhcpWatch(dhcp, "fra1", told.say, poll_seconds=1, repeat_seconds=3600)


async def test_only_news_is_told_and_a_renewal_is_none() -> None:
    dhcp, told = DhcpTwin(), Told()
    watched = watch(dhcp, told)
    dhcp.give(ONE, "10.1.2.3")
    await watched.look(NOW)
    first = told.taken()
    assert [type(message) for message in first] == [DhcpObserved, LeaseObserved]
    dhcp.give(ONE, "10.1.2.3")
    await watched.look(NOW)
    assert told.taken() == []
    await dhcp.reserve("m-1", "gpu-1", [Reservation(ONE, "10.1.2.3", "gpu-1")])
    await watched.look(NOW)
    (news,) = told.taken()
    assert isinstance(news, LeaseObserved) and news.machine_id == "m-1"


async def test_what_could_not_be_told_is_told_at_the_next_look() -> None:
    dhcp, told = DhcpTwin(), Told()
    watched = watch(dhcp, told)
    dhcp.give(ONE, "10.1.2.3")
    told.fails = True
    await watched.look(NOW)
    told.fails = False
    await watched.look(NOW)
    assert [type(message) for message in told.taken()] == [DhcpObserved, LeaseObserved]


async def test_a_server_that_cant_be_read_is_told_as_that_and_not_as_one_without_leases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dhcp, told = DhcpTwin(), Told()
    watched = watch(dhcp, told)
    dhcp.decline(ONE, "10.1.2.3")
    await watched.look(NOW)
    told.clear()

    async def away() -> list[Lease]:
        raise Failure("dhcp_unreachable", "Kea's control agent does not answer", "")

    with monkeypatch.context() as patch:
        patch.setattr(dhcp, "leases", away)
        await watched.look(NOW)
        await watched.look(NOW)
    (state,) = told.taken()
    assert isinstance(state, DhcpObserved) and state.problems is None and "does not answer" in state.error
    assert "does not answer" in watched.problems()[0]
    await watched.look(NOW)
    (back,) = told.taken()
    assert isinstance(back, DhcpObserved) and back.problems and watched.problems() == []
