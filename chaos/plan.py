"""What will go wrong in a run, decided from its seed alone: the same seed and settings give the same plan.

When a fault strikes is decided too, as pauses between faults; what the system does at that moment is not, so a
repeated run repeats the faults and not every interleaving.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy.local.layout import SITE
from libs.bus.topology import (
    EVENT_SERVICES,
    SATELLITE_CONSUMER,
    SOURCING_CONSUMER,
    command_stream,
    event_stream,
    site_local_stream,
    site_stream,
)

SERVICES = EVENT_SERVICES
PROCESSES = (*SERVICES, "gateway", "satellite")
BUSY_SERVICES = ("inventory", "reservation", "provisioning", "validation")  # In the others' streams little happens.
EVENT_STREAMS = tuple(event_stream(service) for service in BUSY_SERVICES)
COMMAND_STREAMS = tuple(command_stream(service) for service in BUSY_SERVICES)
CONSUMERS = tuple(f"{stream}/{stream[4:]}_inbox" for stream in COMMAND_STREAMS)
SITE_STREAM, SITE_LOCAL_STREAM = site_stream(SITE), site_local_stream(SITE)
# Together with the lag of the network, still what the satellite's rule of 30 s allows, and what it does not.
SKEWS_SECONDS = (-90, -25, -8, 8, 25, 90)
TOGETHER = 0.25  # How often the next fault strikes while this one lasts, beside those that never hold the next one up.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 3.0
# What makes the rules forgive what came before it is drawn once at most, early, so that they judge all the rest.
EARLY = 10


@dataclass(frozen=True)
class Kind:
    """A kind of fault: its targets, how long it lasts in seconds, how often it is drawn beside the others.

    `lasting`: a condition under which others may strike; the next one does not wait for its end. `alone`: nothing else
    strikes meanwhile, and it is drawn once at most.
    """

    name: str
    what: str
    targets: tuple[str, ...]
    shortest: float = 0.0
    longest: float = 0.0
    weight: int = 2
    lasting: bool = False
    alone: bool = False
    choices: dict[str, tuple[Any, ...]] = field(default_factory=dict)


def kinds(hubs: Sequence[str] = ("nats-hub",), machines: Sequence[str] = ("",)) -> dict[str, Kind]:
    """Every kind there is; `hubs` are the hub's NATS servers, `machines` the names of the site's machines."""
    servers = (*hubs, "nats-leaf", "postgres")
    found = (
        Kind("kill", "kill -9, then start again", (*PROCESSES, *servers), 0, 3, weight=6),
        Kind("pause", "SIGSTOP, then SIGCONT", (*PROCESSES, *servers), 1, 12, weight=4),
        Kind("cut_leaf", "cut the site off from the hub", ("leaf",), 2, 15, weight=3),
        Kind("stall_leaf", "let no byte through between site and hub", ("leaf",), 2, 10),
        Kind(
            "slow_leaf",
            "slow the link between site and hub",
            ("leaf",),
            5,
            15,
            lasting=True,
            choices={"delay": (0.05, 0.3, 1.0)},
        ),
        Kind("cut_database", "cut a service off from PostgreSQL", SERVICES, 1, 8, lasting=True),
        Kind(
            "break_commit",
            "cut connections in the middle of COMMIT",
            BUSY_SERVICES,
            3,
            8,
            weight=4,
            lasting=True,
            choices={"how": ("before", "after"), "times": (1, 2, 4)},
        ),
        Kind(
            "lose_tail",
            "restore an older copy of a stream's store",
            (*EVENT_STREAMS, "EVT", "OBS"),
            1,
            4,
            weight=3,
            choices={"least": (1, 5, 20)},
        ),
        Kind(
            "lose_commands",
            "restore an older copy of a command stream's store",
            (*COMMAND_STREAMS, SITE_STREAM),
            1,
            4,
            weight=1,
            choices={"least": (1, 5)},
        ),
        Kind(
            "delete_consumer",
            "delete a durable consumer, which its owner makes again",
            (
                *CONSUMERS,
                "OBS/provisioning_inbox",
                f"{SITE_STREAM}/{SATELLITE_CONSUMER}",
                f"{SITE_LOCAL_STREAM}/{SOURCING_CONSUMER}",
            ),
        ),
        Kind(
            "fill_stream",
            "fill a stream to its limit",
            (*EVENT_STREAMS, *COMMAND_STREAMS, SITE_STREAM),
            2,
            8,
            lasting=True,
        ),
        Kind(
            "write_foreign",
            "write into a service's event stream in the place of its owner",
            EVENT_STREAMS,
            weight=1,
            choices={"messages": (1, 3)},
        ),
        Kind(
            "repeat", "deliver old messages again, in another order", (*COMMAND_STREAMS, SITE_STREAM, "OBS"), weight=3
        ),
        Kind(
            "skew",
            "run a process with another clock",
            PROCESSES,
            3,
            10,
            lasting=True,
            choices={"seconds": SKEWS_SECONDS},
        ),
        Kind(
            "break_machine",
            "let a machine's hardware fail",
            ("deploy", "clean", "ssh", "power"),
            5,
            20,
            weight=3,
            lasting=True,
            choices={"machine": tuple(machines)},
        ),
        Kind("restore_database", "put PostgreSQL back to an older backup", ("postgres",), 5, 15, weight=1, alone=True),
        Kind("kill_all", "kill -9 every process at once", ("everything",), 0, 1, weight=1),
    )
    return {kind.name: kind for kind in found}


@dataclass(frozen=True)
class Fault:
    """One planned fault. `pause` seconds after the one before it began or ended (`together`, or that one is `lasting`:
    begun)."""

    number: int
    kind: str
    target: str
    seconds: float
    pause: float
    together: bool = False
    lasting: bool = False
    alone: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [self.kind, self.target, *(f"{name}={value}" for name, value in self.more.items())]
        return " ".join(words) + (f" for {self.seconds:.1f} s" if self.seconds else "")


def plan(seed: str, count: int, of: Sequence[Kind], pace: float = 1.0) -> list[Fault]:
    """`count` faults of the given kinds; `pace` stretches the pauses between them."""
    dice = random.Random(f"plan {seed}")
    faults: list[Fault] = []
    drawn: set[str] = set()
    for number in range(1, count + 1):
        left = [kind for kind in of if not kind.alone or (number <= EARLY and kind.name not in drawn)] or list(of)
        kind = dice.choices(left, [kind.weight for kind in left])[0]
        drawn.add(kind.name)
        together = bool(faults) and dice.random() < TOGETHER
        faults.append(
            Fault(
                number=number,
                kind=kind.name,
                target=dice.choice(kind.targets),
                seconds=round(dice.uniform(kind.shortest, kind.longest), 1),
                pause=round(dice.uniform(SHORTEST_PAUSE, LONGEST_PAUSE) * pace, 1),
                together=together,
                lasting=kind.lasting,
                alone=kind.alone,
                more={name: dice.choice(values) for name, values in kind.choices.items()},
            )
        )
    return faults
