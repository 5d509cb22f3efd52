"""Every notation of an address is one address; what says nothing identifies nobody; several keys decide together."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.hardware_ids import (
    AGREES,
    DECISIONS,
    DIFFERS,
    MIXED,
    UNKNOWN,
    BadHardwareId,
    Sameness,
    hardware_identity,
    infiniband_guid,
    known_port,
    locally_administered,
    mac_address,
    port_address,
    same_hardware,
    serial_number,
    system_uuid,
)

MAC = "94:6d:ae:aa:4b:62"
GUID = "08:c0:eb:03:00:ab:cd:ef"


@pytest.mark.parametrize(
    "written",
    [
        "94:6d:ae:aa:4b:62",
        "94:6D:AE:AA:4B:62",
        "94-6D-AE-AA-4B-62",
        "946d.aeaa.4b62",
        "946d-aeaa-4b62",
        "946DAEAA4B62",
        "0x946daeaa4b62",
        " 94:6d:ae:aa:4b:62\n",
    ],
)
def test_every_notation_of_a_mac_is_one_mac(written: str) -> None:
    assert mac_address(written) == MAC == port_address(written)


@pytest.mark.parametrize(
    "written",
    [
        "08:c0:eb:03:00:ab:cd:ef",
        "0x08c0eb0300abcdef",
        "08c0:eb03:00ab:cdef",
        "fe80:0000:0000:0000:08c0:eb03:00ab:cdef",
        "00:00:10:29:fe:80:00:00:00:00:00:00:08:c0:eb:03:00:ab:cd:ef",
        "80:00:02:08:FE:80:00:00:00:00:00:00:08:C0:EB:03:00:AB:CD:EF",
    ],
)
def test_guid_gid_and_ipoib_address_are_one_port_whatever_the_queue_pair(written: str) -> None:
    assert infiniband_guid(written) == GUID == port_address(written)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "is no hardware address"),
        ("94:6d-ae:aa:4b:62", "is no hardware address"),
        ("94:6d:ae:aa:4b:6", "is no hardware address"),
        ("94:6d:ae:aa:4b", "5 octets"),
        ("946daeaa4b621", "digit is missing"),
        ("94:6d:ae:aa:4b:6g", "is no hardware address"),
        ("00:00:00:00:00:00", "blank or group"),
        ("ff:ff:ff:ff:ff:ff", "blank or group"),
        ("01:00:5e:00:00:fb", "blank or group"),
        (GUID, "8 octets; a MAC address has 6"),
    ],
)
def test_what_is_no_mac_is_refused_and_named(written: str, words: str) -> None:
    with pytest.raises(BadHardwareId, match=words) as caught:
        mac_address(written)
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize("written", ["", "00" * 8, "ff" * 8, "aa" * 7, "00" * 20])
def test_what_is_no_port_of_a_fabric_is_refused(written: str) -> None:
    with pytest.raises(BadHardwareId):
        infiniband_guid(written)
    assert known_port(written) == ""


@given(st.binary(min_size=6, max_size=6).filter(lambda octets: any(octets) and not octets[0] & 1))
def test_reading_a_canonical_mac_again_changes_nothing(octets: bytes) -> None:
    once = mac_address(octets.hex().upper())
    assert mac_address(once) == once == octets.hex(":")


@given(st.text(max_size=70))
def test_whatever_is_written_is_read_or_refused_but_never_crashes(written: str) -> None:
    assert known_port(written) == known_port(known_port(written))
    assert serial_number(serial_number(written)) == serial_number(written)
    assert system_uuid(system_uuid(written)) == system_uuid(written)


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", None, "Default string", "DEFAULT STRING ", "To be filled by O.E.M.", "To Be Filled By OEM"),
        *("System Serial Number", "0123456789", "123456789", "1234567890", "0", "00000000", "N/A", "n.a.", "None"),
        *("Not Specified", "XXXXXXXX", "........", "unknown", "\x00\x00", "-", "Chassis Serial Number", "null"),
    ],
)
def test_a_serial_number_that_says_nothing_is_none(written: str | None) -> None:
    assert serial_number(written) == ""


@pytest.mark.parametrize(
    ("written", "serial"),
    [(" yhnn594 ", "YHNN594"), ("1660223969975", "1660223969975"), ("J3\x00A1", "J3A1"), ("NA-0012", "NA-0012")],
)
def test_a_real_serial_number_is_kept(written: str, serial: str) -> None:
    assert serial_number(written) == serial


@pytest.mark.parametrize(
    "written",
    [
        *("", None, "Not Settable", "ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"),
        *("03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009", "1234"),
    ],
)
def test_a_uuid_that_every_board_has_is_none(written: str | None) -> None:
    assert system_uuid(written) == ""


def test_a_mac_made_up_by_software_is_told_from_a_burnt_in_one() -> None:
    assert locally_administered("f2:00:00:67:1e:cd") and not locally_administered(MAC)
    assert not locally_administered(GUID)


# -- several keys together --------------------------------------------------------------------------

ONE = hardware_identity(
    serial="YHNN594", uuid="4c4c4544-0048-4e10-804e-d9c04f353934", bmc_mac="D08E79003313", ports=[MAC]
)
NOTHING = hardware_identity(serial="Default string", uuid="f" * 32, bmc_mac="", ports=["f2:00:00:67:1e:cd"])


def test_the_table_decides_every_combination() -> None:
    words = (AGREES, DIFFERS, MIXED, UNKNOWN)
    assert set(DECISIONS) == set(product(words, words))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Sameness.SAME),
        ({"serial": "yhnn594 ", "uuid": "44454c4c-4800-104e-804e-d9c04f353934"}, Sameness.SAME),  # Octets swapped.
        ({"ports": ["94:6d:ae:00:00:01"]}, Sameness.SAME),  # A network card was replaced.
        ({"bmc_mac": "d0:8e:79:00:00:01"}, Sameness.SAME),
        ({"bmc_mac": "d0:8e:79:00:00:01", "ports": ["94:6d:ae:00:00:01"]}, Sameness.AMBIGUOUS),  # A new mainboard.
        ({"serial": "OTHER"}, Sameness.SAME),
        ({"serial": "OTHER", "uuid": ""}, Sameness.AMBIGUOUS),
        ({"serial": "OTHER", "uuid": "4c4c4544-0054-5210-8050-ccc04f393234"}, Sameness.AMBIGUOUS),
        ({"serial": "N/A", "uuid": ""}, Sameness.SAME),
        ({"serial": "", "uuid": "", "bmc_mac": ""}, Sameness.SAME),
        ({"serial": "OTHER", "uuid": "", "bmc_mac": "d0:8e:79:00:00:01", "ports": []}, Sameness.OTHER),
        ({"serial": "", "uuid": "", "bmc_mac": "d0:8e:79:00:00:01", "ports": []}, Sameness.OTHER),
    ],
)
def test_one_machine_is_known_by_what_remains_of_its_keys(changes: dict[str, object], expected: Sameness) -> None:
    keys = {"serial": "YHNN594", "uuid": "4c4c4544-0048-4e10-804e-d9c04f353934", "bmc_mac": "d0:8e:79:00:33:13"}
    other = hardware_identity(**{**keys, "ports": [MAC], **changes})  # type: ignore[arg-type]
    assert same_hardware(ONE, other)[0] is expected
    assert same_hardware(other, ONE)[0] is expected


def test_two_boards_that_say_nothing_are_not_one_machine() -> None:
    assert same_hardware(NOTHING, NOTHING)[0] is Sameness.AMBIGUOUS


def test_a_serial_number_of_another_maker_is_another_serial_number() -> None:
    dell, lenovo = (hardware_identity(manufacturer=m, serial="J30A1") for m in ("Dell Inc.", "Lenovo"))
    assert same_hardware(dell, lenovo)[0] is Sameness.OTHER
    assert same_hardware(dell, hardware_identity(manufacturer="Dell", serial="j30a1"))[0] is Sameness.SAME


def test_the_usb_card_that_every_bmc_plays_unites_nobody() -> None:
    one, other = (hardware_identity(ports=["f2:00:00:67:1e:cd", port]) for port in ("94:6d:ae:00:00:01", MAC))
    assert same_hardware(one, other)[0] is Sameness.OTHER
