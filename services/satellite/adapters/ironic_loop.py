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

from libs.contracts.provision_states import PROVISION_STATES, Course, Next, names
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
RESTING = names(Course.RESTS, Course.FAILED, Course.HELD)
# States from which "manage" leads to manageable; none of them says anything about the disks.
TO_MANAGEABLE = frozenset(state.name for state in PROVISION_STATES.values() if state.to_manageable is Next.MANAGE)
IN_USE = names(occupied=True)


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
            _refuse_unknown_state(node)
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
    if error.why is Why.PROTECTED:
        return Failure(
            "node_protected",
            f"{name} is protected in Ironic: {error.message}",
            "Ask who protected it; when they have ended that (unset the node's `protected`), retry the machine.",
        )
    if error.why is Why.RETIRED:
        return Failure(
            "node_retired",
            f"{name} is retired in Ironic: {error.message}",
            "Decommission the machine, or unset the node's `retired` and retry it.",
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


def _refuse_unknown_state(node: Node) -> None:
    """Raise Failure for a state that this release does not know: nothing may be concluded from it."""
    if node.provision_state not in PROVISION_STATES:
        raise Failure(
            "ironic_state_unknown",
            f"{node.name} is {node.provision_state!r} in Ironic, a state that this release does not know.",
            "Update the site's satellite to a release that knows this Ironic.",
        )


def refuse_held(node: Node) -> None:
    """Raise Failure when a step of somebody else's asked the node to hold: waiting for it could last for ever."""
    if PROVISION_STATES[node.provision_state].course is Course.HELD:
        raise Failure(
            "node_on_hold",
            f"{node.name} is in {node.provision_state!r}: a step asked to hold, and no step of ours does.",
            "Whoever ordered that step ends it (provision verb unhold or abort); then retry the machine.",
        )


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
