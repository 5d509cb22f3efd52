"""Older versions are read as the newest; a chain with a hole is noticed before the first message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

import libs.contracts.all  # noqa: F401  registers every message
from libs.contracts.message import Kind, Message, MessageType, registry
from libs.contracts.upcasters import UPCASTERS, BrokenChain, Data, Upcasters
from tools.check_compatibility import releases, split_name

TYPE = "slipway.inventory.lamp.switched"


class LampV1(Message):
    message_type = MessageType(Kind.EVENT, "inventory", "lamp", "switched", 1)
    name: str
    on: bool


class LampV2(Message):
    message_type = MessageType(Kind.EVENT, "inventory", "lamp", "switched", 2)
    name: str
    state: str


class LampV3(Message):
    message_type = MessageType(Kind.EVENT, "inventory", "lamp", "switched", 3)
    lamp: str
    state: str


LAMPS = (LampV1, LampV2, LampV3)


def one_to_two(data: Data) -> Data:
    return {"name": data["name"], "state": "on" if data["on"] else "off"}


def two_to_three(data: Data) -> Data:
    return {"lamp": data["name"], "state": data["state"]}


def lamps() -> Upcasters:
    made = Upcasters()
    made.register(TYPE, 1)(one_to_two)
    made.register(TYPE, 2)(two_to_three)
    return made


def test_an_old_message_is_brought_to_the_newest_version_step_by_step_and_itself_left_alone() -> None:
    sent = {"name": "l", "on": True}
    assert lamps().upcast(TYPE, 1, sent) == (3, {"lamp": "l", "state": "on"})
    assert lamps().upcast(TYPE, 3, {"lamp": "l"}) == (3, {"lamp": "l"})
    assert sent == {"name": "l", "on": True}


def test_a_whole_chain_passes() -> None:
    lamps().check(LAMPS, [(TYPE, 1), (TYPE, 2)])


def test_a_missing_step_is_named() -> None:
    made = Upcasters()
    made.register(TYPE, 1)(one_to_two)
    with pytest.raises(BrokenChain, match="version 1 ends at version 2, and the newest is 3"):
        made.check(LAMPS)


def test_a_chain_that_ends_where_no_model_is_is_refused() -> None:
    with pytest.raises(BrokenChain, match="ends at version 3, and the newest is 2"):
        lamps().check((LampV1, LampV2))


def test_a_released_version_whose_model_is_gone_still_needs_its_way() -> None:
    lamps().check((LampV3,), [(TYPE, 1)])
    with pytest.raises(BrokenChain, match="version 1 ends at version 1, and the newest is 3"):
        Upcasters().check((LampV3,), [(TYPE, 1)])


def test_a_second_upcaster_for_one_step_is_refused() -> None:
    with pytest.raises(TypeError, match="two upcasters"):
        lamps().register(TYPE, 1)(one_to_two)


def test_an_upcaster_that_makes_what_the_newest_model_refuses_is_found_by_the_example() -> None:
    models: dict[tuple[str, int], type[Message]] = {(TYPE, each.message_type.version): each for each in LAMPS}
    lamps().check_examples([(TYPE, 1, {"name": "l", "on": True})], models)
    broken = Upcasters()
    broken.register(TYPE, 1)(one_to_two)
    broken.register(TYPE, 2)(lambda data: {"state": data["state"]})
    with pytest.raises(ValidationError, match="lamp"):
        broken.check_examples([(TYPE, 1, {"name": "l", "on": True})], models)


def test_every_version_ever_released_is_read_by_todays_code(repository: Path) -> None:
    released = [split_name(name) for release in releases().values() for name in release["messages"]]
    UPCASTERS.check(registry().values(), released)
    examples = []
    for type_, version in released:
        file = repository / f"schemas/examples/{type_}.v{version}.json"
        assert file.exists(), f"the golden example of {type_} version {version} is gone; take it back from the release"
        examples.append((type_, version, json.loads(file.read_text())["data"]))
    assert len(examples) > 80
    UPCASTERS.check_examples(examples, registry())
