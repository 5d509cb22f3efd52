"""What BMCs really answer, and what of it is known. Shapes are from vendors' bug reports, with names replaced."""

from __future__ import annotations

import httpx
import pytest

from services.satellite.adapters import redfish_facts
from services.satellite.adapters.redfish import RedfishSystem
from services.satellite.errors import Failure


def gpu(slot: str, state: str | None = "Enabled", health: str | None = "OK", **more: object) -> dict[str, object]:
    return {"Id": slot, "ProcessorType": "GPU", "Model": "H100", "Status": {"State": state, "Health": health}, **more}


def test_an_absent_slot_is_no_gpu_and_an_offline_one_is() -> None:
    entries = redfish_facts.gpu_entries(
        [*(gpu(f"GPU_{n}") for n in range(1, 5)), gpu("GPU_5", "UnavailableOffline", ""), gpu("GPU_8", "Absent", None)],
        [],
    )

    evidence = redfish_facts.gpu_evidence(entries)

    assert [entry["slot"] for entry in evidence["gpus"]] == ["GPU_1", "GPU_2", "GPU_3", "GPU_4", "GPU_5"]  # type: ignore[attr-defined]
    assert evidence["absent"] == ["GPU_8"]


def test_two_views_of_the_same_cards_are_not_added_up() -> None:
    devices = [{"Id": f"GPU_{n}", "Model": "H100", "Status": {"State": "Enabled"}} for n in range(1, 8)]
    entries = redfish_facts.gpu_entries([gpu(f"GPU_{n}") for n in range(1, 5)], devices)

    assert len(redfish_facts.larger_view(entries)) == 7
    assert len(redfish_facts.gpu_evidence(entries)["gpus"]) == 11  # type: ignore[arg-type]


def test_a_network_card_of_a_gpus_maker_is_no_gpu() -> None:
    entries = redfish_facts.gpu_entries([], [{"Id": "NIC.1", "Manufacturer": "NVIDIA", "Model": "ConnectX-7"}])

    assert entries == []


def test_blanks_and_nulls_are_unknown_and_listed() -> None:
    found = redfish_facts.inspection(
        {"Status": {"Health": ""}, "PowerState": None, "MemorySummary": None, "ProcessorSummary": {"Count": "2"}},
        processors=[gpu("GPU_1", "Enabled", "")],
        gpus=redfish_facts.gpu_entries([gpu("GPU_1", "Enabled", "")], []),
        drives=None,
        interfaces=[{"Id": "NIC.1", "MACAddress": ""}, {"Id": "NIC.2", "MACAddress": "02:00:00:00:00:02"}],
        gaps=[],
    )

    assert (found.health, found.power_state, found.memory_gib, found.drives) == ("unknown", "unknown", None, None)
    assert found.cpu_count == 2
    assert found.nic_macs == ("02:00:00:00:00:02",)
    assert found.gpus[0].health == "unknown"
    assert {"health is unknown", "memory_gib is not given", "GPU GPU_1: health is unknown"} <= set(found.gaps)


def test_the_bmcs_own_virtual_card_is_ignored_with_a_hint() -> None:
    macs, gaps = redfish_facts.nic_macs(
        [
            {"Id": "enp4s0f3u1u2c2", "Description": "Host interface over USB", "MACAddress": "F2:00:00:67:1E:CD"},
            {"Id": "bond0", "MACAddress": "02:00:00:FB:90:01"},
            {"Id": "ens1f0", "MACAddress": "02:00:00:fb:90:01"},
        ]
    )

    assert macs == ("02:00:00:fb:90:01",)
    assert "f2:00:00:67:1e:cd" in gaps[0]


@pytest.mark.parametrize(
    ("said", "power"),
    [("On", "on"), ("Off", "off"), ("PoweringOff", "unknown"), ("", "unknown"), (None, "unknown")],
)
def test_only_a_clear_word_about_power_counts(said: object, power: str) -> None:
    assert redfish_facts.power({"PowerState": said}) == power


def test_a_drive_without_a_capacity_is_there_with_an_unknown_size() -> None:
    drives = redfish_facts.drive_evidence([{"Id": "d0", "CapacityBytes": None}])["drives"]

    assert drives == [
        {"id": "d0", "model": "", "serial": "", "capacity_bytes": None, "state": "", "health": ""},
    ]


LICENCE_ERROR = (
    '{"error": {"code": "Base.1.0.GeneralError", "@Message.ExtendedInfo": '
    '[{"Message": "failed, No sufficient LICENSE for user to perform requested operation."}]}}\n{"Id": "1"}'
)


class Bmc:
    """A BMC that gives `answers` in order, the last one for ever."""

    def __init__(self, *answers: httpx.Response) -> None:
        self._answers = list(answers)
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def system(self) -> RedfishSystem:
        found = RedfishSystem("m1", "http://bmc/redfish/v1/Systems/1", "user", "secret-password")
        found._client = httpx.AsyncClient(base_url="http://bmc", transport=httpx.MockTransport(self))
        return found


async def failure(bmc: Bmc, path: str = "/x") -> Failure:
    async with bmc.system() as system:
        with pytest.raises(Failure) as failed:
            await system.collection(path)
    assert "secret-password" not in failed.value.message
    return failed.value


async def test_an_error_document_in_front_of_the_real_one_is_an_invalid_answer() -> None:
    failed = await failure(Bmc(httpx.Response(200, text=LICENCE_ERROR)))

    assert failed.code == "bmc_invalid_answer"
    assert "No sufficient LICENSE" in failed.message


async def test_a_collection_without_members_tells_nothing() -> None:
    failed = await failure(Bmc(httpx.Response(200, json={"Name": "Firmware Inventory Collection"})))

    assert failed.code == "bmc_invalid_answer"
    assert "without Members" in failed.message


async def test_a_busy_bmc_is_asked_again() -> None:
    bmc = Bmc(httpx.Response(503), httpx.Response(200, json={"PowerState": "Off"}))

    async with bmc.system() as system:
        assert (await system.system())["PowerState"] == "Off"
    assert bmc.asked == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (httpx.Response(401), "bmc_denied"),
        (httpx.Response(404), "no_such_resource"),
        (httpx.Response(503), "bmc_unreachable"),
        (httpx.Response(200, json=["a list"]), "bmc_invalid_answer"),
        (httpx.Response(200, text="<html>"), "bmc_invalid_answer"),
        (httpx.Response(302), "bmc_invalid_answer"),
    ],
)
async def test_every_other_answer_is_told_apart(answer: httpx.Response, code: str) -> None:
    assert (await failure(Bmc(answer))).code == code
