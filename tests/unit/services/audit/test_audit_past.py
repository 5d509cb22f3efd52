"""What a machine, a cluster or a tenant was at an instant, from the events that are kept."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import libs.contracts.all  # noqa: F401  (declares every message)
from libs.contracts.envelope import now_utc
from libs.contracts.message import Kind, registry
from services.audit.app import service
from services.audit.past import OWNERS
from tests.unit.services.audit.kept import LONG_AGO, event, in_force, project, run, signing_service

EVENTS = [message for message in registry().values() if message.message_type.kind is Kind.EVENT]


def at(seconds: float) -> str:
    return (LONG_AGO + timedelta(seconds=seconds)).isoformat()


async def state(kit: Any, id_: str, when: str, kind: str = "machine", **more: Any) -> Any:
    return await kit.query("get_state", {"entity_kind": kind, "entity_id": id_, "at": when}, **more)


def cluster(sequence: int, id_: str, name: str, version: int, tenant: str = "acme", state: str = "READY") -> Any:
    return event(
        sequence,
        service="provisioning",
        kind="cluster",
        id_=id_,
        version=version,
        tenant=tenant,
        name=name,
        state=state,
    )


@pytest.mark.parametrize("message", EVENTS, ids=lambda message: message.message_type.type)
def test_every_event_of_what_can_be_looked_back_at_carries_the_whole_of_it(message: Any) -> None:
    kind = message.message_type
    if kind.entity in OWNERS:
        assert kind.entity in message.model_fields
        assert kind.group == OWNERS[kind.entity]


async def test_the_state_at_an_instant_is_that_of_the_newest_event_until_then(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(n, state=f"S{n}", id_="m1" if n % 2 else "m2") for n in range(1, 7)])
    for seconds, expected in ((1, "S1"), (2.9, "S1"), (3, "S3"), (100, "S5")):
        answer = await state(kit, "m1", at(seconds))
        assert (answer.status, answer.body["state"]) == (200, expected)
    origin = answer.body["as_of_event"]
    assert (origin["id"], origin["sequence"], origin["time"]) == ("e-inventory-5", 5, at(5))
    assert origin["known_until"] == at(6)


async def test_before_it_existed_there_is_nothing_and_the_refusal_says_since_when(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(5, version=1)])
    for name in ("m1", "name-of-m1"):
        answer = await state(kit, name, at(4))
        assert (answer.status, answer.body["code"]) == (404, "history.not_yet")
        assert at(5) in answer.body["message"]
    unknown = await state(kit, "m9", at(4))
    assert (unknown.status, unknown.body["code"]) == (404, "machine.not_found")


async def test_the_future_is_refused(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(1)])
    answer = await state(kit, "m1", (now_utc() + timedelta(minutes=5)).isoformat())
    assert (answer.status, answer.body["code"]) == (422, "history.in_the_future")
    assert (await state(kit, "m1", "yesterday")).status == 422
    assert (await state(kit, "m1", at(1), kind="operation")).status == 422


async def test_a_name_is_that_of_then(service_kit: Any) -> None:
    kit = await service_kit(service)
    events = [
        cluster(1, "clu-1", "train", 1),
        cluster(2, "clu-1", "train", 2, state="DELETED"),
        cluster(3, "clu-2", "train", 1),
        cluster(4, "clu-3", "eval", 1, tenant="globex"),
    ]
    await project(kit, events)
    assert (await state(kit, "train", at(1), "cluster")).body["id"] == "clu-1"
    assert (await state(kit, "train", at(2), "cluster")).body["state"] == "DELETED"
    assert (await state(kit, "train", at(3), "cluster")).body["id"] == "clu-2"
    assert (await state(kit, "eval", at(9), "cluster")).body["id"] == "clu-3"


async def test_two_of_one_name_are_not_guessed_between(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [cluster(1, "clu-1", "train", 1), cluster(2, "clu-2", "train", 1, tenant="globex")])
    answer = await state(kit, "train", at(3), "cluster")
    assert (answer.status, answer.body["code"]) == (409, "history.ambiguous_name")
    assert "clu-1, clu-2" in answer.body["message"]
    assert (await state(kit, "train", at(3), "cluster", tenants=("globex",))).body["id"] == "clu-2"


async def test_anothers_cluster_does_not_exist_in_the_past_either(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [cluster(1, "clu-1", "train", 1)])
    for name in ("clu-1", "train"):
        answer = await state(kit, name, at(2), "cluster", tenants=("globex",))
        assert (answer.status, answer.body["code"]) == (404, "cluster.not_found")


async def removed_kit(service_kit: Any, folder: Path, hold: str | None = None) -> tuple[Any, datetime]:
    """Versions 1 to 4 of m1 and 1 of m2 are old and removed, as far as nothing holds them; 5 of m1 is young."""
    kit = await service_kit(signing_service(folder))
    now = now_utc() - timedelta(minutes=5)
    old = [event(n, correlation=f"c{n}", state=f"S{n}") for n in range(1, 5)]
    await project(kit, [*old, event(5, id_="m2", version=1), event(6, version=5, time=now, state="S5")])
    await kit.call("make_checkpoint")
    if hold is not None:
        await kit.call("place_hold", {"correlation_id": hold, "reason": "case"})
    await in_force(kit)
    await run(kit)
    return kit, now


async def test_what_retention_took_is_refused_with_the_reason(service_kit: Any, tmp_path: Path) -> None:
    kit, now = await removed_kit(service_kit, tmp_path)
    answer = await state(kit, "m1", at(3))
    assert (answer.status, answer.body["code"]) == (410, "history.removed")
    assert (await state(kit, "m1", now.isoformat())).body["state"] == "S5"
    assert (await state(kit, "m2", at(9))).status == 404


async def test_a_held_event_answers_for_its_time_only_when_nothing_can_have_followed(
    service_kit: Any, tmp_path: Path
) -> None:
    kit, _ = await removed_kit(service_kit, tmp_path, hold="c4")
    assert (await state(kit, "m1", at(4))).body["state"] == "S4"
    (tmp_path / "b").mkdir()
    other, _ = await removed_kit(service_kit, tmp_path / "b", hold="c2")
    assert (await state(other, "m1", at(2))).status == 410
