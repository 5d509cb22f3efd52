"""A message's place in its stream, from its reply subject."""

from __future__ import annotations

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NotJSMessageError

from libs.bus.reading import place


def message(reply: str) -> Msg:
    return Msg(_client=Client(), subject="evt.fra1.-.inventory.machine.updated.v1", reply=reply)


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.EVT_inventory.reader.1.700100.42.1764590400000000000.9",
        "$JS.ACK.hub.HASH.EVT_inventory.reader.1.700100.42.1764590400000000000.9",
        "$JS.ACK._.HASH.EVT_inventory.reader.1.700100.42.1764590400000000000.9.token",
    ],
    ids=["without-domain", "with-domain", "with-token"],
)
def test_the_place_is_what_the_client_says_it_is(reply: str) -> None:
    assert place(message(reply)) == message(reply).metadata.sequence.stream == 700_100


@pytest.mark.parametrize("reply", ["", "_INBOX.reader.1", "$JS.ACK.EVT_inventory"], ids=["none", "inbox", "cut"])
def test_a_message_of_no_stream_has_no_place(reply: str) -> None:
    with pytest.raises(NotJSMessageError):
        place(message(reply))
