"""A fleet that lives for weeks in a second: machines moved by the real decisions, nodes that follow with a lag.

Pure and seeded. Each machine is a generator that yields the seconds until its next step; a heap plays them in order.
What its site sees of it comes late, as from a real Ironic; what people have to do, they do after hours.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count

from libs.contracts.ids import derived_uuid
from libs.contracts.inventory import Health, MachineState
from libs.contracts.replies import Problem
from services.inventory.model import claims, holds, renewal
from services.inventory.model.hardware import Mismatch
from services.inventory.model.machine import Change, Decision, Machine
from services.inventory.model.subject import Node, Subject
from services.inventory.states import FAIL, MACHINE, QUARANTINE, RELEASE
from tests.unit.services.inventory.machines import EVIDENCE, START, accept_command, inspection, machine

S = MachineState
Steps = Generator[float, None, None]
MINUTE, HOUR = 60.0, 3600.0
# Ironic's power sync, the satellite's look and the way to the hub together.
LAGS = (0.5, 14.0)
PROBLEM = Problem(code="test.broken", message="a part broke", next_step="Replace it, then retry.")


@dataclass
class Faults:
    """How often something goes wrong, per step. `lost`: a process ends without a word, and nobody works on."""

    mismatch: float = 0.05
    clean: float = 0.04
    verdict: float = 0.05
    deploy: float = 0.06
    lost: float = 0.0


@dataclass
class Living:
    """One machine, its node as it is and as it was last told, and who works on it."""

    machine: Machine
    node: Node | None = None
    told: Node | None = None
    worked_on: bool = False
    turn: int = 0
    history: list[tuple[datetime, S]] = field(default_factory=list)


class Fleet:
    """`size` machines from `seed`. `watch(living)` is called after every change of a machine or of what was told."""

    def __init__(self, size: int, seed: int, faults: Faults, watch: Callable[[Living], None] = lambda _: None) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = START
        self.deaf = False
        self._watch = watch
        self._heap: list[tuple[datetime, int, Callable[[], None]]] = []
        self._numbers = count()
        self.machines = [self._new(number) for number in range(size)]

    def _new(self, number: int) -> Living:
        serial = f"{1660223969975 + number}"
        one = machine(
            id=derived_uuid("fleet", str(number)),
            name=f"fra1-r1-gpu-{number:02}",
            serial=serial,
            theirs={"serial": serial, "site": "fra1", "device_type": "nvidia-dgx-h100"},
        )
        living = Living(one)
        self.after(self._between(0, 2 * HOUR), lambda: self._play(living, self._life(living)))
        return living

    # -- time ------------------------------------------------------------------------------------

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self._heap, (self.now + timedelta(seconds=seconds), next(self._numbers), do))

    def live(self, days: float) -> None:
        """Play until so many days have gone by."""
        end = self.now + timedelta(days=days)
        while self._heap and self._heap[0][0] <= end:
            self.now, _, do = heapq.heappop(self._heap)
            do()
        self.now = end

    def _play(self, living: Living, steps: Steps) -> None:
        turn = living.turn

        def go_on() -> None:
            # Whoever took the machine over in between goes on with it; this process is no longer waited for.
            if living.turn == turn and (seconds := next(steps, None)) is not None:
                self.after(seconds, go_on)

        go_on()

    def take_over(self, living: Living, steps: Steps, seconds: float = 0.0) -> None:
        """Another process works on the machine from now on."""
        living.turn += 1
        self.after(seconds, lambda: self._play(living, steps))

    def _between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def _happens(self, probability: float) -> bool:
        return self.random.random() < probability

    # -- machines and nodes ----------------------------------------------------------------------

    def move(self, living: Living, decision: Decision) -> None:
        """Take a decision that has to be a change."""
        assert isinstance(decision, Change), decision
        before, living.machine = living.machine, decision.machine
        if living.machine.state is not before.state:
            living.history.append((self.now, living.machine.state))
            self._limit(living)
        self._watch(living)

    def _limit(self, living: Living) -> None:
        """The clock's own step, as `periodic.end_overdue` takes it."""
        deadline = living.machine.deadline_at
        if deadline is None:
            return
        since = living.machine.state_since

        def end() -> None:
            if living.machine.state_since == since:
                self.take_over(living, self._overdue(living))

        self.after((deadline - self.now).total_seconds() + self._between(0, 5), end)

    def see(self, living: Living, **changes: object) -> None:
        """The node changes; the hub is told after a lag, unless it hears nothing."""
        before = living.node or Node("enroll", "off", None, "", "", "", False, "h100-sxm-8", "", None, self.now)
        living.node = replace(before, **changes)  # type: ignore[arg-type]
        self.after(self._between(*LAGS), lambda: self.tell(living))

    def tell(self, living: Living) -> None:
        """What the site sees now reaches the hub."""
        if living.node is not None and not self.deaf:
            living.told = replace(living.node, observed_at=self.now)
            self._watch(living)

    def subject(self, living: Living) -> Subject:
        """The machine as the invariants see it. A node that rests is told again every minute."""
        told = living.told
        if told is not None and not self.deaf and told == replace(living.node or told, observed_at=told.observed_at):
            told = replace(told, observed_at=max(told.observed_at, self.now - timedelta(seconds=60)))
        one = living.machine
        return Subject(
            id=one.id,
            name=one.name,
            site=one.site,
            state=one.state,
            state_since=one.state_since,
            claim_id=one.claim_id,
            operation_id=one.operation_id,
            operation_phase="running" if living.worked_on else "",
            worked_on=living.worked_on,
            profile=one.profile,
            shares="",
            node=told,
            site_heard=not self.deaf,
        )

    # -- lives -----------------------------------------------------------------------------------

    def _ids(self, living: Living) -> Iterator[str]:
        return (derived_uuid("run", living.machine.id, str(next(self._numbers))) for _ in count())

    def _lost(self, living: Living) -> bool:
        """The process ends without a word."""
        if self._happens(self.faults.lost):
            living.worked_on = False
            return True
        return False

    def _life(self, living: Living) -> Steps:
        """From EXPECTED, FAILED or QUARANTINED into the pool."""
        operation = next(self._ids(living))
        living.worked_on = True
        self.move(living, renewal.enrol(living.machine, operation, self.now))
        yield self._between(1, 20)
        if self._lost(living):
            return
        self.see(living, provision_state="verifying")
        yield self._between(1, 20)
        self.see(living, provision_state="manageable")
        yield self._between(20, 5 * MINUTE)
        self.see(living, provision_state="inspecting", power_state="on")
        yield self._between(1 * MINUTE, 10 * MINUTE)
        self.see(living, provision_state="manageable", power_state="off")
        bad = self._happens(self.faults.mismatch)
        mismatches = (Mismatch("GPU slot 4", "H100", "nothing"),) if bad else ()
        run = next(self._ids(living))
        self.move(
            living,
            renewal.record_inspection(
                living.machine,
                operation_id=operation,
                inspection=inspection(),
                mismatches=mismatches,
                sanitise_run_id=run,
                now=self.now,
            ),
        )
        if bad:
            living.worked_on = False
            yield from self._person(living)
        else:
            yield from self._wipe(living, operation, run)

    def _wipe(self, living: Living, operation: str, run: str) -> Steps:
        yield self._between(1, 10)
        if self._lost(living):
            return
        self.see(living, provision_state="cleaning", power_state="on")
        yield self._between(20 * MINUTE, 3 * HOUR)
        if self._happens(self.faults.clean):
            self.see(living, provision_state="clean failed", maintenance_owner="ironic", fault="clean failure")
            yield self._between(1, 5)
            self._fail(living, operation)
            yield from self._person(living)
            return
        self.see(living, provision_state="manageable", power_state="off", maintenance_owner="", fault="")
        yield self._between(1, 10)
        self.see(living, provision_state="available")
        yield self._between(1, 5)
        validate = next(self._ids(living))
        self.move(
            living,
            renewal.record_sanitised(
                living.machine,
                operation_id=operation,
                run_id=run,
                evidence=EVIDENCE,
                validate_run_id=validate,
                now=self.now,
            ),
        )
        yield from self._validate(living, operation, validate)

    def _validate(self, living: Living, operation: str, run: str) -> Steps:
        yield self._between(2 * MINUTE, 15 * MINUTE)
        if self._lost(living):
            return
        bad = self._happens(self.faults.verdict)
        self.move(
            living,
            renewal.record_verdict(
                living.machine,
                operation_id=operation,
                run_id=run,
                verdict="FAIL" if bad else "PASS",
                problem=PROBLEM if bad else None,
                fail_to="QUARANTINED" if living.machine.returned_claim_id else "FAILED",
                next_run_id=None,
                now=self.now,
            ),
        )
        living.worked_on = False
        self._watch(living)
        yield from self._person(living) if bad else self._offered(living)

    def _offered(self, living: Living) -> Steps:
        yield self._between(1 * MINUTE, 20 * HOUR)
        if self._happens(0.1):
            operation, run = next(self._ids(living)), next(self._ids(living))
            living.worked_on = True
            self.move(
                living,
                renewal.begin_revalidation(living.machine, operation_id=operation, validate_run_id=run, now=self.now),
            )
            yield from self._validate(living, operation, run)
            return
        yield from self._tenant(living)

    def _tenant(self, living: Living) -> Steps:
        claim = next(self._ids(living))
        command = accept_command(living.machine, claim_id=claim)
        self.move(living, claims.accept(living.machine, command, found_health=Health.UNKNOWN, now=self.now))
        yield self._between(1, 5 * MINUTE)
        if self._lost(living):
            return
        self.move(living, claims.begin_provisioning(living.machine, claim, self.now))
        yield self._between(1, 30)
        self.see(living, provision_state="deploying", instance_uuid=claim)
        yield self._between(1 * MINUTE, 20 * MINUTE)
        if self._lost(living):
            return
        if self._happens(self.faults.deploy):
            self.see(living, provision_state="deploy failed")
            yield self._between(1, 30)
            yield from self._back(living, claim, PROBLEM)
            return
        self.see(living, provision_state="active", power_state="on")
        yield self._between(1 * MINUTE, 10 * MINUTE)
        self.move(living, claims.assign(living.machine, claim, self.now))
        yield self._between(10 * MINUTE, 40 * HOUR)
        yield from self._back(living, claim, None)

    def _back(self, living: Living, claim: str, why: Problem | None) -> Steps:
        operation = next(self._ids(living))
        living.worked_on = True
        self.move(
            living,
            claims.begin_return(living.machine, claim, quarantine=why, operation_id=operation, now=self.now),
        )
        yield self._between(1, 30)
        if self._lost(living):
            return
        self.see(living, provision_state="deleting")
        yield self._between(10, 3 * MINUTE)
        self.see(living, provision_state="available", instance_uuid=None, power_state="off")
        yield self._between(1, 20)
        run = next(self._ids(living))
        released = claims.record_released(
            living.machine, operation_id=operation, power_state="off", sanitise_run_id=run, now=self.now
        )
        self.move(living, released)
        yield from self._wipe_or_quarantine(living, operation, run)

    def _wipe_or_quarantine(self, living: Living, operation: str, run: str) -> Steps:
        pending = living.machine.pending_quarantine is not None
        for seconds in self._wipe(living, operation, run):
            if pending and living.machine.state is S.QUARANTINED:
                living.worked_on = False
                self._watch(living)
                break
            yield seconds
        else:
            return
        yield from self._person(living)

    # -- what people and the clock do ------------------------------------------------------------

    def _fail(self, living: Living, operation: str | None) -> None:
        living.worked_on = False
        failed = renewal.mark_failed(living.machine, operation_id=operation, problem=PROBLEM, now=self.now)
        self.move(living, failed)

    def _overdue(self, living: Living) -> Steps:
        """The state lasted too long: its table names what happens then."""
        living.worked_on = False
        match MACHINE.limits[living.machine.state].then:
            case name if name == RELEASE:
                assert living.machine.claim_id is not None
                yield from self._back(living, living.machine.claim_id, None)
            case name if name == FAIL:
                self._fail(living, None)
                yield from self._person(living)
            case name if name == QUARANTINE:
                self.move(living, holds.quarantine(living.machine, PROBLEM, self.now))
                yield from self._person(living)

    def _person(self, living: Living) -> Steps:
        """Somebody reads the reason, repairs it and says go on: one call of the API, whatever the state."""
        yield self._between(10 * MINUTE, 20 * HOUR)
        one = living.machine
        if one.state is S.FAILED and one.failed_step == "release" and one.claim_id is not None:
            yield from self._back(living, one.claim_id, None)
        elif one.inspected_at is None or one.failed_step == "enrol":
            yield from self._life(living)
        else:
            operation, run = next(self._ids(living)), next(self._ids(living))
            living.worked_on = True
            renewed = renewal.begin_renewal(one, operation_id=operation, sanitise_run_id=run, now=self.now)
            self.move(living, renewed)
            yield from self._wipe(living, operation, run)
