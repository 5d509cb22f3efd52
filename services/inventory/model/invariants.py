"""What must be true between NetBox, Ironic, Placement and ourselves, as a list to read: one row an invariant.

Each is judged for one subject, a machine with what every system shows of it. The answer is a contradiction, None
(true), or UNKNOWN: a source that is absent, silent or older than our last step proves nothing, and a violation that
is open stays open until it was proven gone. While a process of ours works on a machine it is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from libs.contracts.inventory import MachineState
from libs.contracts.violation import Severity
from services.inventory.model import judges
from services.inventory.model.subject import Judge

S = MachineState
# From normal transitions: an observation every 2 s, a power change of half a minute at most under load.
GRACE = timedelta(seconds=20)
# However long transitions have been seen to last, a violation is told this soon: found in less than a minute.
LONGEST_GRACE = timedelta(seconds=40)


class System(StrEnum):
    """Who is compared."""

    NETBOX = "netbox"
    IRONIC = "ironic"
    PLACEMENT = "placement"
    SLIPWAY = "slipway"


class Repair(StrEnum):
    """The workflow that a repair starts; every one of them is an ordinary process or decision of inventory."""

    RENEW = "renew"  # Out of the pool, wiped, validated, back.
    ENROL = "enrol"  # Out of the pool, made in Ironic again, inspected, wiped, validated.
    HOLD = "hold"  # Kept from use until a person removes the hold.
    POWER_ON = "power_on"
    REMOVE_NODE = "remove_node"
    RETRY = "retry"  # The step that nobody works on any more has failed; it is tried again.
    READ_SOURCE = "read_source"  # NetBox is read anew, after it was corrected.
    RESERVE = "reserve"  # Placement is told again what we hold.


REPAIR_WORDS: Mapping[Repair, str] = {
    Repair.RENEW: "takes it out of the pool, frees and wipes it, validates it, and makes it AVAILABLE again",
    Repair.ENROL: "takes it out of the pool and enrols it anew: made in Ironic, inspected, wiped, validated",
    Repair.HOLD: "puts a hold on it: nobody gets it until a person has looked and removes the hold",
    Repair.POWER_ON: "has its site switch it on and see it on",
    Repair.REMOVE_NODE: "has its site delete the node and its ports, if nothing is deployed on it",
    Repair.RETRY: "marks the step as FAILED and tries it again",
    Repair.READ_SOURCE: "reads NetBox again; correct there first what the violation names",
    Repair.RESERVE: "has its site write into Placement what Slipway holds",
}


@dataclass(frozen=True)
class Invariant:
    """`grace`: how long a contradiction may last in normal work; longer, learned for a site, up to LONGEST_GRACE."""

    id: str
    title: str
    severity: Severity
    systems: tuple[System, ...]
    explanation: str
    repair: Repair
    judge: Judge
    grace: timedelta = GRACE


_NODE = (System.SLIPWAY, System.IRONIC)
_BOOK = (System.SLIPWAY, System.PLACEMENT)
_UNCLAIMED = (S.EXPECTED, S.VALIDATING, S.AVAILABLE, S.QUARANTINED, S.REMEDIATING, S.MAINTENANCE)
CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING

INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "deployed-unclaimed",
        "Nothing is deployed on a machine that no claim has",
        CRITICAL,
        _NODE,
        "Somebody deployed it past Slipway, or an undeploy was lost. Find out whose instance it is before you repair: "
        "the repair takes it off the machine.",
        Repair.RENEW,
        judges.of_node(_UNCLAIMED, judges.deployed_unclaimed),
    ),
    Invariant(
        "instance-of-another",
        "A claimed machine carries the instance of its claim and no other",
        CRITICAL,
        _NODE,
        "Another program (Nova, a script) deployed it for somebody else: two owners believe that they have it.",
        Repair.HOLD,
        judges.of_node((S.CLAIMED, S.PROVISIONING, S.ASSIGNED), judges.another_instance),
    ),
    Invariant(
        "assigned-not-deployed",
        "An ASSIGNED machine is deployed for its claim",
        CRITICAL,
        _NODE,
        "It was undeployed, rebuilt or rescued past Slipway: its tenant's node does not run. Replace the node.",
        Repair.HOLD,
        judges.of_node((S.ASSIGNED,), judges.not_deployed),
    ),
    Invariant(
        "assigned-off",
        "An ASSIGNED machine is on",
        CRITICAL,
        _NODE,
        "Its power was cut, or its tenant shut it down from inside. It is switched on only when you say so.",
        Repair.POWER_ON,
        judges.of_node((S.ASSIGNED,), judges.off),
    ),
    Invariant(
        "available-on",
        "An AVAILABLE machine is off",
        CRITICAL,
        _NODE,
        "Nothing of ours boots it before it is deployed: what runs on it, and what it left on the disks, is not known.",
        Repair.RENEW,
        judges.of_node((S.AVAILABLE,), judges.on),
    ),
    Invariant(
        "available-not-deployable",
        "The node of an AVAILABLE machine is available in Ironic",
        WARNING,
        _NODE,
        "Somebody moved it (manage, clean, inspect). Handed out, its deploy would be refused, and its last wipe may "
        "no longer be the last thing that happened to its disks.",
        Repair.RENEW,
        judges.of_node((S.AVAILABLE,), judges.not_deployable),
    ),
    Invariant(
        "offered-power-unknown",
        "The power of a machine that is offered is known",
        WARNING,
        _NODE,
        "Its BMC does not answer Ironic: a deploy would fail, and nobody can tell that it is off.",
        Repair.HOLD,
        judges.of_node(judges.OFFERED, judges.power_unknown),
        grace=LONGEST_GRACE,
    ),
    Invariant(
        "provision-state-unknown",
        "Every node is in a provision state that this release knows",
        WARNING,
        _NODE,
        "The site's Ironic is newer than this release: nothing can be concluded from its word. Update Slipway.",
        Repair.HOLD,
        judges.of_node(judges.CARED_FOR, judges.unknown_state),
    ),
    Invariant(
        "maintenance-by-others",
        "A machine in the pool or in use is in nobody else's maintenance",
        WARNING,
        _NODE,
        "Somebody set maintenance in Ironic by hand: deploys and wipes are refused until they end it.",
        Repair.HOLD,
        judges.of_node((S.VALIDATING, *judges.OFFERED, S.ASSIGNED), judges.others_maintenance),
    ),
    Invariant(
        "node-fault",
        "Ironic reaches the BMC of every machine in the pool or in use",
        WARNING,
        _NODE,
        "Ironic set its own maintenance because power or a clean failed; it ends it when the BMC answers again.",
        Repair.HOLD,
        judges.of_node((S.VALIDATING, *judges.OFFERED, S.ASSIGNED), judges.fault),
        grace=LONGEST_GRACE,
    ),
    Invariant(
        "node-retired",
        "No machine in the pool or in use is retired in Ironic",
        WARNING,
        _NODE,
        "A retired node is never made available again: its next wipe would fail. Decommission it, or unset that.",
        Repair.HOLD,
        judges.of_node((S.VALIDATING, *judges.OFFERED, S.ASSIGNED), judges.retired_node),
    ),
    Invariant(
        "resource-class-differs",
        "The node's resource class is the machine's profile",
        WARNING,
        _NODE,
        "Placement counts the node as something else, or as nothing: it can't be found by its class.",
        Repair.HOLD,
        judges.of_node(judges.OFFERED, judges.class_differs),
    ),
    Invariant(
        "node-locked",
        "No conductor holds a node's lock for half an hour",
        WARNING,
        _NODE,
        "The conductor that is named hangs, or died without giving its locks back: every order to the node is refused. "
        "Restart that conductor.",
        Repair.HOLD,
        judges.locked,
    ),
    Invariant(
        "node-missing",
        "A machine that was enrolled has a node in its site's Ironic",
        CRITICAL,
        _NODE,
        "It was deleted there, or that Ironic was restored from an older copy. Nobody manages the machine.",
        Repair.ENROL,
        judges.missing,
        grace=LONGEST_GRACE,
    ),
    Invariant(
        "ghost-host",
        "A RETIRED machine has no node in Ironic",
        CRITICAL,
        _NODE,
        "Ironic still enforces its power: wherever the machine is used now, it may be switched off.",
        Repair.REMOVE_NODE,
        judges.ghost,
    ),
    Invariant(
        "node-without-machine",
        "Every node in Ironic is a machine of ours",
        WARNING,
        _NODE,
        "Somebody made it past Slipway, or its machine's record was lost. Add it to NetBox to have it adopted.",
        Repair.REMOVE_NODE,
        judges.without_machine,
        grace=LONGEST_GRACE,
    ),
    Invariant(
        "stranded",
        "A machine in a working state has an operation that works on it",
        CRITICAL,
        (System.SLIPWAY,),
        "Its process ended, or waits for a person, without moving the machine: nothing will happen to it by itself.",
        Repair.RETRY,
        judges.stranded,
        grace=LONGEST_GRACE,
    ),
    Invariant(
        "identity-shared",
        "Name, serial number, MACs and BMC address belong to one machine",
        CRITICAL,
        (System.NETBOX, System.SLIPWAY),
        "Two records claim one identity; whichever is wrong would have the other one's machine wiped.",
        Repair.READ_SOURCE,
        judges.shared,
        grace=timedelta(0),
    ),
    Invariant(
        "allocation-of-another",
        "Nobody else has an allocation on a machine's resource provider",
        CRITICAL,
        _BOOK,
        "Nova gave it to somebody, or an allocation was left behind when its instance went: look for it in Nova first.",
        Repair.HOLD,
        judges.of_provider(judges.foreign_allocation),
    ),
    Invariant(
        "open-to-nova",
        "What Slipway holds is reserved in Placement",
        WARNING,
        _BOOK,
        "Nova could place an instance on it at any moment.",
        Repair.RESERVE,
        judges.of_provider(judges.open_to_nova),
        grace=LONGEST_GRACE,
    ),
    Invariant(
        "closed-to-all",
        "An AVAILABLE machine is not left reserved in Placement",
        WARNING,
        _BOOK,
        "A reservation was left over: Nova says 'no valid host' while the machine is idle.",
        Repair.RESERVE,
        judges.of_provider(judges.closed_to_all),
        grace=LONGEST_GRACE,
    ),
    Invariant(
        "ghost-provider",
        "A RETIRED machine has no resource provider",
        WARNING,
        _BOOK,
        "Placement still offers a machine that is gone.",
        Repair.REMOVE_NODE,
        judges.ghost_provider,
    ),
)
BY_ID = {invariant.id: invariant for invariant in INVARIANTS}
