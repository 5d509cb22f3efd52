"""What is expired goes, what is held stays, and the chain is still whole."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from slipway.proof import REMOVAL, read_statements, trusted_keys
from sqlalchemy.exc import DBAPIError

from libs.contracts.envelope import Envelope, decode, now_utc
from libs.projection import digest
from services.audit.projections import EVENTS
from tests.unit.services.audit.kept import (
    YEAR,
    as_owner,
    body,
    event,
    in_force,
    problems,
    project,
    run,
    sequences,
    signing_service,
)


async def kit_of(service_kit: Any, folder: Path, *, old: int = 6, young: int = 2) -> Any:
    """`old` expired events and `young` ones of today, signed."""
    kit = await service_kit(signing_service(folder))
    now = now_utc() - timedelta(hours=1)
    events = [event(n) for n in range(1, old + 1)]
    events += [event(n, time=now + timedelta(seconds=n)) for n in range(old + 1, old + young + 1)]
    await project(kit, events)
    assert (await kit.call("make_checkpoint")).status == 201
    return kit


async def hold(kit: Any, **what: str) -> str:
    placed = await kit.call("place_hold", {**what, "reason": "case 4711"}, actor="user:lena")
    assert placed.status == 201, placed.body
    return str(placed.body["id"])


async def removals(kit: Any) -> list[tuple[int, int]]:
    found = (await body(kit, "list_removals"))["items"]
    keys = trusted_keys((await body(kit, "list_keys"))["keys"])
    assert read_statements(REMOVAL, found, keys).problems == ()
    return [(removal["first_sequence"], removal["last_sequence"]) for removal in found]


async def test_expired_events_go_and_their_chain_stays_whole(service_kit: Any, tmp_path: Path) -> None:
    kit = await kit_of(service_kit, tmp_path)
    await in_force(kit)
    assert await run(kit) == {"removed": 6, "held": 0}
    assert await sequences(kit) == [7, 8]
    assert await removals(kit) == [(1, 6)]
    assert await problems(kit) == []
    assert await problems(kit, limit=1) == []
    gaps = await body(kit, "list_gaps")
    assert (gaps["items"], gaps["entities"], gaps["removed"]) == ([], [], 6)
    assert await run(kit) == {"removed": 0, "held": 0}
    told = [e for e in await kit.events() if e.type == "slipway.audit.removal.done"]
    assert [(e.data["removal"]["events"], e.entityversion, e.subject) for e in told] == [(6, 1, "inventory")]
    await project(kit, [event(9, time=now_utc())])
    assert await problems(kit) == []


async def test_the_partition_of_a_month_that_is_empty_is_dropped(service_kit: Any, tmp_path: Path) -> None:
    kit = await kit_of(service_kit, tmp_path)
    await in_force(kit)
    await run(kit)
    rows = await as_owner(kit, "SELECT to_regclass('audit.event_2021_05') IS NULL AS gone")
    assert rows[0].gone


@pytest.mark.parametrize(
    ("what", "kept"),
    [
        ({"entity_id": "m7"}, [3]),
        ({"entity_id": "name-of-m7"}, [3]),
        ({"entity_id": "op-9"}, [4]),
        ({"tenant": "acme"}, [2]),
        ({"correlation_id": "c9"}, [5]),
        ({"entity_id": "nothing"}, []),
    ],
)
async def test_what_is_held_stays_until_it_is_released(
    service_kit: Any, tmp_path: Path, what: dict[str, str], kept: list[int]
) -> None:
    kit = await service_kit(signing_service(tmp_path))
    old = [
        event(1),
        event(2, tenant="acme"),
        event(3, id_="m7", version=1),
        event(4, operation_id="op-9"),
        event(5, correlation="c9"),
        event(6),
    ]
    await project(kit, [*old, event(7, time=now_utc() - timedelta(minutes=1))])
    await kit.call("make_checkpoint")
    await in_force(kit)
    id_ = await hold(kit, **what)
    preview = await body(kit, "preview_retention")
    assert (preview["removed"], preview["held"]) == (6 - len(kept), len(kept))
    assert await run(kit) == {"removed": 6 - len(kept), "held": len(kept)}
    assert await sequences(kit) == [*kept, 7]
    assert await problems(kit) == []
    gaps = await body(kit, "list_gaps")
    assert (gaps["items"], gaps["entities"]) == ([], [])
    released = await kit.call("release_hold", {"id": id_, "reason": "settled"}, actor="user:otto")
    assert (released.status, released.body["released_by"], released.body["release_reason"]) == (
        200,
        "user:otto",
        "settled",
    )
    assert (await kit.call("release_hold", {"id": id_, "reason": "again"})).status == 409
    assert await run(kit) == {"removed": len(kept), "held": 0}
    assert await problems(kit) == []
    types = [e.type.removeprefix("slipway.audit.") for e in await kit.events()]
    assert types.count("hold.placed") == types.count("hold.released") == 1


async def test_a_shorter_policy_waits_a_day_and_a_longer_one_counts_at_once(service_kit: Any, tmp_path: Path) -> None:
    kit = await kit_of(service_kit, tmp_path)
    shorter = (await kit.call("set_retention", {"keep_days": YEAR, "reason": "less"})).body
    assert await run(kit) == {"removed": 0, "held": 0}
    shown = await body(kit, "get_retention")
    assert (shown["in_force"], shown["pending"]["version"]) == (None, 1)
    waits = await as_owner(kit, "SELECT in_force_at - set_at = interval '1 day' AS day FROM audit.retention_policy")
    assert (shorter["keep_days"], waits[0].day) == (YEAR, True)
    # Taking it back: it never comes into force, not even when its day comes.
    assert (await kit.call("set_retention", {"keep_days": None, "reason": "a slip"})).status == 200
    await as_owner(kit, "UPDATE audit.retention_policy SET in_force_at = now() WHERE version = 1")
    assert (await body(kit, "get_retention"))["in_force"]["keep_days"] is None
    assert await run(kit) == {"removed": 0, "held": 0}


async def test_a_policy_that_somebody_else_has_changed_is_not_overwritten(service_kit: Any, tmp_path: Path) -> None:
    kit = await kit_of(service_kit, tmp_path)
    first = await kit.call("set_retention", {"keep_days": YEAR, "reason": "one"}, if_match="0")
    assert first.etag == "1"
    assert (await kit.call("set_retention", {"keep_days": 90, "reason": "two"}, if_match="0")).status == 412
    assert (await kit.call("set_retention", {"keep_days": 7, "reason": "three"})).status == 422


async def test_nothing_goes_that_no_checkpoint_covers(service_kit: Any, tmp_path: Path) -> None:
    kit = await service_kit(signing_service(tmp_path))
    await project(kit, [event(n) for n in range(1, 4)])
    await kit.call("make_checkpoint")
    await project(kit, [event(n) for n in range(4, 7)])
    await in_force(kit)
    assert await run(kit) == {"removed": 3, "held": 0}
    assert await sequences(kit) == [4, 5, 6]


@pytest.mark.parametrize(
    ("prepare", "first", "last", "why"),
    [
        ("UPDATE audit.retention_policy SET keep_days = NULL", 1, 6, "keeps everything"),
        ("DELETE FROM audit.checkpoint", 1, 6, "no signed checkpoint"),
        ("SELECT 1", 1, 7, "not expired"),
        ("SELECT 1", 40, 50, "no signed checkpoint"),
        (
            "INSERT INTO audit.legal_hold VALUES ('h', 'entity', 'm1', 'r', 'user:x', now())",
            1,
            6,
            "a legal hold keeps",
        ),
        ("SELECT 1", 1, 5, "does not say what is removed"),
        ("SELECT 1", 2, 6, "does not say what is removed"),
    ],
)
async def test_the_owners_function_takes_nobodys_word_for_it(
    service_kit: Any, tmp_path: Path, prepare: str, first: int, last: int, why: str
) -> None:
    kit = await kit_of(service_kit, tmp_path)
    await in_force(kit)
    await as_owner(kit, prepare)
    rows = await as_owner(kit, "SELECT digest FROM audit.event WHERE sequence = 6")
    said = (
        '{"service":"inventory","first_sequence":1,"last_sequence":6,"events":6,"digest_before":"",'
        f'"digest":"{rows[0].digest}","policy_version":1}}'
    )
    with pytest.raises(DBAPIError, match=why):
        await as_owner(
            kit,
            "SELECT audit.remove_events('inventory', :first, :last, :said, 'key', 'signature')",
            first=first,
            last=last,
            said=said,
        )
    assert await sequences(kit) == list(range(1, 9))


async def test_a_forged_removal_is_no_excuse_for_what_is_gone(service_kit: Any, tmp_path: Path) -> None:
    kit = await kit_of(service_kit, tmp_path)
    await in_force(kit)
    await run(kit)
    await as_owner(kit, "DELETE FROM audit.event WHERE sequence = 7")
    await as_owner(
        kit,
        "INSERT INTO audit.removal SELECT service, 7, 7, 1, digest, 'x', newest, policy_version, statement, key_id, "
        "signature FROM audit.removal",
    )
    keys = trusted_keys((await body(kit, "list_keys"))["keys"])
    forged = read_statements(REMOVAL, (await body(kit, "list_removals"))["items"], keys).problems
    assert [(problem.kind, problem.sequence) for problem in forged] == [("forged_removal", 7)]
    assert await problems(kit) != []


async def test_what_was_removed_is_not_made_again_by_a_rebuild(service_kit: Any, tmp_path: Path) -> None:
    kit = await kit_of(service_kit, tmp_path)
    await hold(kit, correlation_id="c1")
    await in_force(kit)
    again = [event(n) for n in range(1, 7)]
    await kit.call("release_hold", {"id": (await body(kit, "list_holds"))["items"][0]["id"], "reason": "done"})
    await run(kit)
    await kit.project("events", again)
    assert await sequences(kit) == [7, 8]
    young = await as_owner(kit, "SELECT envelope FROM audit.event ORDER BY sequence")
    async with kit.database.engine.connect() as conn:
        live = await digest(conn, EVENTS.tables)
        shadow = await conn.execution_options(schema_translate_map={"audit": "audit_rebuild"})
        await EVENTS.apply(shadow, [*again, *(decode(row.envelope.encode()) for row in young)])
        assert await digest(shadow, EVENTS.tables) == live


async def test_a_hold_names_exactly_one_thing_and_says_when_it_matches_nothing(
    service_kit: Any, tmp_path: Path
) -> None:
    kit = await kit_of(service_kit, tmp_path)
    for wrong in ({}, {"tenant": "a", "entity_id": "b"}):
        assert (await kit.call("place_hold", {**wrong, "reason": "r"})).status == 422
    assert (await kit.call("place_hold", {"entity_id": "m1", "reason": "r"})).body["matches_now"] is True
    assert (await kit.call("place_hold", {"entity_id": "m9", "reason": "r"})).body["matches_now"] is False
    assert (await kit.call("release_hold", {"id": "hld-none", "reason": "r"})).status == 404
    in_force_ = await body(kit, "list_holds", {"in_force": True})
    assert len(in_force_["items"]) == 2


async def test_an_event_from_a_wrong_clock_holds_up_nobody_else(service_kit: Any, tmp_path: Path) -> None:
    kit = await service_kit(signing_service(tmp_path))
    future = now_utc() + timedelta(days=4000)
    await project(kit, [event(1), event(2, time=future), event(3), event(4, time=now_utc())])
    await kit.call("make_checkpoint")
    await in_force(kit)
    assert (await body(kit, "preview_retention"))["removed"] == 2
    assert await run(kit) == {"removed": 2, "held": 0}
    assert await sequences(kit) == [2, 4]
    assert await problems(kit) == []


async def test_a_broker_that_lost_everything_is_filled_without_a_hole_and_nothing_comes_back(
    service_kit: Any, tmp_path: Path
) -> None:
    kit = await kit_of(service_kit, tmp_path)
    await hold(kit, entity_id="nothing")
    await in_force(kit)
    await run(kit)
    filled: list[Envelope] = []
    while len(filled) < 8:
        params = {"service": "inventory", "first": len(filled) + 1, "last": 8}
        items = (await body(kit, "archived_events", params))["items"]
        filled += [decode(text.encode()) for text in items]
    assert [each.stream_sequence for each in filled] == list(range(1, 9))
    assert [each.type for each in filled][5:7] == [
        "slipway.inventory.event.removed",
        "slipway.inventory.machine.updated",
    ]
    await kit.project("events", filled)
    assert await sequences(kit) == [7, 8]
    assert await problems(kit) == []
