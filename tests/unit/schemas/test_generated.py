"""What is generated is up to date, and messages that were sent once can still be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.contracts.envelope import decode
from libs.contracts.message import Message, json_data, message_class, registry
from libs.contracts.upcasters import Upcasters
from tools.generate import differing, wanted
from tools.generation import consumers
from tools.generation.messages import all_messages, example_path, schema_path, subject_pattern

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return wanted(ROOT)


def _named(message: type[Message]) -> str:
    return f"{message.message_type.type}.v{message.message_type.version}"


def test_every_generated_file_is_as_the_code_makes_it_today(generated: dict[str, str]) -> None:
    assert differing(ROOT, generated) == [], "run `python -m tools.generate`"


def test_generating_twice_gives_the_same_bytes(generated: dict[str, str]) -> None:
    assert wanted(ROOT) == generated


def test_a_file_that_was_changed_by_hand_is_reported(tmp_path: Path, generated: dict[str, str]) -> None:
    for path, text in generated.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "schemas/index.yaml").write_text("messages: []\n")
    (tmp_path / "schemas/events/slipway.nobody.says.this.v1.json").write_text("{}")
    assert differing(tmp_path, generated) == ["schemas/events/slipway.nobody.says.this.v1.json", "schemas/index.yaml"]


def test_schema_and_example_of_a_released_message_stay_when_its_model_goes(tmp_path: Path) -> None:
    gone = [f"schemas/{folder}/slipway.inventory.lamp.switched.v1.json" for folder in ("events", "examples")]
    release = {"messages": {"slipway.inventory.lamp.switched.v1": {}}, "shapes": {}}
    for path, text in {**dict.fromkeys(gone, "{}"), "schemas/released/0.0.1.json": json.dumps(release)}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert set(gone).isdisjoint(differing(tmp_path, wanted(tmp_path)))


@pytest.mark.parametrize("message", all_messages(), ids=_named)
def test_an_example_that_was_sent_once_is_still_read(message: type[Message]) -> None:
    kind = message.message_type
    envelope = decode((ROOT / example_path(kind)).read_bytes())
    assert (envelope.type, envelope.dataschema) == (kind.type, kind.dataschema)
    model = message_class(kind.type, kind.version)
    assert model is message
    read = json_data(message.model_validate(envelope.data))
    assert _within(envelope.data, read), "a field of the example was dropped or changed on the way through the model"


def _within(sent: Any, read: Any) -> bool:
    """Whether everything that was sent is in what was read; new fields with defaults may be there, too."""
    if isinstance(sent, dict) and isinstance(read, dict):
        return all(name in read and _within(value, read[name]) for name, value in sent.items())
    if isinstance(sent, list) and isinstance(read, list):
        return len(sent) == len(read) and all(_within(one, other) for one, other in zip(sent, read, strict=True))
    return bool(sent == read)


@pytest.mark.parametrize("message", all_messages(), ids=_named)
def test_the_schema_that_a_message_names_exists(message: type[Message]) -> None:
    schema = json.loads((ROOT / schema_path(message.message_type)).read_text())
    assert schema["$id"] == message.message_type.dataschema
    assert set(schema["properties"]) == set(message.model_fields)


def test_the_index_says_who_reads_what() -> None:
    entries = {
        f"{e['type']}.v{e['version']}": e for e in yaml.safe_load((ROOT / "schemas/index.yaml").read_text())["messages"]
    }
    readers = {name: entry["consumers"] for name, entry in entries.items()}
    assert readers["slipway.command.reservation.hold_machines.v1"] == ["reservation"]
    assert readers["slipway.site.ironic.deploy.v1"] == ["satellite"]
    assert {"reservation", "provisioning", "audit"} <= set(readers["slipway.inventory.rack.updated.v1"])
    assert readers["slipway.observation.runner.log.v1"] == ["provisioning"]
    assert readers["slipway.observation.ironic.node.v1"] == ["inventory"]


def test_who_reads_an_older_version_is_whoever_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = message_class("slipway.inventory.rack.updated", 1).message_type  # type: ignore[union-attr]
    planning = consumers.Consumer(message=f"{kind.type}.v1", who="planning", until="2027-06-30")
    superseded = Upcasters()
    superseded.register(kind.type, 1)(dict)
    monkeypatch.setattr(consumers, "UPCASTERS", superseded)
    assert consumers.consumers(kind, [planning]) == ["planning (until 2027-06-30)"]
    assert consumers.consumers(kind, []) == []


def test_an_entry_of_the_consumers_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "consumers.yaml"
    file.write_text("consumers: [{message: slipway.x.v1, who: somebody, until: someday}]")
    with pytest.raises(ValueError, match="until"):
        consumers.outside(file)


def test_no_two_messages_share_a_subject() -> None:
    patterns = [subject_pattern(message.message_type) for message in all_messages()]
    assert len(set(patterns)) == len(patterns) == len(registry())


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    path = ROOT / "schemas/asyncapi/asyncapi.yaml"
    document = yaml.safe_load(path.read_text())
    for reference in set(_references(document)):
        file, _, place = reference.partition("#")
        if file:
            assert (path.parent / file).exists(), reference
            continue
        found = document
        for token in place.strip("/").split("/"):
            found = found[token]


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["$ref"]] if "$ref" in value else [r for item in value.values() for r in _references(item)]
    if isinstance(value, list):
        return [reference for item in value for reference in _references(item)]
    return []
