"""A machine as inventory keeps it, whether it may be claimed, and how a change becomes events.

Invariant: every event raises `version` by one and carries the facts as of that version; `eligible` is
computed here and nowhere else. What may change when is decided in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic import Field

from libs.contracts.inventory import (
    Health,
    Hold,
    MachineDrifted,
    MachineFacts,
    MachineRegistered,
    MachineSanitised,
    MachineState,
    MachineStateChanged,
    MachineUpdated,
    MachineValidated,
)
from libs.contracts.replies import Outcome, Problem, Reply, ok, refused
from libs.contracts.site import Inspection
from services.inventory.states import MACHINE

MachineEvent = (
    MachineRegistered | MachineUpdated | MachineStateChanged | MachineSanitised | MachineValidated | MachineDrifted
)

SICK = (Health.SUSPECT, Health.FAILED)
# What a site sees from minute to minute. It changes nothing about whether and why the machine was chosen: a
# contradiction in it is drift, and that is a hold. Nor does the BMC's password matter to whoever chose it.
PASSING = {"power_state", "provision_state", "observed_at", "credentials_rotated_at"}
# Held by a claim: a tenant's data may be on it.
HELD_STATES = (MachineState.CLAIMED, MachineState.PROVISIONING, MachineState.ASSIGNED, MachineState.RELEASING)


class Machine(MachineFacts):
    """The published facts and what only inventory needs to decide.

    `proof_after`: a sanitise or a verdict counts only when it is newer than this moment (its last tenant, repair or
    hardware change). `theirs` is the source's word on the fields that identify it. `wanted_sanitise_run` and
    `wanted_validate_run` are the runs that we asked for and still await. `offer_version` is the version since which
    nothing changed that somebody who chose the machine may have relied on. `origin` is "manifest" for a machine that a
    person told of, blank for one of the source of record.
    """

    rack_id: str = ""
    origin: str = ""
    netbox_status: str = ""
    theirs: dict[str, str] = Field(default_factory=dict)
    source_problem: str = ""
    inspection: Inspection | None = None
    inspected_at: datetime | None = None
    proof_after: datetime
    pending_quarantine: Problem | None = None
    last_verdict: str = ""
    fault: str = ""
    offer_version: int = 1
    deadline_at: datetime | None = None
    wanted_sanitise_run: str | None = None
    wanted_validate_run: str | None = None
    rotation_id: str | None = None

    def facts(self) -> MachineFacts:
        """What others may know."""
        return MachineFacts.model_validate({name: getattr(self, name) for name in MachineFacts.model_fields})

    def with_(self, **changes: Any) -> Machine:
        """A copy with `changes`, checked, and with `eligible` computed again."""
        unknown = changes.keys() - Machine.model_fields.keys()
        if unknown:
            raise TypeError(f"a machine has no {sorted(unknown)}")
        changed = self.model_copy(update=changes)
        return changed.model_copy(update={"eligible": is_eligible(changed)})

    def hold(self, hold_id: str) -> Hold | None:
        return next((hold for hold in self.holds if hold.id == hold_id), None)


class HeldBy(Protocol):
    @property
    def owner(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Offered(Protocol):
    """As much of a machine as decides whether it may be claimed: the whole one, or a row of a list."""

    @property
    def state(self) -> MachineState: ...
    @property
    def holds(self) -> Sequence[HeldBy]: ...
    @property
    def health(self) -> Health: ...
    @property
    def claim_id(self) -> str | None: ...
    @property
    def profile(self) -> str | None: ...
    @property
    def sanitised_at(self) -> datetime | None: ...
    @property
    def validated_at(self) -> datetime | None: ...
    @property
    def proof_after(self) -> datetime: ...


def proven(machine: Offered) -> bool:
    """Rule 2: a wipe and a PASS of ours, both newer than the last tenant, repair and hardware change."""
    return (
        machine.sanitised_at is not None
        and machine.validated_at is not None
        and machine.sanitised_at > machine.proof_after
        and machine.validated_at > machine.proof_after
    )


def objections(machine: Offered) -> tuple[str, ...]:
    """Everything that keeps the machine from being claimed, in words; () when it may be."""
    found: list[str] = []
    if machine.state is not MachineState.AVAILABLE:
        found.append(f"it is {machine.state}")
    found += [f"held by {hold.owner}: {hold.reason}" for hold in machine.holds]
    if not proven(machine):
        found.append("it was not sanitised and validated since its last tenant, repair or hardware change")
    if machine.health in SICK:
        found.append(f"its health is {machine.health}")
    if machine.claim_id is not None:
        found.append("a claim has it")
    if machine.profile is None:
        found.append("no profile lists its device type")
    return tuple(found)


def is_eligible(machine: Machine) -> bool:
    return not objections(machine)


def _next_offer(machine: Machine) -> dict[str, int]:
    return {"version": machine.version + 1, "offer_version": machine.version + 1}


@dataclass(frozen=True)
class Change:
    """A machine and the events that led to it, oldest first; what the command is answered.

    No events: only silent facts changed, if any. A change may come with a "no": a machine that is found
    wanting moves to FAILED and the command is refused.
    """

    machine: Machine
    events: tuple[MachineEvent, ...] = field(default=())
    reply: Reply | None = None

    def _with(self, machine: Machine, event: MachineEvent) -> Change:
        return Change(machine, (*self.events, event), self.reply)

    def answer(self, **data: Any) -> Change:
        """Answer OK with `data` and the version."""
        return Change(self.machine, self.events, ok(version=self.machine.version, **data))

    def refuse(self, problem: Problem) -> Change:
        """Answer that it was refused because of `problem`, and keep the change."""
        return Change(self.machine, self.events, Reply(outcome=Outcome.REFUSED, problem=problem))

    def moved(self, event: str, now: datetime, **changes: Any) -> Change:
        """Move through the table. Raises IllegalTransition; leaving a state clears its reason unless one is given."""
        before = self.machine
        target = MACHINE.target(before.state, event)
        limit = MACHINE.limits.get(target)
        after = before.with_(
            **{
                "failed_step": "",
                "reason": None,
                **changes,
                "state": target,
                "state_since": now,
                "deadline_at": now + timedelta(seconds=limit.seconds) if limit else None,
                **_next_offer(before),
            }
        )
        return self._with(after, MachineStateChanged(machine=after.facts(), from_state=before.state, to_state=target))

    def noted(self, **changes: Any) -> Change:
        """Change facts other than the state; one event that names them, none when nothing differs."""
        before = self.machine
        after = before.with_(**changes)
        named = sorted(name for name in MachineFacts.model_fields if getattr(after, name) != getattr(before, name))
        if not named:
            return Change(after, self.events, self.reply)
        version = before.version + 1
        after = after.with_(version=version, offer_version=version if set(named) - PASSING else before.offer_version)
        return self._with(after, MachineUpdated(machine=after.facts(), changed=tuple(named)))

    def quietly(self, **changes: Any) -> Change:
        """Change what nobody else is told about (when something was last seen)."""
        return Change(self.machine.with_(**changes), self.events, self.reply)

    def sanitised(self, now: datetime, run_id: str, evidence: dict[str, object]) -> Change:
        after = self.machine.with_(sanitised_at=now, sanitise_run_id=run_id, **_next_offer(self.machine))
        return self._with(after, MachineSanitised(machine=after.facts(), run_id=run_id, evidence=evidence))

    def validated(self, now: datetime, run_id: str, suite: str) -> Change:
        after = self.machine.with_(validated_at=now, validate_run_id=run_id, **_next_offer(self.machine))
        return self._with(after, MachineValidated(machine=after.facts(), run_id=run_id, suite=suite))

    def drifted(
        self, drifted_field: str, ours: str, theirs: str, owner: str, *, field_owner: str = "", repair: str = ""
    ) -> Change:
        """Say that `theirs` contradicts `ours`. `owner` noticed it; `field_owner` decides which of the two is right."""
        after = self.machine.with_(**_next_offer(self.machine))
        drift = MachineDrifted(
            machine=after.facts(),
            field=drifted_field,
            ours=ours,
            theirs=theirs,
            owner=owner,
            field_owner=field_owner,
            repair=repair,
        )
        return self._with(after, drift)


@dataclass(frozen=True)
class Refusal:
    """A rule says no. Nothing changes; `reply` says why and what to do."""

    reply: Reply


Decision = Change | Refusal


def refusal(code: str, message: str, next_step: str = "", **details: Any) -> Refusal:
    return Refusal(refused(f"machine.{code}", message, next_step, **details))


def cannot(machine: Machine, event: str) -> Refusal | None:
    """The refusal when the table does not list `event` for the machine's state; None when it does."""
    if MACHINE.allows(machine.state, event):
        return None
    ways = ", ".join(MACHINE.events(machine.state)) or "nothing"
    return refusal(
        "wrong_state",
        f"{machine.name} is {machine.state}, which can't {event.replace('_', ' ')}",
        f"What it can do now: {ways}.",
        state=machine.state.value,
        event=event,
    )


def stale(machine: Machine, message: str) -> Refusal:
    """The command is about an older operation or claim; nothing is done."""
    problem = Problem(code="machine.stale", message=f"{machine.name}: {message}", details={"version": machine.version})
    return Refusal(Reply(outcome=Outcome.STALE, problem=problem))
