"""The journal: what is on disk before what, and what a crash between two steps leaves behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import libs.contracts.all  # noqa: F401
from libs.contracts.envelope import Envelope, decode
from libs.contracts.message import json_data
from libs.contracts.replies import Reply, ok
from libs.contracts.site import DeployNode, InspectNode, ReleaseNode, SiteCommand
from services.satellite.journal import KEEP_ANSWERS, Journal, Landing
from services.satellite.messages import reply_envelope
from services.satellite.model import order_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SUBJECT = "local.fra1.reply.inventory.v1"


def landing(command: SiteCommand, command_id: str, *, minute: int = 0) -> Landing:
    envelope = Envelope(
        id=command_id,
        source="/slipway/inventory",
        type=command.message_type.type,
        time=NOW,
        subject=command.key(),
        correlationid="c",
        replyto="inventory",
        data=json_data(command),
    )
    return Landing(envelope, command.key(), order_of(command, stored_at=NOW + timedelta(minutes=minute), deadline=None))


def inspect(machine: str = "m1") -> InspectNode:
    return InspectNode(machine_id=machine, machine_name=machine)


def release(claim: str, version: int = 0) -> ReleaseNode:
    return ReleaseNode(machine_id="m1", machine_name="m1", claim_id=claim, machine_version=version)


def deploy(claim: str, version: int = 0) -> DeployNode:
    return DeployNode(
        machine_id="m1",
        machine_name="m1",
        claim_id=claim,
        machine_version=version,
        image_url="",
        image_checksum="",
        hostname="n",
        ssh_authorized_keys=(),
    )


def answer(journal: Journal, landed: Landing, reply: Reply | None = None) -> None:
    reply = reply or ok()
    envelope = reply_envelope("fra1", landed.envelope, reply, NOW)
    journal.finish(landed.envelope.id, reply.outcome.value, envelope, SUBJECT, NOW)


class Disk:
    """Opens the same journal again, as the next process would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path)

    def crash(self) -> Journal:
        self.journal.close()
        self.journal = Journal(self.path)
        return self.journal


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "state" / "journal.sqlite")


def test_a_landed_command_waits_after_a_crash(disk: Disk) -> None:
    disk.journal.land([landing(inspect(), "c1")], NOW)

    entries = disk.crash().open_entries()

    assert [(entry.envelope.id, entry.key, entry.begun) for entry in entries] == [("c1", "m1", False)]


def test_a_begun_command_is_known_as_begun_after_a_crash(disk: Disk) -> None:
    disk.journal.land([landing(inspect(), "c1")], NOW)
    assert disk.journal.begin("c1", NOW)

    journal = disk.crash()

    assert [entry.begun for entry in journal.open_entries()] == [True]
    assert not journal.begin("c1", NOW)


def test_an_answer_that_was_not_published_is_published_after_a_crash_under_the_same_id(disk: Disk) -> None:
    landed = landing(inspect(), "c1")
    disk.journal.land([landed], NOW)
    disk.journal.begin("c1", NOW)
    answer(disk.journal, landed, ok(serial="S1"))
    before = disk.journal.unpublished(10)

    after = disk.crash().unpublished(10)

    assert after == before
    assert len(after) == 1
    told = decode(after[0].payload)
    assert (told.causationid, told.id, told.data["data"]) == ("c1", after[0].message_id, {"serial": "S1"})
    assert disk.journal.open_entries() == []


def test_a_published_answer_is_not_published_again(disk: Disk) -> None:
    landed = landing(inspect(), "c1")
    disk.journal.land([landed], NOW)
    answer(disk.journal, landed)
    disk.journal.published([message.position for message in disk.journal.unpublished(10)], NOW)

    assert disk.crash().unpublished(10) == []


def test_a_command_that_comes_again_has_its_first_answer_published_again_and_is_not_worked_on(disk: Disk) -> None:
    landed = landing(inspect(), "c1")
    disk.journal.land([landed], NOW)
    answer(disk.journal, landed, ok(first=True))
    first = disk.journal.unpublished(10)
    disk.journal.published([message.position for message in first], NOW)

    new = disk.journal.land([landed], NOW)

    assert new == 0
    assert disk.journal.open_entries() == []
    assert disk.journal.unpublished(10) == first


def test_the_first_answer_stands(disk: Disk) -> None:
    landed = landing(inspect(), "c1")
    disk.journal.land([landed], NOW)
    answer(disk.journal, landed, ok(number=1))
    answer(disk.journal, landed, ok(number=2))

    assert [decode(message.payload).data["data"] for message in disk.journal.unpublished(10)] == [{"number": 1}]


def test_commands_come_up_in_the_order_in_which_the_hub_stored_them(disk: Disk) -> None:
    disk.journal.land([landing(inspect(), "late", minute=2), landing(inspect(), "early", minute=1)], NOW)

    assert [entry.envelope.id for entry in disk.journal.open_entries()] == ["early", "late"]


def test_a_batch_lands_whole_or_not_at_all(disk: Disk) -> None:
    broken = landing(inspect(), "c2")
    object.__setattr__(broken, "key", object())

    with pytest.raises(Exception):  # noqa: B017  (whatever SQLite says of a value it can't hold)
        disk.journal.land([landing(inspect(), "c1"), broken], NOW)

    assert disk.crash().open_entries() == []


def test_an_overtaken_claim_stays_overtaken_after_a_crash(disk: Disk) -> None:
    disk.journal.land([landing(deploy("a"), "c1"), landing(deploy("b"), "c2", minute=1)], NOW)
    journal = disk.crash()
    journal.land([landing(release("a"), "c3", minute=2)], NOW)

    fence = journal.fence("m1")

    assert fence is not None
    assert fence.claim_id == "b"


def test_a_claim_that_comes_back_with_a_higher_version_takes_the_fence(disk: Disk) -> None:
    disk.journal.land([landing(deploy("a", 3), "c1"), landing(deploy("b", 7), "c2", minute=1)], NOW)
    disk.journal.land([landing(deploy("a", 9), "c3", minute=2)], NOW)

    fence = disk.journal.fence("m1")

    assert fence is not None
    assert (fence.claim_id, fence.machine_version) == ("a", 9)


def test_only_later_commands_that_change_the_machine_count_as_newer(disk: Disk) -> None:
    disk.journal.land(
        [
            landing(deploy("a", 5), "c1"),
            landing(InspectNode(machine_id="m1", machine_name="m1", machine_version=9), "c2", minute=1),
            landing(release("a", 7), "c3", minute=2),
        ],
        NOW,
    )
    entries = {entry.envelope.id: entry for entry in disk.journal.open_entries()}

    assert disk.journal.newest_changing_version(entries["c1"]) == 7
    assert disk.journal.newest_changing_version(entries["c3"]) == 0


def test_a_runs_log_goes_on_counting_after_a_crash(disk: Disk) -> None:
    landed = landing(inspect(), "c1")
    assert disk.journal.next_line("run-1") == 1
    disk.journal.post_log("run-1", 1, 3, reply_envelope("fra1", landed.envelope, ok(), NOW), SUBJECT)

    assert disk.crash().next_line("run-1") == 4


def test_old_answers_are_forgotten_and_waiting_commands_are_not(disk: Disk) -> None:
    old = landing(inspect(), "old")
    disk.journal.land([old, landing(inspect("m2"), "waiting")], NOW)
    answer(disk.journal, old)
    disk.journal.published([message.position for message in disk.journal.unpublished(10)], NOW)

    disk.journal.prune(NOW + KEEP_ANSWERS + timedelta(days=1))

    assert disk.journal.land([old], NOW) == 1
    assert {entry.envelope.id for entry in disk.journal.open_entries()} == {"old", "waiting"}


def test_the_journal_is_readable_by_its_owner_only(disk: Disk) -> None:
    assert oct(disk.path.stat().st_mode & 0o777) == "0o600"
