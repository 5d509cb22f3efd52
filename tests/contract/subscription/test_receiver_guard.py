"""Where webhooks may go, how long they wait and how much they read, on a real socket."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest

from services.subscription.adapters.receiver import MAX_ANSWER_BYTES, HttpReceiver, permitted
from tests.contract.subscription.receiver import receiving

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1",
    ],
)  # fmt: skip
def test_what_is_not_public_is_not_permitted_unless_allowed(address: str) -> None:
    assert not permitted(ipaddress.ip_address(address), ())


def test_public_addresses_and_allowed_networks_are_permitted() -> None:
    assert permitted(ipaddress.ip_address("93.184.216.34"), ())
    assert permitted(ipaddress.ip_address("2606:2800:220:1::1"), ())
    assert permitted(ipaddress.ip_address("10.1.2.3"), (ipaddress.ip_network("10.1.0.0/16"),))


async def test_a_name_that_leads_to_a_private_address_is_not_followed() -> None:
    with receiving() as receiver:
        http = HttpReceiver(5.0, ())
        outcome = await http.post(receiver.url.replace("127.0.0.1", "localhost"), {}, b"{}")
        await http.close()
    assert outcome.status is None
    assert "not a public address" in outcome.error
    assert receiver.tried == []


async def test_a_redirect_is_a_failure_and_is_not_followed() -> None:
    with receiving() as receiver, receiving() as elsewhere:
        receiver.answer = lambda event: (307, {"Location": elsewhere.url})
        http = HttpReceiver(5.0, LOOPBACK)
        outcome = await http.post(receiver.url, {}, b"{}")
        await http.close()
    assert (outcome.ok, outcome.status) == (False, 307)
    assert elsewhere.tried == []


async def test_a_receiver_asks_for_time_and_is_given_it() -> None:
    with receiving() as receiver:
        receiver.answer = lambda event: (429, {"Retry-After": "120"})
        http = HttpReceiver(5.0, LOOPBACK)
        outcome = await http.post(receiver.url, {}, b"{}")
        await http.close()
    assert outcome.retry_after == 120.0


async def _answering(text: bytes, *, forever: bool) -> tuple[asyncio.Server, str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            writer.write(text)
            while forever:
                writer.write(b"x" * 65536)
                await writer.drain()
                await asyncio.sleep(0)
            await asyncio.sleep(60)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_an_answer_without_end_is_read_for_a_little_only() -> None:
    server, url = await _answering(b"HTTP/1.1 500 No\r\n\r\n", forever=True)
    http = HttpReceiver(20.0, LOOPBACK)
    outcome = await asyncio.wait_for(http.post(url, {}, b"{}"), 20)
    assert outcome.status == 500
    assert len(outcome.error) < MAX_ANSWER_BYTES
    await http.close()
    server.close()


@pytest.mark.parametrize("text", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
async def test_a_receiver_that_stops_in_the_middle_is_a_failure_within_the_limit(text: bytes) -> None:
    server, url = await _answering(text, forever=False)
    http = HttpReceiver(0.5, LOOPBACK)
    outcome = await asyncio.wait_for(http.post(url, {}, b"{}"), 20)
    assert not outcome.ok
    assert "0.5 s" in outcome.error
    await http.close()
    server.close()


async def test_nobody_there_is_a_failure_with_its_reason() -> None:
    with receiving() as receiver:
        url = receiver.url
    http = HttpReceiver(5.0, LOOPBACK)
    outcome = await http.post(url, {}, b"{}")
    await http.close()
    assert outcome.status is None
    assert "ConnectError" in outcome.error
