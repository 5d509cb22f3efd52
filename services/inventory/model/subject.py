"""One machine as every system shows it, and the three answers that a comparison of them can have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.inventory import MachineState

S = MachineState


@dataclass(frozen=True)
class Node:
    """A node as its site last told it."""

    provision_state: str
    power_state: str
    instance_uuid: str | None
    maintenance_owner: str
    maintenance_reason: str
    fault: str
    retired: bool
    resource_class: str
    reservation: str
    reserved_since: datetime | None
    observed_at: datetime
    gone_at: datetime | None = None


@dataclass(frozen=True)
class Provider:
    """A resource provider as the site's Placement last told it. `consumers`: who has allocations on it."""

    total: int
    reserved: int
    consumers: tuple[str, ...]
    observed_at: datetime


@dataclass(frozen=True)
class Subject:
    """One machine as all systems show it; `state` None: a node that no machine of ours is.

    `worked_on`: a process of ours runs on it now; `operation_phase` is that of its own operation, "" when it ended.
    `site_heard`: its satellite speaks, and sees its Ironic.
    `placement_heard`: the site has a Placement and it was read lately. `eligible`: it may be claimed now.
    """

    id: str
    name: str
    site: str
    state: S | None
    state_since: datetime
    claim_id: str | None
    operation_id: str | None
    operation_phase: str
    worked_on: bool
    profile: str | None
    shares: str
    node: Node | None
    site_heard: bool
    provider: Provider | None = None
    placement_heard: bool = False
    eligible: bool = False


@dataclass(frozen=True)
class Contradiction:
    """What should be and what is, in words."""

    ours: str
    theirs: str


@dataclass(frozen=True)
class Unknown:
    """Why it can't be judged."""

    why: str


Judgement = Contradiction | Unknown | None
Judge = Callable[[Subject, datetime], Judgement]
