"""Every command is answered, whatever it holds and whatever happens to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

import libs.contracts.all  # noqa: F401
from libs.contracts import versions
from libs.contracts.envelope import MAX_MESSAGE_BYTES, Envelope
from libs.contracts.replies import Outcome, ok
from libs.contracts.site import InspectNode
from libs.contracts.upcasters import Upcasters
from services.satellite.commands import Attempt, command_of, execute
from services.satellite.messages import reply_envelope
from services.satellite.ports import Site

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
INSPECT = InspectNode.message_type


def command(data: dict[str, object], type_: str = INSPECT.type, schema: str | None = INSPECT.dataschema) -> Envelope:
    return Envelope(
        id="c1", source="/x", type=type_, dataschema=schema, time=NOW, subject="m1", correlationid="c", data=data
    )


class Broken:
    """Adapters with a bug in them."""

    async def inspect(self, machine_id: str) -> object:
        raise ZeroDivisionError("a bug")


async def no_log(lines: Sequence[str]) -> None:
    raise AssertionError(lines)


ATTEMPT = Attempt(Site(Broken(), None, None), resumed=False, log=no_log)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("envelope", "code", "word"),
    [
        (command({}, "slipway.site.ironic.explode", None), "command_unsupported", "explode"),
        (command({}, INSPECT.type, "/schemas/commands/x.v9.json"), "command_unsupported", "version 9"),
        (command({"machine_name": "m1"}), "command_invalid", "machine_id"),
        (command({"machine_id": None, "machine_name": "m1"}), "command_invalid", "machine_id"),
        (
            command({"machine_id": "m", "machine_name": "m", "machine_version": "x"}),
            "command_invalid",
            "machine_version",
        ),
    ],
)
async def test_a_command_that_cannot_be_read_is_refused_by_name(envelope: Envelope, code: str, word: str) -> None:
    reply = await execute(envelope, ATTEMPT)

    assert reply.outcome is Outcome.REFUSED
    assert reply.problem is not None
    assert reply.problem.code == code
    assert word in reply.problem.message


async def test_a_command_of_an_older_version_is_read_as_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Upcasters()
    older.register(INSPECT.type, 0)(lambda data: {"machine_id": data["machine"], "machine_name": data["machine"]})
    monkeypatch.setattr(versions, "UPCASTERS", older)
    read = command_of(command({"machine": "m1"}, schema=INSPECT.dataschema.replace(".v1.", ".v0.")))
    assert read == InspectNode(machine_id="m1", machine_name="m1")


async def test_a_bug_in_an_adapter_is_unknown_and_keeps_its_words_to_the_log() -> None:
    reply = await execute(command({"machine_id": "m1", "machine_name": "m1"}), ATTEMPT)

    assert reply.outcome is Outcome.UNKNOWN
    assert reply.problem is not None
    assert reply.problem.code == "satellite_bug"
    assert "a bug" not in reply.problem.message


def test_an_answer_that_the_bus_cannot_carry_becomes_a_failure_that_fits() -> None:
    envelope = reply_envelope("fra1", command({}), ok(text="x" * MAX_MESSAGE_BYTES), NOW)

    assert envelope.data["problem"]["code"] == "reply_too_large"
    assert len(envelope.encode()) < MAX_MESSAGE_BYTES


def test_the_same_command_has_the_same_reply_id() -> None:
    one, two = (reply_envelope("fra1", command({}), ok(), NOW) for _ in range(2))

    assert one.id == two.id
    assert one.causationid == "c1"
