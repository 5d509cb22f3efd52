"""BMCs that nobody expected: which candidate an observation is about, and what it and people's decisions change.

A candidate is no machine and is never touched. What is known by now (NetBox has it) is closed, not forgotten; what was
ignored stays ignored when it is seen again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.discovery import BmcObserved, CandidateFacts, CandidateState
from libs.contracts.hardware_ids import known_port, system_uuid

OPEN = (CandidateState.NEW, CandidateState.IGNORED)


@dataclass(frozen=True)
class KnownBmc:
    """A machine's BMC as the source of truth has it."""

    machine_id: str
    name: str
    bmc_mac: str
    bmc_address: str


@dataclass(frozen=True)
class Sighting:
    """What was seen, in canonical form."""

    site: str
    address: str
    bmc_mac: str
    hostname: str
    uuid: str
    vendor: str
    product: str
    redfish: bool
    via: str
    at: datetime


def sighting(seen: BmcObserved) -> Sighting:
    return Sighting(
        site=seen.site,
        address=seen.address,
        bmc_mac=known_port(seen.hw_address),
        hostname=seen.hostname,
        uuid=system_uuid(seen.uuid),
        vendor=seen.vendor,
        product=seen.product,
        redfish=seen.redfish,
        via=seen.via,
        at=seen.observed_at,
    )


def machine_of(seen: Sighting, machines: Iterable[KnownBmc]) -> tuple[KnownBmc | None, str]:
    """The machine that this BMC is of; else None and what is strange about it.

    Its MAC decides. An address decides only while nobody knows two MACs for it: a stranger at a machine's address is a
    replaced BMC or an address that was given away, and a person has to find out which.
    """
    note = ""
    for machine in machines:
        mac = known_port(machine.bmc_mac)
        if seen.bmc_mac and mac == seen.bmc_mac:
            return machine, ""
        if machine.bmc_address == seen.address:
            if not seen.bmc_mac or not mac:
                return machine, ""
            note = (
                f"{seen.address} is the BMC address of {machine.name}, whose BMC has MAC {mac}: "
                "its BMC was replaced, or its address was given away"
            )
    return None, note


def candidate_of(seen: Sighting, candidates: Sequence[CandidateFacts]) -> CandidateFacts | None:
    """The candidate that was seen again: by MAC, else by the service's UUID, else by address."""
    if seen.bmc_mac:
        for one in candidates:
            if one.bmc_mac == seen.bmc_mac:
                return one
    for one in candidates:
        if one.bmc_mac and seen.bmc_mac:
            continue  # Two MACs are two BMCs, whatever else they share.
        if (seen.uuid and one.uuid == seen.uuid) or one.address == seen.address:
            return one
    return None


def first_seen(candidate_id: str, seen: Sighting, note: str) -> CandidateFacts:
    return CandidateFacts(
        id=candidate_id,
        site=seen.site,
        bmc_mac=seen.bmc_mac,
        address=seen.address,
        hostname=seen.hostname,
        uuid=seen.uuid,
        vendor=seen.vendor,
        product=seen.product,
        redfish=seen.redfish,
        via=(seen.via,),
        note=note,
        first_seen_at=seen.at,
        last_seen_at=seen.at,
        version=1,
    )


def seen_again(before: CandidateFacts, seen: Sighting, note: str) -> CandidateFacts:
    """After another sighting; the same version when only the time moved. An older one changes nothing."""
    if seen.at <= before.last_seen_at:
        return before
    after = before.model_copy(
        update={
            "bmc_mac": seen.bmc_mac or before.bmc_mac,
            "address": seen.address,
            "hostname": seen.hostname or before.hostname,
            "uuid": seen.uuid or before.uuid,
            "vendor": seen.vendor or before.vendor,
            "product": seen.product or before.product,
            "redfish": seen.redfish or before.redfish,
            "via": tuple(sorted({*before.via, seen.via})),
            "note": note,
        }
    )
    if after != before:
        after = after.model_copy(update={"version": before.version + 1})
    return after.model_copy(update={"last_seen_at": seen.at})


def is_known(before: CandidateFacts, machine: KnownBmc) -> CandidateFacts:
    """The source of truth has it by now."""
    if before.state not in OPEN:
        return before
    changes = {"state": CandidateState.KNOWN, "machine_id": machine.machine_id, "version": before.version + 1}
    return before.model_copy(update=changes)


def decided(
    before: CandidateFacts, state: CandidateState, *, by: str, reason: str = "", machine_id: str | None = None
) -> CandidateFacts:
    """A person approved or ignored it."""
    changes = {"state": state, "decided_by": by, "reason": reason, "machine_id": machine_id}
    return before.model_copy(update={**changes, "version": before.version + 1})
