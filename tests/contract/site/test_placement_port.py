"""The Placement port's contract, held by the twin and by a real OpenStack Placement on PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import asyncpg
import httpx
import pytest

from deploy.lab.interpreters import VAR
from deploy.lab.placement import TOKEN, PlacementLab
from libs.runtime.embedded import EmbeddedPostgres
from libs.testing.servers import free_port
from services.satellite.adapters.placement import RestPlacement
from services.satellite.adapters.placement_twin import PlacementTwin
from services.satellite.errors import Refusal, Unanswered
from services.satellite.placement import Placement, Provider

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
CLASS = "CUSTOM_H100_SXM_8"


@dataclass(frozen=True)
class Book:
    """The port, and what Nova does to the same books behind its back."""

    placement: Placement
    make: Callable[[Provider], None]
    allocate: Callable[[str, str], None]
    race: Callable[[str, int], None]

    def provider(self, total: int = 1) -> Provider:
        """A new one, as Nova's compute service makes it for a node."""
        key = str(uuid.uuid4())
        made = Provider(key, f"gpu-{key[:8]}", 1, CLASS if total else "", total, 0, ())
        self.make(made)
        return made

    async def one(self, provider_id: str) -> Provider:
        (found,) = await self.placement.providers(frozenset({provider_id}))
        return found


@pytest.fixture(scope="module", params=["twin", pytest.param("real", marks=pytest.mark.lab)])
def book(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    if request.param == "twin":
        yield _twin()
        return
    postgres: EmbeddedPostgres = request.getfixturevalue("postgres")
    lab = PlacementLab(
        tmp_path_factory.mktemp("placement") / "var", free_port(), asyncio.run(_database(postgres)), software=VAR
    )
    lab.install()
    lab.start()
    try:
        yield _real(lab)
    finally:
        lab.stop()


async def _database(postgres: EmbeddedPostgres) -> str:
    admin = await asyncpg.connect(postgres.url())
    try:
        await admin.execute("CREATE DATABASE placement")
    finally:
        await admin.close()
    return postgres.url("placement")


def _twin() -> Book:
    twin = PlacementTwin()

    def allocate(provider_id: str, consumer: str) -> None:
        row = twin._rows[provider_id]
        if row.closed:
            raise ValueError(f"{provider_id} has no capacity left")
        twin.put(Provider(row.id, row.name, 0, row.resource_class, row.total, row.reserved, (consumer,)))

    def race(provider_id: str, times: int) -> None:
        twin.race = times

    return Book(twin, twin.put, allocate, race)


def _real(lab: PlacementLab) -> Book:
    client = httpx.Client(
        base_url=lab.url,
        headers={"X-Auth-Token": TOKEN, "OpenStack-API-Version": "placement 1.28"},
        timeout=30,
    )
    placement = RestPlacement(lab.url, "", lambda: {"auth_type": "admin_token", "endpoint": lab.url, "token": TOKEN})
    client.put(f"/resource_classes/{CLASS}").raise_for_status()

    def make(provider: Provider) -> None:
        client.post("/resource_providers", json={"uuid": provider.id, "name": provider.name}).raise_for_status()
        if provider.total:
            inventory = {"total": provider.total, "reserved": 0, "max_unit": provider.total}
            body = {"resource_provider_generation": 0, "inventories": {CLASS: inventory}}
            client.put(f"/resource_providers/{provider.id}/inventories", json=body).raise_for_status()

    def allocate(provider_id: str, consumer: str) -> None:
        body = {
            "allocations": {provider_id: {"resources": {CLASS: 1}}},
            "consumer_generation": None,
            "project_id": "p",
            "user_id": "u",
        }
        client.put(f"/allocations/{consumer}", json=body).raise_for_status()

    def race(provider_id: str, times: int) -> None:
        """Another satellite allocates for the same consumer between our reading and our writing."""
        send = placement._send

        def raced(method: str, path: str, body: object) -> object:
            nonlocal times
            if method == "PUT" and times > 0:
                times = 0
                allocate(provider_id, provider_id)
            return send(method, path, body)  # type: ignore[arg-type]

        placement._send = raced  # type: ignore[method-assign]

    return Book(placement, make, allocate, race)


async def test_what_nova_made_is_read_with_its_inventory_and_consumers(book: Book) -> None:
    made, consumer = book.provider(), str(uuid.uuid4())
    free = await book.one(made.id)
    book.allocate(made.id, consumer)
    taken = await book.one(made.id)
    assert (free.name, free.resource_class, free.total, free.reserved, free.consumers) == (made.name, CLASS, 1, 0, ())
    assert not free.closed
    assert (taken.consumers, taken.generation > free.generation) == ((consumer,), True)


async def test_only_the_providers_that_are_asked_for_are_read(book: Book) -> None:
    mine, other = book.provider(), book.provider()
    found = await book.placement.providers(frozenset({mine.id, str(uuid.uuid4())}))
    assert [one.id for one in found] == [mine.id] and other.id != mine.id


async def test_what_slipway_holds_is_closed_and_opened_again_however_often_it_is_said(book: Book) -> None:
    made = book.provider()
    for held in (True, True, False, False, True):
        after = await book.placement.reserve(made.id, made.name, held=held)
        assert after is not None and (after.consumers, after.closed) == ((made.id,) if held else (), held)
    assert (await book.one(made.id)).closed


async def test_nobody_can_allocate_what_slipway_holds_and_holding_takes_nothing_from_who_has_it(book: Book) -> None:
    mine, theirs, consumer = book.provider(), book.provider(), str(uuid.uuid4())
    await book.placement.reserve(mine.id, mine.name, held=True)
    with pytest.raises((httpx.HTTPStatusError, ValueError)):
        book.allocate(mine.id, consumer)
    book.allocate(theirs.id, consumer)
    for held in (True, False):
        after = await book.placement.reserve(theirs.id, theirs.name, held=held)
        assert after is not None and (after.consumers, after.closed) == ((consumer,), True)
    with pytest.raises(Refusal) as refused:
        await book.placement.remove(theirs.id, theirs.name)
    assert refused.value.code == "placement_in_use"


async def test_a_node_without_a_class_and_one_without_a_provider_have_nothing_to_reserve(book: Book) -> None:
    bare = book.provider(total=0)
    empty = await book.placement.reserve(bare.id, bare.name, held=True)
    assert empty is not None and (empty.total, empty.closed) == (0, True)
    assert await book.placement.reserve(str(uuid.uuid4()), "nobody", held=True) is None


async def test_a_provider_is_removed_once_and_for_all(book: Book) -> None:
    made = book.provider()
    for _ in range(2):
        await book.placement.remove(made.id, made.name)
    assert await book.placement.providers(frozenset({made.id})) == []


async def test_a_race_is_read_again_and_applied_again(book: Book) -> None:
    made = book.provider()
    book.race(made.id, 3)
    after = await book.placement.reserve(made.id, made.name, held=True)
    assert after is not None and after.consumers == (made.id,)


async def test_a_race_without_end_is_given_up_and_named() -> None:
    twin = PlacementTwin()
    twin.put(Provider("p", "gpu-1", 1, CLASS, 1, 0, ()))
    twin.race = 50
    with pytest.raises(Unanswered) as busy:
        await twin.reserve("p", "gpu-1", held=True)
    assert (busy.value.code, "gpu-1" in busy.value.message) == ("placement_busy", True)
