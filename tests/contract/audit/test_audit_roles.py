"""Two roles: the one that runs audit may add and nothing else; the owner's functions decide by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from slipway.proof import chained

from libs.projection import digest
from libs.runtime import migrations
from libs.runtime.database import Database
from libs.runtime.embedded import EmbeddedPostgres
from libs.runtime.migrations import migrate
from libs.testing.kit import ServiceKit
from services.audit import store
from services.audit.keeping import keep
from services.audit.projections import EVENTS
from services.audit.record import event_row
from tests.contract.audit.parts import database_of, empty_database_of, owner_url
from tests.unit.services.audit.kept import event, run, signing_service

HISTORY = ("event", "checkpoint", "signing_key", "retention_policy", "legal_hold", "legal_hold_release", "removal")


async def kept(url: str, count: int) -> None:
    database = Database(url, application_name="test")
    async with database.transaction() as conn:
        await keep(conn, "inventory", [event(n) for n in range(1, count + 1)])
    await database.close()


async def test_the_running_role_may_add_history_and_never_change_it(postgres: EmbeddedPostgres) -> None:
    url = await database_of(postgres, "audit")
    await kept(url, 3)
    conn = await asyncpg.connect(url)
    partitions = [
        row["part"] for row in await conn.fetch("SELECT DISTINCT tableoid::regclass::text AS part FROM audit.event")
    ]
    assert partitions == ["audit.event_2021_05"]
    forbidden = [
        f"{verb} audit.{table}" for table in (*HISTORY, "contradiction") for verb in ("DELETE FROM", "TRUNCATE")
    ]
    forbidden += [f"UPDATE audit.{table} SET digest = ''" for table in ("event", "checkpoint", "removal")]
    forbidden += ["UPDATE audit.retention_policy SET keep_days = 30", "UPDATE audit.legal_hold SET value = 'x'"]
    # Not by way of a partition either, nor by making or dropping one.
    for part in (*partitions, "audit.event_rest"):
        forbidden += [f"DELETE FROM {part}", f"UPDATE {part} SET digest = ''", f"TRUNCATE {part}", f"DROP TABLE {part}"]
    forbidden += ["DROP TABLE audit.event", "ALTER TABLE audit.event DETACH PARTITION audit.event_rest"]
    forbidden += ["INSERT INTO audit.removal TABLE audit.removal"]
    for statement in forbidden:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.execute(statement)
    with pytest.raises(asyncpg.RaiseError, match="keeps everything"):
        await conn.fetchval("SELECT audit.remove_events('inventory', 1, 3, '{}', '', '')")
    assert await conn.fetchval("SELECT count(*) FROM audit.event") == 3
    await conn.close()


async def test_the_running_role_can_not_backdate_a_policy(postgres: EmbeddedPostgres) -> None:
    url = await database_of(postgres, "audit")
    conn = await asyncpg.connect(url)
    await conn.execute(
        "INSERT INTO audit.retention_policy VALUES (1, 30, 'r', 'user:mallory', '2020-01-01', '2020-01-01')"
    )
    assert await conn.fetchval("SELECT in_force_at > now() + interval '23 hours' FROM audit.retention_policy")
    assert await conn.fetchval("SELECT version FROM audit.policy_in_force()") is None
    await conn.close()


async def test_the_running_role_signs_holds_and_has_expired_events_removed(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    url = await database_of(postgres, "audit")
    database = Database(url, application_name="test")
    kit = ServiceKit(signing_service(tmp_path), database)
    await kit.project("events", [event(n, correlation=f"c{n}") for n in range(1, 6)])
    await kit.project("events", [event(2, name="another")])
    assert (await kit.call("make_checkpoint")).status == 201
    assert (await kit.call("place_hold", {"correlation_id": "c3", "reason": "case"})).status == 201
    assert (await kit.call("set_retention", {"keep_days": 365, "reason": "books"})).status == 200
    owner = await asyncpg.connect(owner_url(url, "audit"))
    await owner.execute("UPDATE audit.retention_policy SET in_force_at = set_at")
    await owner.close()
    assert await run(kit) == {"removed": 4, "held": 1}
    async with database.transaction() as conn:
        rows, _ = await store.chain(conn, "inventory", 0, 9, 9)
        assert [row["sequence"] for row in rows] == [3]
        assert [row["sequence"] for row in await store.contradictions(conn, "inventory")] == [2]
    await database.close()


async def test_rows_from_before_partitions_become_the_first_one_as_they_are(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await empty_database_of(postgres, "audit")
    whole = migrations._scripts("audit")

    class UntilBefore:
        def iterate_revisions(self, _upper: str, lower: str) -> Any:
            return whole.iterate_revisions("0002", lower)

    with monkeypatch.context() as patch:
        patch.setattr(migrations, "_scripts", lambda _service: UntilBefore())
        assert await migrate(owner_url(url, "audit"), "audit") == ["0001", "0002"]
    conn = await asyncpg.connect(url)
    rows = [event(n) for n in range(1, 4)]
    before = ""
    for each in rows:
        before = chained(before, each.encode().decode())
        row = event_row(each, before)
        places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        await conn.execute(f"INSERT INTO audit.event ({', '.join(row)}) VALUES ({places})", *row.values())
    await migrate(owner_url(url, "audit"), "audit")
    await kept(url, 6)
    found = await conn.fetch("SELECT sequence, tableoid::regclass::text AS part FROM audit.event ORDER BY sequence")
    assert [(row["sequence"], row["part"]) for row in found] == [(n, "audit.event_before") for n in range(1, 7)]
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await conn.execute("DELETE FROM audit.event_before")
    await conn.close()
    database = Database(url, application_name="test")
    async with database.transaction() as connection:
        rows_kept, _ = await store.chain(connection, "inventory", 0, 6, 9)
        assert [row["digest"] for row in rows_kept][2] == before
        assert await store.chain_end(connection, "inventory") == (6, rows_kept[-1]["digest"])
        live = await digest(connection, EVENTS.tables)
        shadow = await connection.execution_options(schema_translate_map={"audit": "audit_rebuild"})
        await EVENTS.apply(shadow, [event(n) for n in range(1, 7)])
        assert await digest(shadow, EVENTS.tables) == live
    await database.close()
