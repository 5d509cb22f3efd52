"""How events are kept, and what is said about them in one line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipway.proof import FIRST_DIGEST, chained

import libs.contracts.all  # noqa: F401  (declares every message)
from libs.contracts.envelope import Envelope, decode
from libs.contracts.message import Kind, registry
from services.audit.record import Type, canonical, mentions, type_of
from services.audit.summary import MAX_CHARACTERS, summarize

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def envelope(data: dict[str, Any], subject: str = "m1") -> Envelope:
    return Envelope(
        id="e1",
        source="/slipway/inventory",
        type="slipway.inventory.machine.updated",
        time=NOW,
        subject=subject,
        correlationid="c1",
        data=data,
    )


def test_a_type_is_taken_apart() -> None:
    assert type_of("slipway.inventory.machine.state_changed") == Type("inventory", "machine", "state_changed")
    assert type_of("nonsense") == Type("nonsense", "", "")


def test_an_event_mentions_its_own_entity_and_every_id_and_name_inside_once() -> None:
    data = {
        "cluster": {
            "id": "c1",
            "name": "train",
            "nodes": [{"machine_id": "m7"}, {"machine_id": "m8"}, {"machine_id": "m7"}],
        },
        "reason": "not an id",
        "netbox_id": 7,
        "claim_id": None,
        "blank_id": "",
    }
    assert mentions(envelope(data, "c1")) == ["c1", "train", "m7", "m8"]


def test_the_kept_text_is_the_same_after_a_round_trip() -> None:
    text = canonical(envelope({"b": 1, "a": [1.5, None, "\u00fc"]}))
    assert canonical(decode(text.encode())) == text


def test_a_changed_text_changes_every_digest_after_it() -> None:
    def chain(texts: list[str]) -> list[str]:
        digests = [FIRST_DIGEST]
        for text in texts:
            digests.append(chained(digests[-1], text))
        return digests[1:]

    honest, forged = chain(["a", "b", "c"]), chain(["a", "B", "c"])
    assert honest[0] == forged[0]
    assert all(one != other for one, other in zip(honest[1:], forged[1:], strict=True))


def test_a_state_change_reads_as_one() -> None:
    machine = {"name": "fra1-r1-gpu-04", "failed_step": "enrol", "reason": {"message": "7 of 8 GPUs are present"}}
    data = {"machine": machine, "from_state": "ENROLLING", "to_state": "FAILED"}
    line = summarize("slipway.inventory.machine.state_changed", "m1", data)
    assert line == "fra1-r1-gpu-04: ENROLLING → FAILED at enrol (7 of 8 GPUs are present)"


EVENT_TYPES = sorted(cls.message_type.type for cls in registry().values() if cls.message_type.kind is Kind.EVENT)


@pytest.mark.parametrize("type_", EVENT_TYPES)
def test_every_type_has_a_line_even_when_its_data_is_nonsense(type_: str) -> None:
    nonsense: tuple[dict[str, Any], ...] = (
        {},
        {"machine": None},
        {"operation": {"steps": [1]}},
        {"cluster": []},
        {"run": 7},
    )
    for data in nonsense:
        line = summarize(type_, "x1", data)
        assert "x1" in line and len(line) <= MAX_CHARACTERS


@settings(deadline=None)  # A busy computer is no fault of the code.
@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()))
def test_no_type_or_content_breaks_a_line(type_: str, entity_id: str, data: dict[str, str]) -> None:
    assert len(summarize(type_, entity_id, data)) <= MAX_CHARACTERS
