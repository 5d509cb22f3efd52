"""Messages survive the text that hardware and people put into them, and nonsense is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.envelope import BadMessage, Envelope, decode, now_utc
from libs.contracts.ids import (
    derived_uuid,
    is_prefixed,
    is_slug,
    is_uuid,
    new_id,
    new_operation_id,
    new_uuid,
    operation_owner,
)
from libs.contracts.text import clean, display_name

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(alphabet=st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def envelope(data: dict[str, object]) -> Envelope:
    return Envelope(id="1", source="/slipway/test", type="t", time=now_utc(), subject="s", correlationid="c", data=data)


def test_nul_goes_and_a_lone_surrogate_is_replaced_but_literal_text_stays() -> None:
    read = decode(envelope({"serial": "S000\x00\x00", "console": "\ud83d cut", "note": "\\u0000 stays"}).encode())
    assert read.data == {"serial": "S000", "console": "\ufffd cut", "note": "\\u0000 stays"}


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_whatever_json_holds_goes_through_the_bus_cleaned(data: dict[str, object]) -> None:
    assert decode(envelope(data).encode()).data == clean(data)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "not JSON"),
        (b"None", "not JSON"),
        (b"[]", "envelope field"),
        (b'{"id": null}', "envelope field id"),
        (b'{"id": "1", "sequence": "12"}', "envelope field"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_what_is_no_envelope_is_refused_naming_what_is_wrong(payload: bytes, words: str) -> None:
    with pytest.raises(BadMessage, match=words):
        decode(payload)


def test_ids_name_their_owner_and_keep_their_form() -> None:
    operation = new_operation_id("provisioning")
    assert operation_owner(operation) == "provisioning"
    assert operation_owner("op-xyz-" + "0" * 32) is None and operation_owner("op-prv-1") is None
    assert is_prefixed(new_id("clu"), "clu") and not is_prefixed("clu-../..", "clu")
    assert is_uuid(new_uuid()) and not is_uuid("1") and derived_uuid("a", "b") != derived_uuid("ab", "")


@pytest.mark.parametrize("bad", ["", "-a", "a-", "A", "a.b", "a" * 64, "a*", "ä", "a\n"])
def test_what_could_break_a_subject_is_no_slug(bad: str) -> None:
    assert not is_slug(bad)


@pytest.mark.parametrize("bad", ["", "  ", "a\u202eb", "zero\u200bwidth", "tab\tbed", "\x00", "x" * 101])
def test_a_name_that_would_mislead_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        display_name(bad)


def test_a_name_is_kept_in_one_normal_form() -> None:
    assert display_name(" Zu\u0308rich ") == "Zürich"
