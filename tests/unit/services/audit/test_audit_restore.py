"""Events of an export are put back into their places, or refused with the reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from slipway.proof import chained, with_digest

from libs.contracts.envelope import Envelope
from libs.contracts.operations import OperationStatus
from libs.runtime.database import Database
from services.audit import restore as restoring
from services.audit.app import service
from services.audit.restore import BadLine, Restored, restore
from tests.conftest import fresh_database
from tests.unit.services.audit.kept import as_owner, event, problems, project, sequences
from tests.unit.services.audit.test_audit_service import operation


def exported(events: Sequence[Envelope], *, digests: bool = True) -> list[str]:
    lines, previous = [], ""
    for each in events:
        text = each.encode().decode()
        previous = chained(previous, text)
        lines.append(with_digest(text, previous) if digests else text)
    return lines


async def put_back(kit: Any, lines: Sequence[str], *, dry_run: bool = False) -> Restored:
    return await restore(kit.database, lines, dry_run=dry_run)


EVENTS = [event(n) for n in range(1, 11)]


@pytest.mark.parametrize("gone", [[10], [1], [4, 5, 6], [1, 2, 9, 10], list(range(1, 11)), [2, 4, 6, 8]])
@pytest.mark.parametrize("digests", [True, False])
async def test_what_is_missing_comes_back_and_the_chain_is_as_it_was(
    service_kit: Any, gone: list[int], digests: bool
) -> None:
    kit = await service_kit(service)
    await project(kit, EVENTS)
    before = await as_owner(kit, "SELECT * FROM audit.event ORDER BY sequence")
    await as_owner(kit, "DELETE FROM audit.event WHERE sequence = ANY(:gone)", gone=gone)
    lines = exported(EVENTS, digests=digests)
    tried = await put_back(kit, lines, dry_run=True)
    assert (tried.new, await sequences(kit)) == (len(gone), [n for n in range(1, 11) if n not in gone])
    done = await put_back(kit, lines)
    assert (done.new, done.known, done.refused) == (len(gone), 10 - len(gone), [])
    assert await as_owner(kit, "SELECT * FROM audit.event ORDER BY sequence") == before
    assert await problems(kit) == []
    again = await put_back(kit, lines)
    assert (again.new, again.known) == (0, 10)


async def test_small_batches_change_nothing(service_kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "BATCH", 3)
    kit = await service_kit(service)
    await project(kit, EVENTS)
    await as_owner(kit, "DELETE FROM audit.event WHERE sequence > 2")
    assert (await put_back(kit, exported(EVENTS), dry_run=True)).new == 8
    assert (await put_back(kit, exported(EVENTS))).new == 8
    assert await problems(kit) == []


async def test_a_forged_event_is_refused_wherever_it_is_put(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, EVENTS)
    await as_owner(kit, "DELETE FROM audit.event WHERE sequence IN (4, 10)")
    forged = [*EVENTS[:3], event(4, name="forged"), *EVENTS[4:]]
    # Its maker has chained it properly; what follows in the store was chained to the genuine one.
    done = await put_back(kit, [exported(forged)[3]])
    assert [refused.why for refused in done.refused] == ["the event after 4 was chained without it"]
    taken = await put_back(kit, [exported([event(1, name="forged")])[0]])
    assert [refused.why for refused in taken.refused] == ["number 1 is taken by another event"]
    broken = exported(EVENTS)[9].replace('"chaindigest":"', '"chaindigest":"0')[:-3] + '"}'
    altered = await put_back(kit, [broken])
    assert [refused.why.split(";")[0].split(" has ")[0] for refused in altered.refused] == ["event 10"]
    assert (await put_back(kit, exported(EVENTS))).new == 2
    assert await problems(kit) == []


async def test_a_file_without_digests_may_not_pass_over_numbers(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, EVENTS[:3])
    done = await put_back(kit, exported(EVENTS, digests=False)[5:])
    assert len(done.refused) == 5
    assert done.refused[0].why == "numbers 4 to 5 are missing before it; restore them first"
    assert (await put_back(kit, exported(EVENTS, digests=False)[3:])).new == 7


async def test_a_gap_that_was_there_from_the_first_comes_back_as_a_gap(service_kit: Any) -> None:
    kit = await service_kit(service)
    gappy = [each for each in EVENTS if each.stream_sequence not in (5, 6)]
    await project(kit, gappy)
    await as_owner(kit, "DELETE FROM audit.event")
    assert (await put_back(kit, exported(gappy))).new == 8
    assert await problems(kit) == [("missing", 5)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "line 1: not JSON"),
        ("{}", "line 1: envelope field"),
        (exported([event(1, service="elsewhere")])[0], "has no number of a service of ours"),
        (json.dumps(json.loads(exported([event(1)], digests=False)[0]), indent=1), "not in the form"),
    ],
)
async def test_what_is_no_event_stops_it_before_anything_is_written(service_kit: Any, line: str, why: str) -> None:
    kit = await service_kit(service)
    with pytest.raises(BadLine, match=why):
        await put_back(kit, [line])
    assert await sequences(kit) == []


async def test_operations_come_back_with_their_events(service_kit: Any) -> None:
    kit = await service_kit(service)
    log = [operation(OperationStatus.RUNNING, 1, 1), operation(OperationStatus.SUCCEEDED, 2, 2)]
    await put_back(kit, exported(log))
    listed = (await kit.query("list_operations")).body["items"]
    assert [(item["id"], item["status"]) for item in listed] == [("op-prv-1", "SUCCEEDED")]


def test_the_command_says_what_it_did_and_ends_with_1_when_it_refused(
    postgres: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(asyncio.run(fresh_database(postgres, "audit")))
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", url)
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f"{line}\n" for line in exported(EVENTS)))
    assert restoring.main([str(file), "--dry-run"]) == 0
    assert "10 events would be put back" in capsys.readouterr().err
    assert restoring.main([str(file)]) == 0
    file.write_text("".join(f"{line}\n" for line in exported([event(1, name="other")])))
    assert restoring.main([str(file)]) == 1
    assert "refused: inventory 1 (e-inventory-1): number 1 is taken" in capsys.readouterr().err
    assert restoring.main([str(tmp_path / "nowhere")]) == 2
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", "")
    assert restoring.main([str(file)]) == 2
    assert "SLIPWAY_DATABASE_URL" in capsys.readouterr().err


async def test_the_service_may_run_meanwhile(service_kit: Any) -> None:
    kit = await service_kit(service)
    await project(kit, EVENTS[:2])
    other = Database(str(kit.database.engine.url.render_as_string(hide_password=False)), application_name="other")

    async def projector() -> None:
        for each in EVENTS[2:]:
            async with kit.database.transaction() as conn:
                await restoring._lock(conn, "inventory")
                await kit.service.projections[0].apply(conn, [each])

    try:
        await asyncio.gather(projector(), restore(other, exported(EVENTS), dry_run=False))
    finally:
        await other.close()
    await as_owner(kit, "UPDATE audit.projection_position SET position = 10")
    assert await sequences(kit) == list(range(1, 11))
    assert await problems(kit) == []
