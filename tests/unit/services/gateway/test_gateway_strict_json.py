"""Strict JSON: what is read is what was written; anything else is refused, never a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.strict_json import BadJson, BadText, parse
from services.gateway.visible_text import unseen_character

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def texts(value: Any) -> Iterator[str]:
    """Every string and key in `value`."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from texts(item)
        case dict():
            yield from value
            yield from texts(list(value.values()))


@given(_JSON)
def test_json_is_read_as_it_was_written_or_refused_for_its_text(value: Any) -> None:
    try:
        assert parse(json.dumps(value).encode()) == value
    except BadText:
        assert any(unseen_character(text) for text in texts(value))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_but_never_crash(payload: bytes) -> None:
    try:
        parse(payload)
    except (BadJson, BadText):
        pass
