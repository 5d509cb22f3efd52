"""One contract for every DHCP server: the twin, a real Kea, and dnsmasq's files as far as they are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.lab.interpreters import VAR
from deploy.lab.kea import KeaLab
from libs.testing.servers import free_port
from services.satellite.adapters.dhcp_twin import DhcpTwin
from services.satellite.adapters.dnsmasq import DnsmasqDhcp
from services.satellite.adapters.kea import KeaDhcp
from services.satellite.adapters.kea_control import KeaControl, KeaRefused
from services.satellite.dhcp import Dhcp, LeaseState, Reservation
from services.satellite.errors import Failure, Refusal

PROVISIONING, MANAGEMENT = "10.20.0.0/24", "10.21.0.0/24"
PORTS = ("94:6d:ae:00:00:01", "94:6d:ae:00:00:02", "94:6d:ae:00:00:03")
FOREIGN = {"hw-address": "b8:3f:d2:00:00:09", "ip-address": "10.20.0.9", "hostname": "ntp"}


@dataclass
class ServerUnderTest:
    dhcp: Dhcp
    give: Callable[[str, str], Awaitable[None]]
    decline: Callable[[str, str], Awaitable[None]]


def wanted(port: str, address: str, name: str = "gpu-1") -> Reservation:
    return Reservation(port, address, name)


async def of(dhcp: Dhcp, machine_id: str) -> set[tuple[str, str]]:
    return {(r.hw_address, r.ip_address) for r in await dhcp.reservations() if r.machine_id == machine_id}


# -- the servers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kea(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeaLab]:
    subnets = [
        {"id": 1, "subnet": PROVISIONING, "pools": [{"pool": "10.20.0.100-10.20.0.200"}], "reservations": [FOREIGN]},
        {"id": 2, "subnet": MANAGEMENT, "option-data": [{"name": "routers", "data": "10.21.0.1"}]},
    ]
    lab = KeaLab(tmp_path_factory.mktemp("k"), free_port(), subnets, software=VAR)
    lab.install()
    lab.start()
    yield lab
    lab.stop()


async def ask(lab: KeaLab, command: str, **arguments: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"command": command, "service": ["dhcp4"], **({"arguments": arguments} if arguments else {})}
        answer: dict[str, Any] = (await client.post(lab.url, json=body)).json()[0]
    return answer


@pytest.fixture(params=["twin", pytest.param("kea", marks=pytest.mark.lab)])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerUnderTest]:
    if request.param == "twin":
        twin = DhcpTwin((PROVISIONING, MANAGEMENT))

        async def given(port: str, address: str) -> None:
            twin.give(port, address)

        async def declined(port: str, address: str) -> None:
            twin.decline(port, address)

        yield ServerUnderTest(twin, given, declined)
        return
    lab: KeaLab = request.getfixturevalue("kea")

    async def give(port: str, address: str, state: int = 0) -> None:
        lease = {"ip-address": address, "hw-address": port, "subnet-id": 1, "state": state}
        answer = await ask(lab, "lease4-add", **lease)
        assert answer["result"] == 0, answer

    control = KeaControl(lab.url)
    dhcp = KeaDhcp(control, tmp_path / "kept")
    yield ServerUnderTest(dhcp, give, lambda port, address: give(port, address, 1))
    for machine_id in {r.machine_id for r in await dhcp.reservations() if r.machine_id}:
        await dhcp.reserve(machine_id, "", ())
    await ask(lab, "lease4-wipe", **{"subnet-id": 1})
    await control.aclose()


# -- the contract -----------------------------------------------------------------------------------


async def test_a_machine_gets_its_reservations_and_the_same_order_twice_changes_nothing(
    server: ServerUnderTest,
) -> None:
    order = (wanted(PORTS[0], "10.20.0.11"), wanted(PORTS[1], "10.21.0.11"))
    first = await server.dhcp.reserve("m-1", "gpu-1", order)
    again = await server.dhcp.reserve("m-1", "gpu-1", order)
    assert {(r.hw_address, r.ip_address) for r in first.applied} == {(r.hw_address, r.ip_address) for r in order}
    assert again == first and not first.refused and first.lasting
    assert await of(server.dhcp, "m-1") == {(PORTS[0], "10.20.0.11"), (PORTS[1], "10.21.0.11")}


async def test_another_address_replaces_the_one_before_and_nothing_takes_all_away(server: ServerUnderTest) -> None:
    await server.dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11")])
    await server.dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.12")])
    assert await of(server.dhcp, "m-1") == {(PORTS[0], "10.20.0.12")}
    await server.dhcp.reserve("m-1", "gpu-1", [])
    assert await of(server.dhcp, "m-1") == set()


async def test_an_address_or_port_that_another_machine_has_is_refused_and_the_rest_goes_in(
    server: ServerUnderTest,
) -> None:
    await server.dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11")])
    order = (wanted(PORTS[1], "10.20.0.11"), wanted(PORTS[0].upper(), "10.21.0.12"), wanted(PORTS[2], "10.20.0.13"))
    done = await server.dhcp.reserve(
        "m-2", "gpu-2", [Reservation(w.hw_address.lower(), w.ip_address, "gpu-2") for w in order]
    )
    assert [r.ip_address for r in done.applied] == ["10.20.0.13"]
    assert len(done.refused) == 2 and all("machine gpu-1 (m-1)" in refused.problem for refused in done.refused)
    assert await of(server.dhcp, "m-1") == {(PORTS[0], "10.20.0.11")}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("192.0.2.1", "no subnet"),
        ("10.20.0.0", "network or broadcast"),
        ("10.20.0.255", "network or broadcast"),
        ("ten", "no IPv4 address"),
        ("fe80::1", "no IPv4 address"),
        ("", "no address in IPAM"),
    ],
)
async def test_an_address_that_cant_be_given_is_refused_with_the_reason(
    server: ServerUnderTest, address: str, words: str
) -> None:
    done = await server.dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], address)])
    assert not done.applied and words in done.refused[0].problem


async def test_both_members_of_a_bond_are_known_as_the_machine(server: ServerUnderTest) -> None:
    done = await server.dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11"), wanted(PORTS[1], "10.20.0.11")])
    assert not done.refused
    # This server reserves an address once; the other member is known by name and gets an address from the pool.
    assert await of(server.dhcp, "m-1") == {(PORTS[0], "10.20.0.11"), (PORTS[1], "")}


async def test_an_infiniband_port_is_reserved_by_its_guid(server: ServerUnderTest) -> None:
    guid = "08:c0:eb:03:00:ab:cd:ef"
    done = await server.dhcp.reserve("m-1", "gpu-1", [wanted(guid, "10.20.0.11")])
    assert not done.refused and await of(server.dhcp, "m-1") == {(guid, "10.20.0.11")}


async def test_two_machines_may_change_places(server: ServerUnderTest) -> None:
    await server.dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11")])
    await server.dhcp.reserve("m-2", "gpu-2", [wanted(PORTS[1], "10.20.0.12")])
    await server.dhcp.reserve("m-1", "gpu-1", [])
    await server.dhcp.reserve("m-2", "gpu-2", [wanted(PORTS[1], "10.20.0.11")])
    done = await server.dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.12")])
    assert not done.refused


async def test_leases_are_read_and_a_declined_one_is_no_active_one(server: ServerUnderTest) -> None:
    await server.give(PORTS[0], "10.20.0.101")
    await server.decline(PORTS[1], "10.20.0.102")
    leases = {lease.ip_address: lease for lease in await server.dhcp.leases()}
    assert leases["10.20.0.101"].state is LeaseState.ACTIVE and leases["10.20.0.101"].hw_address == PORTS[0]
    assert leases["10.20.0.102"].state is LeaseState.DECLINED
    assert all(lease.expires_at and lease.expires_at > datetime.now(UTC) for lease in leases.values())


async def test_many_orders_at_once_are_all_answered(server: ServerUnderTest) -> None:
    orders = [
        server.dhcp.reserve(f"m-{n}", f"gpu-{n}", [wanted(f"94:6d:ae:00:01:{n:02x}", f"10.20.0.{n + 20}", f"gpu-{n}")])
        for n in range(40)
    ]
    assert all(len(done.applied) == 1 for done in await asyncio.gather(*orders))
    assert len({r.machine_id for r in await server.dhcp.reservations() if r.machine_id}) == 40


# -- what only Kea can get wrong --------------------------------------------------------------------


class FailingControl(KeaControl):
    """The real Kea; `config-set` fails `failures` times after it has gone through, `config-test` for the name "bad"."""

    failures = 0

    async def test(self, config: dict[str, Any]) -> None:
        await super().test(config)
        if '"hostname": "bad"' in json.dumps(config):
            raise KeaRefused("config-test", "the hostname is bad")

    async def set(self, config: dict[str, Any]) -> None:
        await super().set(config)
        if self.failures:
            self.failures -= 1
            raise Failure("dhcp_unreachable", "Kea's control agent does not answer config-set", "")


@pytest.fixture
async def control(kea: KeaLab) -> AsyncIterator[FailingControl]:
    control = FailingControl(kea.url)
    yield control
    control.failures = 0
    await control.aclose()


@pytest.mark.lab
async def test_a_reservation_of_others_is_never_touched(kea: KeaLab, control: FailingControl, tmp_path: Path) -> None:
    dhcp = KeaDhcp(control, tmp_path / "kept")
    before = [r for r in await dhcp.reservations() if not r.machine_id]
    done = await dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], FOREIGN["ip-address"]), wanted(PORTS[1], "10.20.0.15")])
    assert "reservation that others made" in done.refused[0].problem and len(done.applied) == 1
    same = await dhcp.reserve("m-2", "ntp", [wanted(FOREIGN["hw-address"], FOREIGN["ip-address"])])
    assert not same.refused
    for machine_id in ("m-1", "m-2"):
        await dhcp.reserve(machine_id, "", ())
    assert await dhcp.reservations() == before and before[0].hostname == "ntp"


@pytest.mark.lab
async def test_the_last_good_configuration_is_restored_when_setting_fails(
    kea: KeaLab, control: FailingControl, tmp_path: Path
) -> None:
    dhcp = KeaDhcp(control, tmp_path / "kept")
    before = await control.config()
    control.failures = 1
    with pytest.raises(Failure, match="last good configuration is in force"):
        await dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11")])
    assert await control.config() == before
    kept = tmp_path / "kept" / "kea-last-good.json"
    assert json.loads(kept.read_text()) == before and kept.stat().st_mode & 0o077 == 0


@pytest.mark.lab
async def test_what_kea_objects_to_is_left_out_and_the_others_go_in(
    kea: KeaLab, control: FailingControl, tmp_path: Path
) -> None:
    dhcp = KeaDhcp(control, tmp_path / "kept")
    bad = dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11", "bad")])
    good = dhcp.reserve("m-2", "gpu-2", [wanted(PORTS[1], "10.20.0.12")])
    refused, done = await asyncio.gather(bad, good)
    assert "Kea refuses it" in refused.refused[0].problem and not refused.applied
    assert [r.ip_address for r in done.applied] == ["10.20.0.12"]
    await dhcp.reserve("m-2", "", ())


@pytest.mark.lab
async def test_reservations_outlive_a_restart_and_what_an_older_file_lacks_is_put_back(
    kea: KeaLab, control: FailingControl, tmp_path: Path
) -> None:
    older = kea.configuration.read_text()
    dhcp = KeaDhcp(control, tmp_path / "kept")
    await dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11")])
    kea.stop()
    kea.start()
    assert await of(dhcp, "m-1") == {(PORTS[0], "10.20.0.11")} and await dhcp.put_back() == 0
    kea.stop()
    kea.configuration.write_text(older)
    kea.start()
    assert await of(dhcp, "m-1") == set()
    after_a_restart_of_ours = KeaDhcp(control, tmp_path / "kept")
    assert await after_a_restart_of_ours.put_back() == 1
    assert await of(dhcp, "m-1") == {(PORTS[0], "10.20.0.11")}
    await after_a_restart_of_ours.reserve("m-1", "", ())
    assert await KeaDhcp(control, tmp_path / "kept").put_back() == 0


@pytest.mark.lab
async def test_a_change_by_somebody_else_between_look_and_change_is_not_lost(
    kea: KeaLab, control: FailingControl, tmp_path: Path
) -> None:
    dhcp = KeaDhcp(control, tmp_path / "kept")
    theirs = {"hw-address": "b8:3f:d2:00:00:10", "ip-address": "10.20.0.10"}
    real_test = control.test

    async def meanwhile(config: dict[str, Any]) -> None:
        await real_test(config)
        control.test = real_test  # type: ignore[method-assign]
        changed = await control.config()
        changed["Dhcp4"]["subnet4"][0]["reservations"].append(theirs)
        await control.set(changed)

    control.test = meanwhile  # type: ignore[method-assign]
    await dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11")])
    addresses = {r.ip_address for r in await dhcp.reservations()}
    assert {"10.20.0.10", "10.20.0.11"} <= addresses
    await dhcp.reserve("m-1", "", ())
    restored = await control.config()
    entries = restored["Dhcp4"]["subnet4"][0]["reservations"]
    restored["Dhcp4"]["subnet4"][0]["reservations"] = [e for e in entries if e["ip-address"] != "10.20.0.10"]
    await control.set(restored)


@pytest.mark.lab
async def test_a_server_that_is_down_is_named_and_nothing_hangs(kea: KeaLab, tmp_path: Path) -> None:
    nobody = KeaDhcp(KeaControl(f"http://127.0.0.1:{free_port()}"), tmp_path / "kept")
    with pytest.raises(Failure) as caught:
        await asyncio.wait_for(nobody.reserve("m-1", "gpu-1", [wanted(PORTS[0], "10.20.0.11")]), 10)
    assert caught.value.code == "dhcp_unreachable" and "SLIPWAY_KEA_URL" in caught.value.next_step
    server = kea.processes()[0]
    server.stop()
    try:
        with pytest.raises(Failure) as caught:
            await KeaDhcp(KeaControl(kea.url), tmp_path / "kept").leases()
        assert caught.value.code == "dhcp_unreachable" and "kea-dhcp4" in caught.value.message
    finally:
        server.start()


# -- dnsmasq ----------------------------------------------------------------------------------------

LEASES = """1796132214 94:6d:ae:00:00:01 172.18.0.43 gpu-1 01:94:6d:ae:00:00:01
0 94:6d:ae:00:00:02 172.18.0.44 * *
1796132214 20-80:00:02:08:fe:80:00:00:00:00:00:00:08:c0:eb:03:00:ab:cd:ef 172.18.0.45 * ff:00
duid 00:01:00:01:2c:1f
1796132214 12345 fd00::1 six 00:01
179613
"""
HOSTS = """# made by hand
94:6D:AE:00:00:01,94-6d-ae-00-00-02,set:known,172.18.0.43,gpu-1,24h
id:*,172.18.0.50
"""


async def test_dnsmasq_is_read_and_never_written(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text(LEASES)
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "known").write_text(HOSTS)
    (tmp_path / "hosts" / ".known.swp").write_text("garbage")
    dhcp = DnsmasqDhcp(tmp_path / "leases", tmp_path / "hosts")
    leases = {lease.ip_address: lease for lease in await dhcp.leases()}
    assert {a: lease.hw_address for a, lease in leases.items()} == {
        "172.18.0.43": PORTS[0],
        "172.18.0.44": PORTS[1],
        "172.18.0.45": "08:c0:eb:03:00:ab:cd:ef",
    }
    assert leases["172.18.0.44"].expires_at is None and leases["172.18.0.44"].hostname == ""
    assert await dhcp.reservations() == [Reservation(port, "172.18.0.43", "gpu-1") for port in PORTS[:2]]
    with pytest.raises(Refusal, match="only reads"):
        await dhcp.reserve("m-1", "gpu-1", [wanted(PORTS[0], "172.18.0.43")])
    assert (await dhcp.reserve("m-1", "gpu-1", [])).applied == ()
    with pytest.raises(Failure, match="can't be read"):
        await DnsmasqDhcp(tmp_path / "nothing").leases()
