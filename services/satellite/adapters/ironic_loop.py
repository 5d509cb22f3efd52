"""The loop that every order to Ironic is: read the node, do the one next thing, read again.

It makes an order the same work whether it is given once, twice or again after a crash, and it is where
Ironic's refusals are told apart: busy and unreachable are waited out, a wrong state is read again, everything
else ends the order with a reason. Waiting is bounded; what is not known at its end is answered as not known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from services.satellite.adapters.ironic_client import IronicClient, Node
from services.satellite.adapters.ironic_errors import IronicRefusal, Why
from services.satellite.adapters.machine_reads import MachineReads
from services.satellite.errors import Failure, Refusal, Unanswered

log = structlog.get_logger(__name__)
T = TypeVar("T")
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 2.0
_LONGEST_BACK_OFF_SECONDS = 10.0
# A refused verb is tried again after reading the node anew; more often than this, reading does not help.
_WRONG_STATES = 5
_WAITED_OUT = (Why.BUSY, Why.UNREACHABLE)
_READ_AGAIN = (Why.WRONG_STATE, Why.NODE_ASSOCIATED)

POWER_SECONDS = 90.0  # A BMC may take half a minute to carry an order out, and answers late while it does.

# States in which a node stays until somebody orders something.
RESTING = frozenset(
    {"enroll", "manageable", "available", "active", "deploy failed", "clean failed", "inspect failed", "error",
     "service failed", "rescue failed", "adopt failed"}
)  # fmt: skip
# States from which "manage" leads to manageable; none of them says anything about the disks.
TO_MANAGEABLE = frozenset({"enroll", "available", "clean failed", "inspect failed", "adopt failed"})
IN_USE = frozenset({"active", "deploying", "wait call-back", "deploy failed", "deleting", "error", "rescue failed"})


@dataclass(frozen=True)
class IronicSite:
    """What the orders share. `clean_steps` are Ironic's names "interface.step"; `hosts`: machine → (address, port)."""

    client: IronicClient
    reads: MachineReads
    driver: str
    clean_steps: tuple[str, ...]
    hosts: dict[str, tuple[str, int]]


async def converge(
    site: IronicSite,
    machine_id: str,
    name: str,
    step: Callable[[Node], Awaitable[T | None]],
    *,
    limit_seconds: float,
) -> T:
    """Call `step` with the node as it is now until it returns something; returns that.

    Raises what `step` raises; Failure for a request that Ironic refuses for good, Unanswered when time is up.
    """
    started, pause, refused = time.monotonic(), _FIRST_PAUSE_SECONDS, 0
    state, problem = "not read yet", ""
    while True:
        try:
            node = await site.client.node(machine_id)
            state, problem = node.provision_state, ""
            result = await step(node)
            if result is not None:
                return result
            pause = min(_FIRST_PAUSE_SECONDS + (time.monotonic() - started) / 10, _LONGEST_PAUSE_SECONDS)
        except IronicRefusal as error:
            refused += error.why in _READ_AGAIN
            if error.why not in _WAITED_OUT and (error.why not in _READ_AGAIN or refused > _WRONG_STATES):
                raise for_good(name, machine_id, error) from error
            problem, pause = f"; last answer: {error.message}", min(pause * 2, _LONGEST_BACK_OFF_SECONDS)
            log.info("ironic_asked_again", machine=name, why=error.why.value, answer=error.message)
        if time.monotonic() - started > limit_seconds:
            raise Unanswered(
                "ironic_too_slow",
                f"{name}: still {state!r} in Ironic after {limit_seconds:.0f} s{problem}",
                "Look at the node in Ironic; nothing is known about how it ends.",
            )
        await asyncio.sleep(pause)


async def patiently(name: str, ask: Callable[[], Awaitable[T]], *, limit_seconds: float = 60.0) -> T:
    """One request, repeated while Ironic is busy or away. Raises IronicRefusal for every other refusal."""
    started, pause = time.monotonic(), _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await ask()
        except IronicRefusal as error:
            if error.why not in _WAITED_OUT:
                raise
            if time.monotonic() - started > limit_seconds:
                raise Unanswered("ironic_unreachable", f"{name}: Ironic does not answer: {error.message}") from error
        pause = min(pause * 2, _LONGEST_BACK_OFF_SECONDS)
        await asyncio.sleep(pause)


def for_good(name: str, machine_id: str, error: IronicRefusal) -> Failure | Refusal:
    """The end of an order that Ironic refuses for good."""
    if error.why is Why.NOT_FOUND:
        return Failure("node_unknown", f"{name}: Ironic has no node {machine_id}.", "Enrol the machine first.")
    if error.why is Why.DENIED:
        return Failure(
            "ironic_denied", f"{name}: Ironic refuses the satellite's credentials.", "Correct the credentials file."
        )
    return Failure("ironic_refused", f"{name}: Ironic refused: {error.message}", "Look at the node in Ironic.")


async def see_power(site: IronicSite, node: Node, wanted: str, order: Callable[[], Awaitable[None]]) -> None:
    """Bring the machine to power state `wanted` ("on", "off") and see it there, by the BMC's own word.

    A refused order is no error when the machine is there already; only what the BMC says counts. Raises
    Unanswered when it does not say `wanted` in time.
    """
    started, ordered = time.monotonic(), False
    seen = ""
    while True:
        seen = await site.reads.power(node)
        if seen == wanted:
            return
        if not ordered:
            try:
                await order()
                ordered = True
            except IronicRefusal as error:
                log.info("power_order_refused", machine=node.name, why=error.why.value, answer=error.message)
        if time.monotonic() - started > POWER_SECONDS:
            raise Unanswered(
                f"power_not_observed_{wanted}",
                f"{node.name}: ordered {wanted}, but after {POWER_SECONDS:.0f} s its BMC says {seen!r}.",
                f"Find out at the machine whether it is {wanted}; do not give it to anyone before.",
            )
        await asyncio.sleep(min(_FIRST_PAUSE_SECONDS + (time.monotonic() - started) / 10, _LONGEST_PAUSE_SECONDS))


async def see_off(site: IronicSite, node: Node) -> None:
    """Order the machine off and see it off."""
    await see_power(site, node, "off", lambda: site.client.power_off(node.id))


def refuse_foreign_maintenance(node: Node) -> None:
    """Raise Refusal when somebody put the node into maintenance, Failure when Ironic itself did for lost power."""
    if not node.maintenance or node.fault == "clean failure":
        return
    if node.fault:
        raise Failure(
            "bmc_unreachable",
            f"{node.name}: Ironic has set it aside because of {node.fault!r}; its BMC does not answer.",
            "Look at the machine's BMC; Ironic takes it back by itself when it answers.",
        )
    raise Refusal(
        "node_in_maintenance",
        f"{node.name} is in maintenance by somebody else's hand; it is left alone.",
        "Ask who set it; only they end it.",
    )
