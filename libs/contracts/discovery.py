"""BMCs that nobody expected: what a site saw of them without signing in, and what inventory makes of it.

No credential is ever sent to a BMC that is not known to be ours. A candidate is no machine: a person approves it first.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from libs.contracts.message import Message, event, observation, site_command


@site_command("redfish", "scan")
class ScanBmcs(Message):
    """Ask every address of the site's BMC ranges for its Redfish service root, without sign-in.

    `networks` narrows it (CIDR, inside the site's ranges); none means all. Reply data: addresses, found, seconds.
    What is found comes as `BmcObserved`.
    """

    scan_id: str
    networks: tuple[str, ...] = ()

    def key(self) -> str:
        return self.scan_id


@observation("redfish", "bmc")
class BmcObserved(Message):
    """A BMC, or a lease in a BMC range. `redfish` false: nothing there answered as a BMC does; `problem` says what did.

    `hw_address` is blank when it was found by its address alone. `uuid` is the Redfish service's own, blank for
    placeholders.
    """

    site: str
    address: str
    hw_address: str = ""
    hostname: str = ""
    via: Literal["lease", "scan"]
    redfish: bool
    uuid: str = ""
    vendor: str = ""
    product: str = ""
    redfish_version: str = ""
    problem: str = ""
    observed_at: datetime

    def key(self) -> str:
        return self.hw_address or self.address


class CandidateState(StrEnum):
    NEW = "NEW"  # A person decides.
    IGNORED = "IGNORED"
    APPROVED = "APPROVED"  # A machine was made of it.
    KNOWN = "KNOWN"  # The source of truth has it by now.


class CandidateFacts(Message):
    """`note` says what is strange about it; `machine_id` is set once it is a machine."""

    id: str
    site: str
    bmc_mac: str = ""
    address: str
    hostname: str = ""
    uuid: str = ""
    vendor: str = ""
    product: str = ""
    redfish: bool = False
    via: tuple[str, ...] = ()
    note: str = ""
    state: CandidateState = CandidateState.NEW
    machine_id: str | None = None
    decided_by: str = ""
    reason: str = ""
    first_seen_at: datetime
    last_seen_at: datetime
    version: int


@event("inventory", "candidate", "updated")
class CandidateUpdated(Message):
    """An unknown BMC was seen for the first time, looks different, or somebody decided about it."""

    candidate: CandidateFacts
