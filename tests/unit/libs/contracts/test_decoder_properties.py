"""Whatever bytes come, the decoder names what is wrong or gives a message that everything behind it can carry."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from libs.contracts.envelope import BadMessage, Envelope, decode, now_utc

GOOD = Envelope(
    id="1",
    source="/slipway/test",
    type="slipway.inventory.rack.updated",
    time=now_utc(),
    subject="s",
    correlationid="c",
    sequence="0" * 20,
    deadline=now_utc(),
    data={"rack": {"id": "r", "name": "ä\ud83d\x00", "n": [1, 2.5, None, True]}},
).encode()

# Any JSON that another language's encoder may write, also what ours refuses: huge numbers, lone surrogates, NUL, NaN.
ANY_TEXT = st.text(alphabet=st.characters(codec=None), max_size=8)
ANY_NUMBER = st.integers() | st.floats() | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**400])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | ANY_NUMBER | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def carried(payload: bytes) -> None:
    """Decode; what is let through must be what comes out at the next hop, and hold nothing that a database refuses."""
    try:
        read = decode(payload)
    except BadMessage as error:
        assert str(error)
        return
    again = read.encode()
    assert decode(again) == read
    assert b"\\u0000" not in again.replace(b"\\\\", b"")
    again.decode("utf-8")


@given(st.binary(max_size=200))
def test_any_bytes(payload: bytes) -> None:
    carried(payload)


@settings(max_examples=300)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, len(GOOD)), st.binary(max_size=6))
def test_a_good_message_with_a_piece_cut_out_or_replaced(start: int, end: int, between: bytes) -> None:
    carried(GOOD[:start] + between + GOOD[end:])


@settings(max_examples=300)
@given(name=st.sampled_from([*json.loads(GOOD), "besideversion", "unknown"]), value=ANY_JSON, ascii_only=st.booleans())
@example(name="data", value={"a": "\ud800", "n": 10**400}, ascii_only=True)
@example(name="data", value={"\ud800": 2**64}, ascii_only=True)
@example(name="data", value={"a\x00": 1, "a": 2}, ascii_only=True)
@example(name="data", value={"a": "\ud800", "n": float("1e308") * 10}, ascii_only=True)
def test_a_good_message_with_any_field_replaced_by_any_json(name: str, value: Any, ascii_only: bool) -> None:
    text = json.dumps({**json.loads(GOOD), name: value}, ensure_ascii=ascii_only)
    carried(text.encode("utf-8", errors="surrogatepass"))


def test_nesting_of_any_depth_is_refused_or_carried() -> None:
    with pytest.raises(BadMessage, match="nested deeper than 100 levels"):
        decode(GOOD.replace(b'"data":{', b'"data":{"deep":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b","))
    for depth in (10, 100, 500, 1000, 100_000):
        carried(GOOD.replace(b'"data":{', b'"data":{"deep":' + b"[" * depth + b"]" * depth + b","))
        carried(GOOD.replace(b'"data":{', b'"data":{"s":"\\ud800","deep":' + b"[" * depth + b"]" * depth + b","))


@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1E+999", "9" * 5000, f"-{2**63 + 1}", str(2**64), "NaN", "Infinity"]
)
@pytest.mark.parametrize("text", ["plain", "\\ud800"])
def test_a_number_that_no_reader_holds_is_refused_or_carried(number: str, text: str) -> None:
    carried(GOOD.replace(b'"data":{', f'"data":{{"text":"{text}","number":{number},'.encode()))


def test_the_good_message_is_let_through() -> None:
    assert orjson.loads(GOOD)["data"]["rack"]["name"] == "ä\ufffd"
    assert decode(GOOD).data["rack"]["n"] == [1, 2.5, None, True]
