"""Unknown BMCs: found inside the ranges only, asked without signing in, each within its limit, a few at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from libs.contracts.discovery import BmcObserved
from libs.contracts.message import Message
from services.satellite.adapters.redfish_scan import RedfishScan, ScanTwin
from services.satellite.bmc_finder import BmcFinder, BmcScan, NotRedfish, ServiceRoot
from services.satellite.dhcp import Lease, LeaseState, Reservation
from services.satellite.errors import Refusal

NOW = datetime(2026, 6, 10, 19, tzinfo=UTC)
ROOT = ServiceRoot(vendor="Dell", product="iDRAC", redfish_version="1.20.0")


class Told(list[BmcObserved]):
    async def say(self, message: Message) -> None:
        assert isinstance(message, BmcObserved)
        self.append(message)


def finder(scan: BmcScan, told: Told, **limits: float) -> BmcFinder:
    settings = {"per_second": 10_000.0, "host_seconds": 5.0, **limits}
    return BmcFinder("fra1", scan, ["10.20.1.0/28", "10.20.2.0/28"], told.say, **settings)  # type: ignore[arg-type]


async def test_a_scan_tells_each_bmc_that_answers_and_nothing_else() -> None:
    told = Told()
    done = await finder(ScanTwin({"10.20.1.3": ROOT, "10.20.2.9": ROOT, "10.99.0.1": ROOT}), told).scan(())
    assert (done.addresses, done.found) == (28, 2)
    assert {(seen.address, seen.via, seen.vendor) for seen in told} == {
        ("10.20.1.3", "scan", "Dell"),
        ("10.20.2.9", "scan", "Dell"),
    }


@pytest.mark.parametrize(
    ("networks", "code"),
    [
        (("10.20.1.0/24",), "network_not_allowed"),
        (("0.0.0.0/0",), "network_not_allowed"),
        (("10.99.0.1/32",), "network_not_allowed"),
        (("10.20.1.1/28",), "network_invalid"),
        (("ten",), "network_invalid"),
    ],
)
async def test_nothing_outside_the_ranges_is_ever_asked(networks: tuple[str, ...], code: str) -> None:
    told = Told()
    with pytest.raises(Refusal) as caught:
        await finder(ScanTwin({"10.99.0.1": ROOT}), told).scan(networks)
    assert caught.value.code == code and caught.value.next_step and not told


async def test_a_site_without_ranges_scans_nothing_and_a_large_network_is_asked_for_in_parts() -> None:
    nobody = BmcFinder("fra1", ScanTwin({}), [], Told().say)
    with pytest.raises(Refusal, match="no BMC ranges"):
        await nobody.scan(())
    with pytest.raises(Refusal, match="too many"):
        await BmcFinder("fra1", ScanTwin({}), ["10.0.0.0/8"], Told().say).scan(())


class Slow:
    """Never answers at an address that ends with .1; counts how many are asked at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def service_root(self, address: str) -> ServiceRoot | None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(3600 if address.endswith(".1") else 0.001)
        finally:
            self.now -= 1
        if address.endswith(".2"):
            raise NotRedfish("it answers /redfish/v1/ with HTTP 404")
        return ROOT if address.endswith(".3") else None


async def test_a_host_that_hangs_costs_its_own_limit_and_a_few_are_asked_at_once() -> None:
    slow, told = Slow(), Told()
    found = BmcFinder("fra1", slow, ["10.20.1.0/26"], told.say, host_seconds=0.2, per_second=10_000, at_once=4)
    done = await found.scan(())
    assert done.found == 1 and slow.most == 4 and done.seconds < 5


async def test_no_more_are_asked_a_second_than_allowed() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await BmcFinder("fra1", ScanTwin({}), ["10.20.1.0/27"], Told().say, per_second=100).scan(())
    assert loop.time() - started >= 29 / 100


def lease(port: str, address: str, state: LeaseState = LeaseState.ACTIVE) -> Lease:
    return Lease(port, address, state, NOW + timedelta(hours=1), "bmc-x")


async def test_a_stranger_with_a_lease_in_a_range_is_told_once_with_its_address_even_when_it_is_silent() -> None:
    told = Told()
    found = finder(ScanTwin({"10.20.1.3": ROOT}), told)
    leases = [
        lease("94:6d:ae:00:00:01", "10.20.1.3"),
        lease("94:6d:ae:00:00:02", "10.20.1.4"),
        lease("94:6d:ae:00:00:03", "10.20.1.5"),
        lease("94:6d:ae:00:00:04", "10.20.9.9"),
        lease("94:6d:ae:00:00:05", "10.20.1.6", LeaseState.DECLINED),
    ]
    ours = [Reservation("94:6d:ae:00:00:03", "10.20.1.5", "gpu-3", "m-3")]
    for _ in range(2):
        await found.look_at_leases(leases, ours, NOW)
    assert [(s.hw_address, s.redfish, s.problem) for s in sorted(told, key=lambda s: s.address)] == [
        ("94:6d:ae:00:00:01", True, ""),
        ("94:6d:ae:00:00:02", False, "nothing answers"),
    ]


# -- a host that lies -------------------------------------------------------------------------------

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def host(answer: Answer, requests: list[bytes]) -> AsyncIterator[RedfishScan]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            await answer(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield RedfishScan(lambda address: f"http://{address}:{port}")
    finally:
        server.close()


def says(status: str, body: bytes, *headers: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return answer


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(b" " * 8192)
        await writer.drain()


async def test_the_service_root_is_read_without_any_credential() -> None:
    requests: list[bytes] = []
    body = {
        "RedfishVersion": "1.20.0",
        "UUID": "4C4C4544-0048-4E10-804E-D9C04F353934",
        "Vendor": "Dell",
        "Product": None,
    }
    async with host(says("200 OK", json.dumps(body).encode()), requests) as scan:
        root = await scan.service_root("127.0.0.1")
    assert root == ServiceRoot("4c4c4544-0048-4e10-804e-d9c04f353934", "Dell", "", "1.20.0")
    assert b"authorization" not in requests[0].lower() and b"cookie" not in requests[0].lower()


async def test_a_root_behind_a_sign_in_is_a_bmc_and_an_older_one_names_its_maker_by_extension() -> None:
    async with host(says("401 Unauthorized", b""), []) as scan:
        assert await scan.service_root("127.0.0.1") == ServiceRoot()
    old = {"RedfishVersion": "1.0.1", "UUID": "ffffffff-ffff-ffff-ffff-ffffffffffff", "Oem": {"Supermicro": {}}}
    async with host(says("200 OK", json.dumps(old).encode()), []) as scan:
        assert await scan.service_root("127.0.0.1") == ServiceRoot("", "Supermicro", "", "1.0.1")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says("404 Not Found", b"{}"), "HTTP 404"),
        (says("302 Found", b"", "Location: http://127.0.0.1:1/"), "HTTP 302"),
        (says("200 OK", b"<html>"), "no JSON"),
        (says("200 OK", b"[" * 30_000), "no JSON"),
        (says("200 OK", b'{"hello": 1}'), "no service root"),
        (says("200 OK", b"[1]"), "no service root"),
        (endless, "more than 64 KiB"),
    ],
    ids=["404", "redirect", "html", "deep", "other json", "list", "endless"],
)
async def test_what_is_no_bmc_is_named_and_costs_little(answer: Answer, words: str) -> None:
    async with host(answer, []) as scan:
        with pytest.raises(NotRedfish, match=words):
            await asyncio.wait_for(scan.service_root("127.0.0.1"), 10)


async def test_nobody_at_an_address_is_no_error() -> None:
    assert await RedfishScan(lambda address: f"http://{address}:1").service_root("127.0.0.1") is None
