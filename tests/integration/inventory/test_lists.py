"""Lists of a fleet of 20,000 machines: what filters, sorts, words and cursors find, and that no row is read in vain."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.dialects import postgresql

from bench.inventory_fleet import RACK_IDS, machines, seed
from libs.contracts.calls import Call
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedPostgres
from libs.runtime.pages import statement_of
from libs.testing.kit import ServiceKit
from services.inventory import app as inventory_app
from services.inventory.model.machine import Machine
from services.inventory.queries import MACHINES, machine_body
from tests.conftest import fresh_database

COUNT = 20_000
RACK_11 = str(UUID(int=RACK_IDS + 11))
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kit(postgres: EmbeddedPostgres) -> AsyncIterator[ServiceKit]:
    url = postgres.url(await fresh_database(postgres, "inventory"))
    await seed(url, COUNT)
    database = Database(url, application_name="test-lists")
    yield ServiceKit(inventory_app.service, database)
    await database.close()


@pytest.fixture(scope="module")
def fleet() -> list[Machine]:
    return machines(COUNT)


async def listed(kit: ServiceKit, **params: Any) -> dict[str, Any]:
    answer = await kit.query("list_machines", params)
    assert answer.status == 200, answer
    body: dict[str, Any] = answer.body
    return body


async def names(kit: ServiceKit, **params: Any) -> list[str]:
    return [item["name"] for item in (await listed(kit, limit=200, **params))["items"]]


def by_name(found: Iterable[Machine]) -> list[str]:
    return [machine.name for machine in sorted(found, key=lambda m: (m.name, m.id))][:200]


async def test_two_filters_and_a_sort_find_what_a_walk_over_all_finds(kit: ServiceKit, fleet: list[Machine]) -> None:
    found = await names(kit, state=["AVAILABLE"], site=["fra3"], sort="name")
    assert found == by_name(m for m in fleet if m.state == "AVAILABLE" and m.site == "fra3")

    body = await listed(kit, state=["QUARANTINED"], profile=["cpu-large"], sort="-state_since", limit=50)
    wanted = [m for m in fleet if m.state == "QUARANTINED" and m.profile == "cpu-large"]
    wanted.sort(key=lambda m: (m.state_since, m.id), reverse=True)
    assert body["items"] == [machine_body(machine) for machine in wanted[:50]]


@pytest.mark.parametrize("sort", ["name", "-name", "state_since", "-state_since", "rack", "state", "-site"])
async def test_pages_hold_every_machine_once_in_order(kit: ServiceKit, fleet: list[Machine], sort: str) -> None:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(20):
        body = await listed(kit, sort=sort, limit=200, rack=[f"r{n:04}" for n in range(150)], cursor=cursor or "")
        found += body["items"]
        cursor = body["next_cursor"]
        if cursor is None:
            break
    wanted = [m for m in fleet if int(m.rack[1:]) < 150]
    assert len(found) == len(wanted) == 3000
    field = sort.removeprefix("-")
    keys = [(machine[field], machine["id"]) for machine in found]
    assert keys == sorted(keys, reverse=sort.startswith("-"))
    assert {machine["id"] for machine in found} == {m.id for m in wanted}


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"held": ["yes"]}, lambda m: bool(m.holds)),
        ({"held": ["no"], "rack": ["r0007"]}, lambda m: not m.holds and m.rack == "r0007"),
        ({"rack": [RACK_11]}, lambda m: m.rack == "r0011"),
        ({"rack": [RACK_11, "r0012"]}, lambda m: m.rack in ("r0011", "r0012")),
        ({"tenant": ["tenant-3"]}, lambda m: m.tenant == "tenant-3"),
        ({"cluster_id": ["clu-9"]}, lambda m: m.cluster_id == "clu-9"),
        ({"state_before": "2026-01-01T01:00:00Z"}, lambda m: m.state_since.timestamp() < 1767229200),
        ({"q": "GPU-04 r0031"}, lambda m: "gpu-04" in m.name and m.rack == "r0031"),
        ({"q": "sn00012345"}, lambda m: m.serial == "SN00012345"),
        ({"q": "06:00:00:00:30:39"}, lambda m: "06:00:00:00:30:39" in m.nic_macs),
        ({"q": "a012345"}, lambda m: m.asset_tag == "A012345"),
        ({"q": "10.0.48.57"}, lambda m: m.bmc_address.startswith("10.0.48.57")),
        ({"q": "100%"}, lambda m: False),
    ],
    ids=[
        "held",
        "not held",
        "rack by id",
        "racks",
        "tenant",
        "cluster",
        "age",
        "words",
        "serial",
        "mac",
        "tag",
        "bmc",
        "sign",
    ],
)
async def test_every_filter_and_word_finds_its_machines(
    kit: ServiceKit, fleet: list[Machine], params: dict[str, Any], wanted: Any
) -> None:
    assert await names(kit, **params) == by_name(m for m in fleet if wanted(m))


async def test_a_filter_that_makes_no_sense_is_named(kit: ServiceKit) -> None:
    for params, field in (({"held": ["perhaps"]}, "held"), ({"state_before": "soon"}, "state_before")):
        answer = await kit.query("list_machines", params)
        assert (answer.status, answer.body["errors"][0]["field"]) == (422, field)


ONE = {"state": "AVAILABLE", "site": "fra3", "rack": "r0007", "profile": "cpu-large", "health": "HEALTHY"}
PAIRS = [dict(pair) for pair in itertools.combinations(ONE.items(), 2)]
# A page is 50 rows. What a plan reads and throws away beyond this grows with the fleet.
READ_IN_VAIN = 4_000


@pytest.mark.parametrize("sort", ["name", "-name", "state_since", "-state_since"])
@pytest.mark.parametrize("params", PAIRS, ids=lambda params: "+".join(params))
async def test_no_list_reads_the_whole_table(kit: ServiceKit, params: dict[str, str], sort: str) -> None:
    plan = await explained(kit, {**params, "sort": sort, "limit": 50})

    assert "Seq Scan" not in json.dumps(plan)
    assert rows_read(plan) <= READ_IN_VAIN


@pytest.mark.parametrize("params", [{"q": "sn00012345"}, {"held": "yes"}, {"claim_id": "x"}, {"cluster_id": "clu-9"}])
async def test_words_and_rare_values_are_found_by_index(kit: ServiceKit, params: dict[str, str]) -> None:
    plan = await explained(kit, {**params, "limit": 50})

    assert "Seq Scan" not in json.dumps(plan)
    assert rows_read(plan) <= READ_IN_VAIN


async def explained(kit: ServiceKit, params: dict[str, Any]) -> Any:
    call = Call(name="list_machines", actor="user:test", tenants=None, correlation_id="c", params=params)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    compiled = statement_of(MACHINES, call).compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    async with kit.app.database.transaction() as conn:
        sql = re.sub(r":", r"\\:", f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled}")
        return (await conn.execute(text(sql))).scalar()


def rows_read(plan: Any) -> int:
    """Rows that scans found or threw away, all of them."""
    found = 0
    nodes = [entry["Plan"] for entry in plan]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if "Scan" in node["Node Type"]:
            found += node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(found)
