"""The event store on a real database: events in, answers out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from libs.contracts.envelope import Envelope, sequence_text
from libs.contracts.identity import OrganizationFacts, OrganizationUpdated
from libs.contracts.message import Message
from libs.contracts.operations import OperationFacts, OperationStatus
from libs.contracts.provisioning import (
    ClusterFacts,
    ClusterRequested,
    ClusterState,
    NodeFacts,
    ProvisioningOperationFinished,
    ProvisioningOperationStarted,
)
from libs.projection import digest
from libs.testing.kit import ServiceKit, make_event
from services.audit.app import service
from services.audit.projections import EVENTS

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def published(message: Message, entity_id: str, version: int, sequence: int, tenant: str = "-") -> Envelope:
    made = make_event(message, entity_id=entity_id, entity_version=version, tenant=tenant, sequence=sequence)
    return made.model_copy(update={"time": T0 + timedelta(seconds=sequence)})


def cluster_requested(number: int, *, tenant: str = "acme", version: int = 1, sequence: int = 0) -> Envelope:
    node = NodeFacts(machine_id=f"m{number}", machine_name=f"fra1-r1-gpu-0{number}", claim_id=f"cl{number}", name="n")
    facts = ClusterFacts(
        id=f"clu-{number}",
        name=f"train-{number}",
        tenant=tenant,
        site="fra1",
        profile="h100",
        node_count=1,
        image="golden",
        template="plain",
        state=ClusterState.CREATING,
        nodes=(node,),
        reservation_id=f"res-{number}",
        created_at=T0,
        version=version,
    )
    return published(ClusterRequested(cluster=facts), facts.id, version, sequence or number, tenant)


def operation(status: OperationStatus, version: int, sequence: int, tenant: str = "acme") -> Envelope:
    facts = OperationFacts(
        id="op-prv-1",
        service="provisioning",
        kind="create_cluster",
        target_kind="cluster",
        target_id="clu-1",
        tenant=tenant,
        actor="user:alice",
        correlation_id="corr-1",
        status=status,
        created_at=T0,
        updated_at=T0 + timedelta(seconds=version),
    )
    cls = ProvisioningOperationStarted if version == 1 else ProvisioningOperationFinished
    return published(cls(operation=facts), facts.id, version, sequence, tenant)


def organization(version: int, sequence: int) -> Envelope:
    facts = OrganizationFacts(id="acme", slug="acme", name="Acme", version=version)
    return published(OrganizationUpdated(organization=facts), "acme", version, sequence)


async def body(kit: ServiceKit, name: str, params: dict[str, Any] | None = None, **more: Any) -> Any:
    answer = await kit.query(name, params or {}, **more)
    assert answer.status == 200, answer.body
    return answer.body


async def test_every_event_is_kept_once_in_order_whatever_its_type(service_kit: Any) -> None:
    kit = await service_kit(service)
    strange = cluster_requested(3).model_copy(update={"type": "slipway.provisioning.moon.landed", "data": {"x": [1]}})
    log = [cluster_requested(1), cluster_requested(2), strange]
    await kit.project("events", log)
    await kit.project("events", log[1:])
    listed = await body(kit, "list_events", {"sort": "sequence"})
    assert [(int(item["sequence"]), item["entity_kind"]) for item in listed["items"]] == [
        (1, "cluster"),
        (2, "cluster"),
        (3, "moon"),
    ]
    assert (await body(kit, "list_gaps"))["items"] == []


async def test_a_missing_number_is_a_gap_and_never_passed_over(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("events", [cluster_requested(n) for n in (3, 4, 7)])
    await kit.project("events", [organization(1, 1), organization(2, 2)])
    gaps = await body(kit, "list_gaps")
    assert gaps["items"] == [
        {"service": "provisioning", "first_missing": 1, "last_missing": 2},
        {"service": "provisioning", "first_missing": 5, "last_missing": 6},
    ]
    assert gaps["services"] == [
        {"service": "identity", "events": 2, "last_sequence": 2},
        {"service": "provisioning", "events": 3, "last_sequence": 7},
    ]
    assert (gaps["entities"], gaps["events"]) == ([], 5)


async def test_a_missing_or_repeated_version_of_an_entity_is_shown(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("events", [organization(1, 1), organization(3, 2), organization(3, 3)])
    entities = (await body(kit, "list_gaps"))["entities"]
    assert [(e["entity_id"], e["last_version"], e["missing"], e["repeated"]) for e in entities] == [("acme", 3, 1, 1)]


async def test_a_timeline_has_every_event_that_mentions_the_id_or_the_name_oldest_first(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("events", [cluster_requested(1), cluster_requested(2), operation(OperationStatus.RUNNING, 1, 3)])
    for name in ("clu-1",):
        timeline = await body(kit, "get_timeline", {"entity_id": name})
        assert [int(item["sequence"]) for item in timeline["items"]] == [1, 3]
    for name in ("m2", "fra1-r1-gpu-02", "cl2", "res-2"):
        timeline = await body(kit, "get_timeline", {"entity_id": name, "full": True})
        assert [int(item["sequence"]) for item in timeline["items"]] == [2]
        assert timeline["items"][0]["data"]["cluster"]["id"] == "clu-2"
    assert (await kit.query("get_timeline", {"entity_id": "nothing"})).status == 404
    assert (await kit.query("get_timeline", {"entity_id": "m2", "cursor": "x"})).status == 422


async def test_pages_of_a_timeline_and_of_the_export_add_up(service_kit: Any) -> None:
    kit = await service_kit(service)
    log = [cluster_requested(1, version=n, sequence=n) for n in range(1, 8)]
    await kit.project("events", log)
    for name, params in (("get_timeline", {"entity_id": "clu-1"}), ("export_events", {})):
        found: list[Any] = []
        cursor = None
        while True:
            page = await body(kit, name, {**params, "limit": 3, **({"cursor": cursor} if cursor else {})})
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert [item["id"] for item in found] == [event.id for event in log]


async def test_the_export_is_what_was_published(service_kit: Any) -> None:
    kit = await service_kit(service)
    log = [cluster_requested(1), organization(1, 1), cluster_requested(2)]
    await kit.project("events", [log[0], log[2]])
    await kit.project("events", [log[1]])
    exported = (await body(kit, "export_events"))["items"]
    assert [Envelope.model_validate(item) for item in exported] == [log[1], log[0], log[2]]
    assert exported[0]["sequence"] == sequence_text(1)
    only = (await body(kit, "export_events", {"service": "identity"}))["items"]
    assert [item["id"] for item in only] == [log[1].id]
    assert (await kit.query("export_events", {"cursor": "nonsense"})).status == 422


async def test_large_pages_are_cut_so_that_an_answer_fits_into_a_message(service_kit: Any) -> None:
    kit = await service_kit(service)
    big = [cluster_requested(n).model_copy(update={"data": {"x": "y" * 200_000}}) for n in range(1, 6)]
    await kit.project("events", big)
    page = await body(kit, "export_events")
    assert 1 <= len(page["items"]) < 5 and page["next_cursor"] is not None


async def test_a_tenant_sees_events_of_its_own_only(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("events", [cluster_requested(1), cluster_requested(2, tenant="globex")])
    mine = ("globex",)
    assert [i["tenant"] for i in (await body(kit, "list_events", tenants=mine))["items"]] == ["globex"]
    assert [i["tenant"] for i in (await body(kit, "export_events", tenants=mine))["items"]] == ["globex"]
    assert (await kit.query("get_timeline", {"entity_id": "clu-1"}, tenants=mine)).status == 404
    assert (await kit.query("list_gaps", tenants=mine)).status == 404


async def test_the_newest_word_on_an_operation_is_listed(service_kit: Any) -> None:
    kit = await service_kit(service)
    done, begun = operation(OperationStatus.SUCCEEDED, 2, 2), operation(OperationStatus.RUNNING, 1, 1)
    await kit.project("events", [begun, done])
    await kit.project("events", [begun])
    listed = (await body(kit, "list_operations", {"kind": "create_cluster", "status": "SUCCEEDED"}))["items"]
    assert [(item["id"], item["status"]) for item in listed] == [("op-prv-1", "SUCCEEDED")]
    assert (await body(kit, "list_operations", {"target_id": "clu-2"}))["items"] == []
    assert (await body(kit, "list_operations", tenants=("globex",)))["items"] == []


async def test_an_operation_that_can_not_be_read_is_still_kept_as_an_event(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("events", [operation(OperationStatus.RUNNING, 1, 1).model_copy(update={"data": {}})])
    assert (await body(kit, "list_operations"))["items"] == []
    assert len((await body(kit, "list_events"))["items"]) == 1


async def test_events_are_filtered_by_time_and_attributes(service_kit: Any) -> None:
    kit = await service_kit(service)
    await kit.project("events", [cluster_requested(n) for n in range(1, 6)])
    window = {"from": (T0 + timedelta(seconds=2)).isoformat(), "to": (T0 + timedelta(seconds=4)).isoformat()}
    assert [int(i["sequence"]) for i in (await body(kit, "list_events", {**window, "sort": "time"}))["items"]] == [2, 3]
    assert [int(i["sequence"]) for i in (await body(kit, "list_events", {"entity_id": ["clu-4"]}))["items"]] == [4]
    assert (await kit.query("list_events", {"from": "noon"})).status == 422


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_the_size_of_the_batches_changes_nothing(service_kit: Any, size: int) -> None:
    log = [*(cluster_requested(n) for n in range(1, 4)), operation(OperationStatus.RUNNING, 1, 4)]
    log.append(operation(OperationStatus.FAILED, 2, 5))
    found = []
    for step in (len(log), size):
        kit = await service_kit(service)
        for first in range(0, len(log), step):
            await kit.project("events", log[first : first + step])
        async with kit.app.read() as conn:
            found.append(await digest(conn, EVENTS.tables))
    assert found[0] == found[1]
