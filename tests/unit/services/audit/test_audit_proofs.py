"""What an owner of the database does behind our back is found, and where."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from slipway.proof import CHECKPOINT, chained, checkpoint_gaps, read_statements, trusted_keys

from libs.testing.kit import ServiceKit
from services.audit import signing
from services.audit.app import service
from tests.unit.services.audit.kept import LONG_AGO, as_owner, body, event, problems, project, signing_service


@pytest.mark.parametrize("limit", [1, 3, 500])
async def test_an_honest_chain_has_no_problem_whatever_the_page(service_kit: Any, limit: int) -> None:
    kit = await service_kit(service)
    await project(kit, [event(n) for n in range(1, 9)])
    assert await problems(kit, limit=limit) == []
    chains = {chain["service"]: chain for chain in (await body(kit, "verify_chain"))["items"]}
    assert (chains["inventory"]["last_sequence"], chains["inventory"]["read_up_to"]) == (8, 8)
    assert chains["cost"]["last_sequence"] == 0


TAMPERINGS = {
    "the text was changed": (
        "UPDATE audit.event SET envelope = replace(envelope, 'name-of-m1', 'name-of-m2') WHERE sequence = 4",
        ("altered", 4),
    ),
    "a column was changed": ("UPDATE audit.event SET tenant = 'globex' WHERE sequence = 4", ("altered", 4)),
    "who did it was changed": ("UPDATE audit.event SET actor = 'user:mallory' WHERE sequence = 4", ("altered", 4)),
    "a row was removed": ("DELETE FROM audit.event WHERE sequence = 4", ("removed", 4)),
    "several rows were removed": ("DELETE FROM audit.event WHERE sequence BETWEEN 4 AND 6", ("removed", 4)),
    "the first row was removed": ("DELETE FROM audit.event WHERE sequence = 1", ("removed", 1)),
    "a row was put in twice, in another month": (
        "INSERT INTO audit.event SELECT service, sequence, id, type, entity_kind, entity_id, entity_version, "
        "time - interval '1 year', tenant, site, actor, correlation_id, causation_id, mentions, envelope, digest "
        "FROM audit.event WHERE sequence = 4",
        ("inserted", 4),
    ),
    "a row was put behind the last": (
        "INSERT INTO audit.event SELECT service, 9, id, type, entity_kind, entity_id, entity_version, time, tenant, "
        "site, actor, correlation_id, causation_id, mentions, envelope, digest FROM audit.event WHERE sequence = 8",
        ("inserted", 9),
    ),
    "a text is no event any more": ("UPDATE audit.event SET envelope = '{}' WHERE sequence = 4", ("altered", 4)),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
async def test_what_was_done_to_a_row_is_found_at_its_place(service_kit: Any, tampering: str) -> None:
    statement, expected = TAMPERINGS[tampering]
    kit = await service_kit(service)
    await project(kit, [event(n) for n in range(1, 9)])
    await as_owner(kit, statement)
    for limit in (2, 500):
        found = await problems(kit, limit=limit)
        assert expected in found
        assert min(sequence for _, sequence in found) >= expected[1]


async def test_an_event_that_never_came_is_not_taken_for_one_that_was_removed(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(n) for n in (1, 2, 5, 6)])
    assert await problems(kit) == [("missing", 3)]


async def test_another_event_under_a_taken_number_is_kept_as_evidence(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(n) for n in range(1, 5)])
    other = event(3, name="another")
    await kit.project("events", [other])
    await kit.project("events", [other])
    assert await problems(kit) == [("contradicted", 3)]
    rows = await as_owner(kit, "SELECT sequence, envelope FROM audit.contradiction")
    assert [(row.sequence, "another" in row.envelope) for row in rows] == [(3, True)]


async def test_an_event_comes_late_into_its_place_only_when_nothing_was_chained_without_it(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(n) for n in range(1, 7)])
    await as_owner(kit, "DELETE FROM audit.event WHERE sequence IN (2, 3)")
    await kit.project("events", [event(n) for n in range(1, 7)])
    assert await problems(kit) == []
    other = await service_kit(service)
    await project(other, [event(n) for n in (1, 4)])
    await other.project("events", [event(2)])
    assert await problems(other) == [("missing", 2), ("contradicted", 2)]


# -- checkpoints ------------------------------------------------------------------------------------


async def signed(kit: Any) -> list[dict[str, Any]]:
    made = await kit.call("make_checkpoint")
    assert made.status == 201, made.body
    return list(made.body["items"])


async def test_a_checkpoint_signs_where_a_chain_stands_and_is_an_event(service_kit: Any, tmp_path: Path) -> None:
    kit = await service_kit(signing_service(tmp_path))
    await project(kit, [event(n) for n in range(1, 4)])
    await project(kit, [event(n, service="cost", kind="usage") for n in range(1, 3)])
    made = {checkpoint["service"]: checkpoint for checkpoint in await signed(kit)}
    assert {name: (c["number"], c["last_sequence"], c["events"]) for name, c in made.items()} == {
        "inventory": (1, 3, 3),
        "cost": (1, 2, 2),
    }
    keys = trusted_keys((await body(kit, "list_keys"))["keys"])
    read = read_statements(CHECKPOINT, made.values(), keys)
    assert read.problems == ()
    digest = ""
    for n in range(1, 4):
        digest = chained(digest, event(n).encode().decode())
    assert made["inventory"]["digest"] == digest
    announced = [e.data["checkpoint"] for e in await kit.events()]
    assert {checkpoint["statement"] for checkpoint in announced} == {c["statement"] for c in made.values()}
    assert await signed(kit) == []
    await project(kit, [event(4), event(5)])
    assert [(c["number"], c["events"]) for c in await signed(kit)] == [(2, 5)]
    listed = (await body(kit, "list_checkpoints", {"service": "inventory"}))["items"]
    assert [c["number"] for c in listed] == [1, 2]
    assert list(checkpoint_gaps(read_statements(CHECKPOINT, listed, keys).good)) == []


async def test_without_a_key_nothing_is_signed_and_the_refusal_says_what_to_do(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(1)])
    refused = await kit.call("make_checkpoint")
    assert (refused.status, refused.body["code"]) == (409, "audit.no_signing_key")
    assert "SLIPWAY_AUDIT_SIGNING_KEY" in refused.body["next_step"]


async def test_a_chain_is_signed_once_a_day_by_the_clock(service_kit: Any, tmp_path: Path) -> None:
    kit = await service_kit(signing_service(tmp_path))
    sign = next(p for p in kit.service.periodic if p.name == "sign")
    await project(kit, [event(1)])
    await sign.run(kit.app)
    await project(kit, [event(2)])
    await sign.run(kit.app)
    assert [c["last_sequence"] for c in (await body(kit, "list_checkpoints"))["items"]] == [1]
    await as_owner(kit, "UPDATE audit.checkpoint SET day = day - 1")
    await sign.run(kit.app)
    assert [c["last_sequence"] for c in (await body(kit, "list_checkpoints"))["items"]] == [1, 2]


async def test_tenants_get_the_keys_and_no_proofs_about_others(service_kit: Any, tmp_path: Path) -> None:
    kit = await service_kit(signing_service(tmp_path))
    await project(kit, [event(1)])
    await signed(kit)
    for name in ("list_checkpoints", "list_removals", "verify_chain", "get_retention", "list_holds"):
        assert (await kit.query(name, tenants=("acme",))).status == 404
    assert len((await body(kit, "list_keys", tenants=("acme",)))["keys"]) == 1


async def test_a_new_key_takes_over_and_what_the_old_one_signed_still_counts(service_kit: Any, tmp_path: Path) -> None:
    first = await service_kit(signing_service(tmp_path / "old"))
    await project(first, [event(1)])
    await signed(first)
    second = ServiceKit(signing_service(tmp_path / "new"), first.database)
    await project(second, [event(2)])
    await signed(second)
    listed = (await body(second, "list_checkpoints"))["items"]
    keys = trusted_keys((await body(second, "list_keys"))["keys"])
    read = read_statements(CHECKPOINT, listed, keys)
    assert (read.problems, len({c["key_id"] for c in listed}), len(keys)) == ((), 2, 2)
    assert list(checkpoint_gaps(read.good)) == []


def test_a_file_that_is_no_key_is_refused_by_name_and_one_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "key.pem"
    assert signing.main([str(path)]) == 0
    kept = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert signing.main([str(path)]) == 0
    assert path.read_bytes() == kept
    for content in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        path.write_bytes(content)
        with pytest.raises(signing.NoSigningKey, match=r"key\.pem.*services\.audit\.signing"):
            signing.read_signer(path)
    with pytest.raises(signing.NoSigningKey, match="can't be read"):
        signing.read_signer(tmp_path / "none")
    assert signing.main([]) == 2


# -- partitions -------------------------------------------------------------------------------------


async def partitions(kit: Any) -> dict[str, int]:
    rows = await as_owner(kit, "SELECT tableoid::regclass::text AS part, count(*) AS n FROM audit.event GROUP BY 1")
    return {row.part: row.n for row in rows}


async def test_every_time_has_a_place_and_every_month_a_partition(service_kit: Any) -> None:
    kit = await service_kit(service)
    times = [LONG_AGO, LONG_AGO + timedelta(days=31), LONG_AGO.replace(year=1999), LONG_AGO.replace(year=9999)]
    await project(kit, [event(n, time=time) for n, time in enumerate(times, 1)])
    assert await partitions(kit) == {"audit.event_2021_05": 1, "audit.event_2021_06": 1, "audit.event_rest": 2}
    assert await problems(kit) == []


async def test_what_lies_in_the_rest_moves_to_its_month_when_that_is_made(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, [event(1)])
    await as_owner(kit, "CREATE TABLE audit.kept AS TABLE audit.event")
    await as_owner(kit, "DROP TABLE audit.event_2021_05")
    await as_owner(kit, "INSERT INTO audit.event TABLE audit.kept")
    assert await partitions(kit) == {"audit.event_rest": 1}
    await project(kit, [event(2)])
    assert await partitions(kit) == {"audit.event_2021_05": 2}
    assert await problems(kit) == []


async def test_partitions_are_made_ahead(service_kit: Any) -> None:
    kit = await service_kit(service)
    ahead = next(p for p in kit.service.periodic if p.name == "make_partitions")
    await ahead.run(kit.app)
    await ahead.run(kit.app)
    rows = await as_owner(
        kit, "SELECT count(*) AS n FROM pg_class WHERE relispartition AND relname ~ '^event_\\d{4}_\\d{2}$'"
    )
    assert rows[0].n == 3
