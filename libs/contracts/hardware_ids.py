"""What identifies hardware, in one form: MAC addresses, InfiniBand GUIDs, serial numbers and UUIDs.

Vendors, DHCP servers, switches and people write the same address in a dozen ways, and firmware that was never told a
serial number invents one. Each value is read once, here, into its canonical form; a value that says nothing is "",
and "" identifies nobody. `same_hardware` decides from several keys whether two records are one machine.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

_HEX = re.compile(r"[0-9a-f]+\Z")
# One separator throughout, in groups of two digits (IEEE 802, Linux, Windows) or of four (Cisco, ibstat).
_GROUPED = re.compile(
    r"[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2})*\Z|[0-9a-f]{4}(?:([.:-])[0-9a-f]{4})(?:\2[0-9a-f]{4})*\Z"
)
MAC_OCTETS, GUID_OCTETS, GID_OCTETS, IPOIB_OCTETS = 6, 8, 16, 20


class BadHardwareId(ValueError):
    """A value that is no address; the message names the value and what is wrong with it."""


def _octets(text: str) -> bytes:
    """The octets of an address in any usual notation. Raises BadHardwareId."""
    plain = text.strip().lower().removeprefix("0x")
    if not _HEX.match(plain):
        if not _GROUPED.match(plain):
            raise BadHardwareId(f"{text!r} is no hardware address: write it like 94:6d:ae:aa:4b:62")
        plain = re.sub(r"[:.-]", "", plain)
    if len(plain) % 2:
        raise BadHardwareId(f"{text!r} has {len(plain)} hexadecimal digits; a digit is missing or too many")
    return bytes.fromhex(plain)


def mac_address(text: str) -> str:
    """An Ethernet address as aa:bb:cc:dd:ee:ff, from any usual notation. Raises BadHardwareId.

    All zeros, all ones and group (multicast) addresses belong to no port and are refused.
    """
    octets = _octets(text)
    if len(octets) != MAC_OCTETS:
        raise BadHardwareId(f"{text!r} has {len(octets)} octets; a MAC address has {MAC_OCTETS}")
    if not any(octets) or octets[0] & 1:
        raise BadHardwareId(f"{text!r} is a blank or group address; no port has it")
    return octets.hex(":")


def infiniband_guid(text: str) -> str:
    """A port's GUID as aa:bb:cc:dd:ee:ff:00:11. Raises BadHardwareId.

    Takes the GUID itself (8 octets), the GID (16: subnet prefix and GUID) and what Linux shows as the hardware address
    of an IPoIB interface (20: flags and queue pair number, which change at every boot, then the GID; RFC 4391, 9.1.1).
    """
    octets = _octets(text)
    if len(octets) not in (GUID_OCTETS, GID_OCTETS, IPOIB_OCTETS):
        raise BadHardwareId(
            f"{text!r} has {len(octets)} octets; an InfiniBand GUID has 8, a GID 16, an IPoIB address 20"
        )
    guid = octets[-GUID_OCTETS:]
    if not any(guid) or guid == b"\xff" * GUID_OCTETS:
        raise BadHardwareId(f"{text!r} is a blank GUID; no port has it")
    return guid.hex(":")


def port_address(text: str) -> str:
    """A MAC address or an InfiniBand GUID, by its length, in canonical form. Raises BadHardwareId."""
    return mac_address(text) if len(_octets(text)) == MAC_OCTETS else infiniband_guid(text)


def known_port(text: str | None) -> str:
    """`port_address`, and "" for a value that is none: for comparing what others report."""
    try:
        return port_address(text or "")
    except BadHardwareId:
        return ""


def locally_administered(address: str) -> bool:
    """Whether a MAC was made up by software (bonds, virtual functions, a BMC's USB card): others may have it too."""
    return len(address) == 3 * MAC_OCTETS - 1 and bool(int(address[:2], 16) & 2)


# What firmware says when nobody told it: SMBIOS defaults of the large BIOS makers, and what people type into forms.
_PLACEHOLDERS = frozenset(
    """
    defaultstring|default|tobefilledbyoem|tobefilled|tobedetermined|tbd|oem|oemstring|systemserialnumber|chassisserialnumber
    baseboardserialnumber|serialnumber|serial|sn|notspecified|notapplicable|notavailable|notset|notsettable|notpresent
    notprovided|none|null|nil|na|unknown|undefined|unspecified|invalid|empty|blank|test|placeholder|error
    """.replace("\n", "|")
    .replace(" ", "")
    .split("|")
)
_COUNTING = "01234567890123456789"


def _bare(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


def is_placeholder(text: str) -> bool:
    """Whether this is what firmware says in place of a serial number, asset tag or part number that nobody gave it."""
    bare = _bare(text)
    # 0123456789, 123456789, 1234567: longer than chance, shorter than anything a maker prints.
    return bare in _PLACEHOLDERS or (len(bare) >= 6 and bare in _COUNTING)


def serial_number(text: str | None) -> str:
    """A serial number, trimmed, in capitals; "" for blanks and for what firmware says when it has none."""
    shown = "".join(char for char in (text or "") if char.isprintable()).strip()
    return "" if is_placeholder(shown) or len(set(_bare(shown))) < 2 else shown.upper()


# AMI's sample UUID, which boards keep that were never programmed. Compared in both byte orders.
_SAMPLE_UUIDS = frozenset({"03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009"})


def system_uuid(text: str | None) -> str:
    """A system UUID in lower case with dashes; "" for blanks, all-equal octets and makers' samples."""
    try:
        found = uuid.UUID((text or "").strip().strip("{}"))
    except ValueError:
        return ""
    return "" if len(set(found.bytes)) < 2 or str(found) in _SAMPLE_UUIDS else str(found)


def same_uuid(one: str, other: str) -> bool:
    """Whether two canonical UUIDs are one; SMBIOS before 2.6 and some BMCs swap octets in the first three fields."""
    return one == other or uuid.UUID(one).bytes_le == uuid.UUID(other).bytes


class Sameness(StrEnum):
    SAME = "same"
    OTHER = "other"
    AMBIGUOUS = "ambiguous"  # A person has to look: what is known contradicts itself, or nothing is known.


@dataclass(frozen=True)
class HardwareIdentity:
    """Canonical keys of one machine; "" and () are not known. `ports` are the host's own, without virtual ones."""

    manufacturer: str = ""
    serial: str = ""
    uuid: str = ""
    bmc_mac: str = ""
    ports: frozenset[str] = field(default_factory=frozenset)


def hardware_identity(
    *,
    manufacturer: str | None = "",
    serial: str | None = "",
    uuid: str | None = "",
    bmc_mac: str | None = "",
    ports: Iterable[str] = (),
) -> HardwareIdentity:
    """The keys of a record as somebody else wrote them; what says nothing is left out."""
    found = frozenset(address for port in ports if (address := known_port(port)))
    return HardwareIdentity(
        _bare(manufacturer or ""), serial_number(serial), system_uuid(uuid), known_port(bmc_mac), found
    )


AGREES, DIFFERS, MIXED, UNKNOWN = "agrees", "differs", "mixed", "unknown"
# What the chassis says (serial number, UUID) and what the addresses say (BMC, ports) → the decision and why.
DECISIONS: dict[tuple[str, str], tuple[Sameness, str]] = {
    (AGREES, AGREES): (Sameness.SAME, "chassis and addresses agree"),
    (AGREES, MIXED): (Sameness.SAME, "the chassis agrees; a card or the BMC was replaced"),
    (AGREES, UNKNOWN): (Sameness.SAME, "the chassis agrees"),
    (AGREES, DIFFERS): (
        Sameness.AMBIGUOUS,
        "the chassis agrees but no address does: a new mainboard or a copied serial",
    ),
    (MIXED, AGREES): (Sameness.SAME, "the addresses agree; serial number or UUID was written anew"),
    (MIXED, MIXED): (Sameness.AMBIGUOUS, "serial number, UUID and addresses agree only in part"),
    (MIXED, UNKNOWN): (Sameness.AMBIGUOUS, "serial number and UUID contradict one another"),
    (MIXED, DIFFERS): (Sameness.AMBIGUOUS, "serial number and UUID contradict one another, and no address agrees"),
    (UNKNOWN, AGREES): (Sameness.SAME, "the addresses agree"),
    (UNKNOWN, MIXED): (Sameness.AMBIGUOUS, "some addresses agree, and neither has a serial number to tell by"),
    (UNKNOWN, UNKNOWN): (Sameness.AMBIGUOUS, "they have no key in common that says anything"),
    (UNKNOWN, DIFFERS): (Sameness.OTHER, "no address agrees"),
    (DIFFERS, AGREES): (
        Sameness.AMBIGUOUS,
        "the addresses agree but the chassis differs: cards or the board were moved",
    ),
    (DIFFERS, MIXED): (Sameness.AMBIGUOUS, "some addresses agree but the chassis differs: a card was moved"),
    (DIFFERS, UNKNOWN): (Sameness.OTHER, "the chassis differs"),
    (DIFFERS, DIFFERS): (Sameness.OTHER, "chassis and addresses differ"),
}


def same_hardware(one: HardwareIdentity, other: HardwareIdentity) -> tuple[Sameness, str]:
    """Whether two records are one machine, and why, in words."""
    return DECISIONS[_verdict(_chassis(one, other)), _verdict(_addresses(one, other))]


def _verdict(answers: list[bool]) -> str:
    if not answers:
        return UNKNOWN
    return MIXED if len(set(answers)) == 2 else AGREES if answers[0] else DIFFERS


def _chassis(one: HardwareIdentity, other: HardwareIdentity) -> list[bool]:
    answers = []
    if one.serial and other.serial:
        # A serial number is unique for its maker only.
        makers = {one.manufacturer, other.manufacturer} - {""}
        known_as_one = (
            len(makers) < 2 or one.manufacturer in other.manufacturer or other.manufacturer in one.manufacturer
        )
        answers.append(one.serial == other.serial and known_as_one)
    if one.uuid and other.uuid:
        answers.append(same_uuid(one.uuid, other.uuid))
    return answers


def _addresses(one: HardwareIdentity, other: HardwareIdentity) -> list[bool]:
    answers = []
    if one.bmc_mac and other.bmc_mac:
        answers.append(one.bmc_mac == other.bmc_mac)
    # What software made up may be the same on strangers: it neither unites nor parts.
    ours, theirs = (frozenset(p for p in who.ports if not locally_administered(p)) for who in (one, other))
    if ours and theirs:
        answers.append(bool(ours & theirs))
    return answers
