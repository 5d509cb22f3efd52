"""Headers are read as nats-py reads them."""

from __future__ import annotations

import inspect

from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from libs.runtime.headers import Connection

# Characters that decide something: ends of lines, spaces of every kind, what separates, and what is not ASCII.
SPACES = [b" ", b"\t", b"\x0b", b"\x1c", b"\x85", b"\r\n", b"\r", b"\n"]
PIECES = st.sampled_from([*SPACES, b"Nats-Msg-Id", b":", b": ", b"a", b"=", b"\xff", b"\x00", b"Status", "ü".encode()])


@given(st.lists(PIECES, max_size=24).map(b"".join))
def test_any_bytes_are_read_alike(raw: bytes) -> None:
    assert Connection._parse_header_lines(raw) == Client._parse_header_lines(raw)


def test_an_events_headers() -> None:
    raw = b"Nats-Msg-Id: 7\r\nNats-Expected-Last-Sequence:6\r\n\r\n"
    assert Connection._parse_header_lines(raw) == {"Nats-Msg-Id": "7", "Nats-Expected-Last-Sequence": "6"}


def test_what_is_no_name_is_left_out() -> None:
    raw = b"two words: no\r\nno colon\r\n\xc3\xbc: no\r\nValue: \xc3\xbc:\xff\r\n"
    assert Connection._parse_header_lines(raw) == {"Value": "ü:\N{REPLACEMENT CHARACTER}"}


def test_the_client_uses_it() -> None:
    """It is a private part of nats-py: a new version may have renamed it."""
    assert "_parse_header_lines" in vars(Client)
    assert "self._parse_header_lines(" in inspect.getsource(Client._process_headers)
