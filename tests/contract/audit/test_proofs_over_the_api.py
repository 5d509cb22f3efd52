"""Audit behind a real gateway, on a real broker, under its running role: what operators, auditors and tenants get."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pyarrow.parquet
import pytest
import pytest_asyncio
from slipway.cli.exporting import write_file
from slipway.client import Client
from slipway.doors import Door
from slipway.errors import ApiError
from slipway.exports import ExportFile, manifest_path
from slipway.proof import chained, without_digest
from slipway.transport import StaticToken
from slipway.verification import Held, Report, verify_file, verify_online

from libs.bus.topology import apply_hub, load_topology
from libs.contracts.envelope import Envelope
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedPostgres
from libs.testing.servers import nats_hub
from services.audit.app import make_service
from services.audit.restore import restore
from services.audit.settings import Settings
from services.audit.signing import make_key
from tests.conftest import eventually
from tests.contract.audit.parts import database_of, owner_url, running
from tests.unit.services.audit.kept import event
from tests.unit.services.gateway.conftest import Issuer, Owners, issuer, open_doors, until  # noqa: F401

pytestmark = pytest.mark.asyncio(loop_scope="module")
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
MACHINES, CLUSTERS = 40, 12


def at(seconds: int) -> datetime:
    return T0 + timedelta(seconds=seconds)


def log() -> list[Envelope]:
    """Forty events of a machine, and twelve of clusters of two tenants."""
    machines = [event(n, time=at(n), state=f"S{n}", watts=n / 3) for n in range(1, MACHINES + 1)]
    clusters = []
    for n in range(1, CLUSTERS + 1):
        tenant = "acme-research" if n % 2 else "globex-ml"
        id_, version = f"clu-{tenant}", (n + 1) // 2
        made = event(n, time=at(n), service="provisioning", kind="cluster", id_=id_, version=version, tenant=tenant)
        clusters.append(made.model_copy(update={"tenantsequence": f"{version:020d}"}))
    return [*machines, *clusters]


@dataclass
class House:
    """The running parts, and who uses them."""

    operator: Client
    tenant: Client
    url: str
    log: list[Envelope]
    keys: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]

    async def as_owner(self, *statements: str) -> None:
        """What somebody does who owns the schema."""
        conn = await asyncpg.connect(owner_url(self.url, "audit"))
        for statement in statements:
            await conn.execute(statement)
        await conn.close()

    @contextlib.asynccontextmanager
    async def put_back(self) -> AsyncIterator[None]:
        """Afterwards the store is as it was."""
        await self.as_owner("CREATE TABLE audit.genuine AS TABLE audit.event")
        try:
            yield
        finally:
            await self.as_owner(
                "DELETE FROM audit.event", "INSERT INTO audit.event TABLE audit.genuine", "DROP TABLE audit.genuine"
            )

    async def verify(self, held: Held | None = None) -> Report:
        return await verify_online(self.operator, held or Held(self.keys), ("inventory",), lambda *_: None)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def house(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    issuer: Issuer,  # noqa: F811
) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("house")
    make_key(folder / "signing.pem")
    # What happens by the clock is tried elsewhere; here nothing may be signed that the test did not ask for.
    settings = Settings(audit_signing_key=folder / "signing.pem")
    service = replace(make_service(settings), periodic=())
    url = await database_of(postgres, "audit")
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(nats_hub(folder))
        address = f"nats://127.0.0.1:{server.port}"
        bus = await nats.connect(address)
        stack.push_async_callback(bus.close)
        await apply_hub(bus.jetstream(), load_topology(), ("fra1",))
        await Owners(bus).know_people()
        events = log()
        for each in events:
            _, service_name, kind, name = each.type.split(".")
            await bus.jetstream().publish(f"evt.-.{each.tenant}.{service_name}.{kind}.{name}.v1", each.encode())
        await stack.enter_async_context(running(service, url, address))
        doors = await stack.enter_async_context(open_doors(address, issuer))
        await until(lambda: not doors.gateway.problems())
        urls = {Door.TENANT: "http://gateway.test/v1", Door.OPERATOR: "http://gateway.test/operator/v1"}
        operator = Client(
            {Door.OPERATOR: urls[Door.OPERATOR]},
            StaticToken(issuer.token("operator", "slipway-operator")),
            http=doors.operator,
        )
        tenant = Client({Door.TENANT: urls[Door.TENANT]}, StaticToken(issuer.token("alice")), http=doors.tenant)

        async def all_kept() -> bool:
            found = await operator.audit.gaps()
            return bool({s["service"]: s["events"] for s in found["services"]}.get("inventory") == MACHINES) and any(
                s["service"] == "provisioning" and s["events"] == CLUSTERS for s in found["services"]
            )

        await eventually(all_kept, within_seconds=60, what="every event is kept")
        await operator.audit.make_checkpoint()
        keys = (await operator.audit.keys())["keys"]
        checkpoints = [item.raw async for page in operator.audit.checkpoints() for item in page.items]
        yield House(operator, tenant, url, events, keys, [dict(each) for each in checkpoints])


async def exported(client: Client, path: Path, kind: Any = "jsonl", **filters: Any) -> dict[str, Any]:
    return await write_file(client, path, kind, filters, None)


def lines_of(path: Path) -> list[str]:
    return [without_digest(line)[0] for line in ExportFile(path).lines()]


async def test_the_store_is_intact_and_signed(house: House) -> None:
    report = await house.verify(Held(house.keys, house.checkpoints))
    assert (report.problems, report.services[0]["checked"]) == ([], MACHINES)
    assert report.services[0]["signed_up_to"] == MACHINES


async def test_an_export_is_to_the_byte_what_was_published_and_can_be_checked_alone(
    house: House, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    manifest = await exported(house.operator, path)
    published = [each.encode().decode() for each in house.log]
    # Audit's own events come along: its checkpoints.
    assert [line for line in lines_of(path) if '"/slipway/audit"' not in line] == published
    assert manifest["services"]["inventory"]["events"] == MACHINES
    report = verify_file(ExportFile(path), Held(house.keys), lambda *_: None)
    assert report.problems == []
    path.write_bytes(path.read_bytes().replace(b"name-of-m1", b"name-of-m2", 1))
    kinds = [(p.kind, p.sequence) for p in verify_file(ExportFile(path), Held(house.keys), lambda *_: None).problems]
    assert kinds == [("file_changed", 0), ("altered", 1)]


async def test_parquet_has_columns_to_ask_and_the_events_to_check(house: House, tmp_path: Path) -> None:
    path, plain = tmp_path / "events.parquet", tmp_path / "events.jsonl"
    await exported(house.operator, path, "parquet")
    await exported(house.operator, plain)
    assert verify_file(ExportFile(path), Held(house.keys), lambda *_: None).problems == []
    assert lines_of(path) == lines_of(plain)
    table = pyarrow.parquet.read_table(path, columns=["service", "sequence", "time", "tenant"])
    first = table.slice(0, 1).to_pylist()[0]
    rows = [row for row in table.to_pylist() if row["service"] == "inventory"]
    assert len(rows) == MACHINES and rows[0]["time"] == at(1)
    assert first["tenant"] == "-"


async def test_filters_select_and_the_selection_can_still_be_checked(house: House, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    filters = {"service": ["provisioning"], "tenant": ["globex-ml"], "from": at(3).isoformat(), "to": at(9).isoformat()}
    manifest = await exported(house.operator, path, **filters)
    assert [json.loads(line)["sequence"][-2:] for line in lines_of(path)] == ["04", "06", "08"]
    assert manifest["filters"] == {**filters, "door": "operator"}
    assert verify_file(ExportFile(path), Held(house.keys), lambda *_: None).problems == []
    for name, value in (("actor", "user:nobody"), ("correlation_id", "c9"), ("entity_id", "m9"), ("type", "x")):
        assert (await exported(house.operator, tmp_path / name, **{name: [value]}))["events"] == 0


async def test_a_tenant_gets_its_own_events_and_nothing_about_others(house: House, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    await exported(house.tenant, path)
    tenants = {json.loads(line)["tenant"] for line in lines_of(path)}
    assert (tenants, len(lines_of(path))) == ({"acme-research"}, CLUSTERS // 2)
    assert verify_file(ExportFile(path), Held(house.keys), lambda *_: None).problems == []
    assert json.loads(manifest_path(path).read_text())["checkpoints"] == []
    for other in ({"tenant": ["globex-ml"]}, {"service": ["inventory"]}):
        assert (await exported(house.tenant, tmp_path / "other", **other))["events"] == 0


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "UPDATE audit.event SET envelope = replace(envelope, 'S7', 'S8') "
            "WHERE service = 'inventory' AND sequence = 7",
            ("altered", 7),
        ),
        ("DELETE FROM audit.event WHERE service = 'inventory' AND sequence = 7", ("removed", 7)),
        ("DELETE FROM audit.event WHERE service = 'inventory' AND sequence > 30", ("truncated", MACHINES)),
        (
            "INSERT INTO audit.event SELECT service, 41, id, type, entity_kind, entity_id, entity_version, time, "
            "tenant, site, actor, correlation_id, causation_id, mentions, envelope, digest FROM audit.event "
            "WHERE service = 'inventory' AND sequence = 40",
            ("inserted", 41),
        ),
    ],
    ids=["altered", "removed", "truncated", "inserted"],
)
async def test_what_the_owner_of_the_schema_does_is_found(
    house: House, statement: str, expected: tuple[str, int]
) -> None:
    async with house.put_back():
        await house.as_owner(statement)
        report = await house.verify()
        assert expected in [(problem.kind, problem.sequence) for problem in report.problems]
    assert (await house.verify()).intact


async def test_a_history_that_was_made_anew_with_all_its_digests_does_not_fit_its_checkpoint(house: House) -> None:
    async with house.put_back():
        forged = [each.encode().decode().replace('"S7"', '"S8"') for each in house.log[:MACHINES]]
        digest = ""
        for sequence, text in enumerate(forged, 1):
            digest = chained(digest, text)
            await house.as_owner(
                f"UPDATE audit.event SET envelope = '{text}', digest = '{digest}' "
                f"WHERE service = 'inventory' AND sequence = {sequence}"
            )
        report = await house.verify()
        assert [(problem.kind, problem.sequence) for problem in report.problems] == [("rewritten", MACHINES)]


async def test_a_checkpoint_that_was_made_anew_is_not_believed(house: House) -> None:
    mine = next(each for each in house.checkpoints if each["service"] == "inventory")
    await house.as_owner("CREATE TABLE audit.genuine AS TABLE audit.checkpoint")
    try:
        await house.as_owner(
            "UPDATE audit.checkpoint SET statement = replace(statement, '40', '39'), last_sequence = 39, events = 39 "
            "WHERE service = 'inventory'"
        )
        kinds = {problem.kind for problem in (await house.verify(Held(house.keys, [mine]))).problems}
        assert kinds == {"forged_checkpoint", "replaced_checkpoint"}
        await house.as_owner("DELETE FROM audit.checkpoint WHERE service = 'inventory'")
        kinds = {problem.kind for problem in (await house.verify(Held(house.keys, [mine]))).problems}
        assert kinds == {"missing_checkpoint"}
    finally:
        await house.as_owner(
            "DELETE FROM audit.checkpoint",
            "INSERT INTO audit.checkpoint TABLE audit.genuine",
            "DROP TABLE audit.genuine",
        )


async def test_a_store_that_was_lost_comes_back_from_an_export(house: House, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    await exported(house.operator, path)
    async with house.put_back():
        await house.as_owner("DELETE FROM audit.event WHERE service = 'inventory'")
        assert not (await house.verify()).intact
        database = Database(house.url, application_name="restore")
        done = await restore(database, ExportFile(path).lines(), dry_run=False)
        await database.close()
        assert (done.new, done.refused) == (MACHINES, [])
        assert (await house.verify()).intact


async def test_the_past_is_asked_for_where_the_present_is(house: House) -> None:
    then = await house.operator.machines.get("m1", at=at(7))
    assert (then.state, then.as_of_event.sequence if then.as_of_event else 0) == ("S7", 7)
    by_name = await house.operator.machines.get("name-of-m1", at=at(7))
    assert by_name.id == "m1"
    own = await house.tenant.transport.request(Door.TENANT, "GET", "/clusters/clu-acme-research", query={"at": at(5)})
    assert own.document["version"] == 3
    for id_, when, status, code in (
        ("m1", at(-5), 404, "history.not_yet"),
        ("m1", datetime.now(UTC) + timedelta(hours=1), 422, "history.in_the_future"),
        ("m9", at(7), 404, "machine.not_found"),
    ):
        with pytest.raises(ApiError) as refused:
            await house.operator.machines.get(id_, at=when)
        assert (refused.value.status, refused.value.code) == (status, code)
    with pytest.raises(ApiError) as refused:
        await house.tenant.clusters.get("clu-globex-ml", at=at(7))
    assert refused.value.code == "cluster.not_found"


async def test_holds_and_retention_are_set_and_seen_over_the_api(house: House) -> None:
    placed = (await house.operator.audit.place_hold("case 4711", tenant="acme-research")).raw
    assert (placed["placed_by"], placed["matches_now"]) == ("user:operator", True)
    holds = [item.raw async for page in house.operator.audit.holds(in_force=True) for item in page.items]
    assert [hold["id"] for hold in holds] == [placed["id"]]
    await house.operator.audit.release_hold(str(placed["id"]), "settled")
    assert [item async for page in house.operator.audit.holds(in_force=True) for item in page.items] == []
    assert (await house.operator.audit.set_retention(400, "books")).raw["keep_days"] == 400
    assert (await house.operator.audit.set_retention(None, "for ever after all")).raw["keep_days"] is None
    assert (await house.operator.audit.retention())["in_force"]["keep_days"] is None
    assert (await house.operator.audit.preview_retention(30))["removed"] >= MACHINES
    assert await house.operator.audit.run_retention() == {"removed": 0, "held": 0, "next_cursor": None}
    wanted = {"checkpoint.signed", "hold.placed", "hold.released", "retention.changed"}

    async def told() -> bool:
        seen = set()
        async for lines, _ in house.operator.events.export(service=["audit"]):
            seen |= {json.loads(line)["type"].removeprefix("slipway.audit.") for line in lines}
        return wanted <= seen

    await eventually(told, within_seconds=30, what="audit keeps what it did itself")
