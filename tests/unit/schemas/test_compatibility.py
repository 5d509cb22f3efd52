"""What may change in a message between releases, and what is refused with what to do about it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from libs.contracts.upcasters import Upcasters
from tools import check_compatibility as tool
from tools.generation.compatibility import changes, new_values
from tools.generation.consumers import Consumer


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class FewerColours(StrEnum):
    RED = "red"


class MoreColours(StrEnum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Part(BaseModel):
    name: str
    size: int = 1


class RenamedPart(BaseModel):
    title: str = ""
    size: int = 1


class StricterPart(BaseModel):
    name: str
    size: int


FIELDS: dict[str, Any] = {
    "id": (str, ...),
    "count": (int, Field(default=0, ge=0, le=100)),
    "colour": (Colour, Colour.RED),
    "kind": (Literal["a", "b"], "a"),
    "parts": (tuple[Part, ...], ()),
    "best": (Part | None, None),
    "labels": (dict[str, int], {}),
    "anything": (object, None),
}


def _schema(**fields: Any) -> dict[str, Any]:
    chosen = {name: field for name, field in {**FIELDS, **fields}.items() if field is not None}
    return create_model("Thing", **chosen).model_json_schema()


RELEASED = _schema()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": None}, "id: it was removed or renamed"),
        ({"labels": None}, "labels: it was removed or renamed"),
        ({"parts": None, "pieces": (tuple[Part, ...], ())}, "parts: it was removed or renamed"),
        ({"owner": (str, ...)}, "owner: it is required on one side and absent on the other"),
        ({"id": (int, ...)}, "id: its type is"),
        ({"id": (str | None, ...)}, "id: its type is null on one side"),
        ({"best": (Part, Part(name="x"))}, "best: its type is null on one side"),
        ({"count": (float, 0.0)}, "count: its type is"),
        ({"count": (int, Field(default=0, ge=1, le=100))}, "count: minimum is 1"),
        ({"count": (int, Field(default=0, ge=0, le=1000))}, "count: maximum is 100"),
        ({"count": (int, 0)}, "count: minimum is 0 on one side and absent on the other"),
        ({"id": (str, Field(pattern="x+"))}, "id: pattern is x+ on one side"),
        ({"id": (str, "")}, "id: it is required on one side and optional on the other"),
        ({"colour": (FewerColours, FewerColours.RED)}, "colour: the value 'blue' is known on one side only"),
        ({"colour": (str, "red")}, "colour: only certain values are allowed on one side"),
        ({"kind": (Literal["a"], "a")}, "kind: the value 'b'"),
        ({"parts": (tuple[RenamedPart, ...], ())}, "parts[].name: it was removed or renamed"),
        ({"parts": (tuple[StricterPart, ...], ())}, "parts[].size: it is required on one side and optional"),
        ({"best": (RenamedPart | None, None)}, "best.name: it was removed or renamed"),
        ({"labels": (dict[str, str], {})}, "labels.*: its type is"),
        ({"anything": (str, "")}, "anything: its type is"),
    ],
)
def test_a_change_that_somebody_could_not_read_is_refused(change: dict[str, Any], words: str) -> None:
    found = changes(RELEASED, _schema(**change))
    assert any(line.startswith(words) for line in found), found


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"note": (str, "")},
        {"more": (tuple[Part, ...], ())},
        {"id": (str, Field(..., description="now described", title="The id"))},
        {"colour": (MoreColours, MoreColours.RED)},
    ],
)
def test_what_everybody_can_go_on_reading_is_allowed(change: dict[str, Any]) -> None:
    assert changes(RELEASED, _schema(**change)) == []


def test_a_new_value_is_allowed_and_told() -> None:
    assert new_values(RELEASED, _schema(colour=(MoreColours, MoreColours.RED))) == ["colour: the value 'green'"]
    assert new_values(RELEASED, RELEASED) == []


# -- the tool ---------------------------------------------------------------------------------------

EVENT, COMMAND = "slipway.inventory.rack.updated.v1", "slipway.command.reservation.hold_machines.v1"


def _release(**messages: Any) -> dict[str, Any]:
    return {"messages": messages, "shapes": {}}


def test_today_can_be_released_beside_every_kept_release() -> None:
    found = tool.settled(tool.findings(tool.releases(), tool.today()), tool.accepted())
    assert [finding for finding in found if not finding.allowed] == []
    assert len(tool.releases()["0.1.0"]["messages"]) > 80


def test_a_message_that_is_gone_is_refused_unless_an_upcaster_leads_on_and_nobody_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {"0.1.0": _release(**{EVENT: RELEASED})}
    (gone,) = tool.findings(kept, _release())
    assert gone.message == EVENT and "upcaster from version 1" in gone.remedy
    upcasters = Upcasters()
    upcasters.register("slipway.inventory.rack.updated", 1)(dict)
    assert tool.findings(kept, _release(), upcasters) == []
    planning = Consumer(message=EVENT, who="planning", until="2027-06-30")
    monkeypatch.setattr(tool, "outside", lambda: [planning])
    (read,) = tool.findings(kept, _release(), upcasters)
    assert "planning still reads it" in read.what


def test_the_remedy_of_a_refused_change_is_the_next_version_beside_it() -> None:
    kept = {"0.1.0": _release(**{EVENT: RELEASED})}
    (found,) = tool.findings(kept, _release(**{EVENT: _schema(id=(int, ...))}))
    assert "declare version 2 beside it" in found.remedy and not found.allowed


def test_events_are_compared_with_all_releases_and_commands_with_the_last() -> None:
    old, new = _schema(id=(int, ...)), RELEASED
    kept = {"0.1.0": _release(**{EVENT: old, COMMAND: old}), "0.2.0": _release(**{EVENT: new, COMMAND: new})}
    found = tool.findings(kept, _release(**{EVENT: new, COMMAND: new}))
    assert [(finding.release, finding.message) for finding in found] == [("0.1.0", EVENT)]


def test_an_accepted_change_needs_a_reason_and_an_exception_that_nothing_needs_is_refused(tmp_path: Path) -> None:
    kept = {"0.1.0": _release(**{EVENT: RELEASED})}
    found = tool.findings(kept, _release(**{EVENT: _schema(id=(int, ...))}))
    reason = tool.Accepted(EVENT, "id", "nobody has sent one")
    (allowed,) = tool.settled(found, [reason])
    assert allowed.allowed and "nobody has sent one" in allowed.remedy
    (stale,) = tool.settled([], [reason])
    assert not stale.allowed and "Remove the entry" in stale.remedy
    (tmp_path / tool.FOLDER).mkdir(parents=True)
    (tmp_path / tool.FOLDER / "accepted.yaml").write_text("accepted: [{message: x, fields: [y]}]")
    with pytest.raises(ValueError, match="needs message, fields and why"):
        tool.accepted(tmp_path)


def test_a_release_is_kept_once_and_only_forward(tmp_path: Path) -> None:
    kept = tool.keep(tmp_path, "1.2.0")
    assert tool.releases(tmp_path) == {"1.2.0": tool.today()} and kept.name == "1.2.0.json"
    for version, words in (("1.2.0", "not newer"), ("1.1.9", "not newer"), ("next", "no version")):
        with pytest.raises(ValueError, match=words):
            tool.keep(tmp_path, version)
    assert [*tool.releases(tmp_path)] == ["1.2.0"]
    tool.keep(tmp_path, "1.10.0")
    assert [*tool.releases(tmp_path)] == ["1.2.0", "1.10.0"]
