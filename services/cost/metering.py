"""Metering: from node_started and node_stopped facts to usage lines. Pure.

Invariants: intervals are half-open [started_at, stopped_at) in UTC and whole seconds, so that adjacent ones add up
to the whole; a second of a machine in a cluster is billed at most once; a closed line is never changed: what is
learnt later becomes a correction line with its sign. A billing period is a UTC month and is closed for facts learnt
after its end. Prices are left to pricing.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from libs.contracts.ids import derived_uuid


@dataclass(frozen=True)
class NodeFact:
    """One node_started or node_stopped event. `at` is when it became true, `learnt_at` the event's own time."""

    event_id: str
    cluster_id: str
    tenant: str
    machine_id: str
    profile: str
    gpu_count: int
    at: datetime
    learnt_at: datetime


@dataclass(frozen=True)
class Meter:
    """Where metering of one machine in one cluster stands. `stopped_at` None: it runs.

    `started_at` is the true start; `line_started_at` that of the line, later when the start was learnt after its
    period had been closed.
    """

    cluster_id: str
    machine_id: str
    tenant: str
    profile: str
    gpu_count: int
    line_id: str
    started_at: datetime
    line_started_at: datetime
    stopped_at: datetime | None = None


@dataclass(frozen=True)
class Line:
    """One usage line. `sign` is -1 for a correction that takes back. `booked_at` is set on corrections only."""

    id: str
    cluster_id: str
    tenant: str
    machine_id: str
    profile: str
    gpu_count: int
    started_at: datetime
    stopped_at: datetime | None = None
    sign: int = 1
    correction_of: str | None = None
    booked_at: datetime | None = None

    @property
    def seconds(self) -> int | None:
        """Signed whole seconds; None while the line is open."""
        return None if self.stopped_at is None else self.sign * whole_seconds(self.started_at, self.stopped_at)


@dataclass(frozen=True)
class Change:
    """What one fact changes. `closed` is (line id, stopped_at). An anomaly never bills anything by itself."""

    meter: Meter | None
    added: tuple[Line, ...] = ()
    closed: tuple[str, datetime] | None = None
    anomaly: str = ""


def whole(moment: datetime) -> datetime:
    """Cut to the whole second. Both ends of every interval are cut, so that no second is lost or counted twice."""
    return moment.replace(microsecond=0)


def whole_seconds(start: datetime, stop: datetime) -> int:
    """Seconds of [start, stop), both cut to whole seconds first."""
    return int((whole(stop) - whole(start)).total_seconds())


def period_start(moment: datetime) -> datetime:
    """The first second of the UTC month that `moment` lies in."""
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def start(meter: Meter | None, fact: NodeFact) -> Change:
    """A machine's time begins to be billed. A repeated start changes nothing; the first one counts."""
    at = whole(fact.at)
    anomaly = ""
    if meter is not None:
        if at == meter.started_at:
            return Change(meter)
        if meter.stopped_at is None:
            return Change(
                meter, anomaly=f"started at {at.isoformat()}, but it runs since {meter.started_at.isoformat()}"
            )
        if at < meter.stopped_at:
            anomaly = f"started at {at.isoformat()}, before its last stop; billed from {meter.stopped_at.isoformat()}"
            at = meter.stopped_at
    line_start = max(at, period_start(fact.learnt_at))
    # By the event, not by the time: a start that was moved to an earlier stop may begin at the same second again.
    line_id = derived_uuid(fact.cluster_id, fact.machine_id, fact.event_id)
    opened = Meter(
        cluster_id=fact.cluster_id,
        machine_id=fact.machine_id,
        tenant=fact.tenant,
        profile=fact.profile,
        gpu_count=fact.gpu_count,
        line_id=line_id,
        started_at=at,
        line_started_at=line_start,
    )
    lines = [_line(opened, line_id, line_start, None)]
    if at < line_start:
        lines.append(_correction(opened, fact, at, line_start, sign=1))
    return Change(opened, added=tuple(lines), anomaly=anomaly)


def stop(meter: Meter | None, fact: NodeFact) -> Change:
    """A machine's time ends, or a later word on when it had ended."""
    if meter is None:
        return Change(None, anomaly="stopped without a start; nothing is billed")
    at = whole(fact.at)
    anomaly = ""
    if at < meter.started_at:
        anomaly = f"stopped at {at.isoformat()}, before its start {meter.started_at.isoformat()}; nothing is billed"
        at = meter.started_at
    stopped = replace(meter, stopped_at=at)
    if meter.stopped_at is not None:
        return Change(stopped, added=_moved_end(meter, fact, meter.stopped_at, at), anomaly=anomaly)
    # Until the end of the last closed period the machine was billed as running; that stays, and is corrected.
    line_end = max(at, period_start(fact.learnt_at), meter.line_started_at)
    return Change(
        stopped,
        added=_moved_end(meter, fact, line_end, at),
        closed=(meter.line_id, line_end),
        anomaly=anomaly,
    )


def _moved_end(meter: Meter, fact: NodeFact, billed_until: datetime, at: datetime) -> tuple[Line, ...]:
    if at < billed_until:
        return (_correction(meter, fact, at, billed_until, sign=-1),)
    if at > billed_until:
        return (_correction(meter, fact, billed_until, at, sign=1),)
    return ()


def _line(meter: Meter, id_: str, started_at: datetime, stopped_at: datetime | None) -> Line:
    return Line(
        id=id_,
        cluster_id=meter.cluster_id,
        tenant=meter.tenant,
        machine_id=meter.machine_id,
        profile=meter.profile,
        gpu_count=meter.gpu_count,
        started_at=started_at,
        stopped_at=stopped_at,
    )


def _correction(meter: Meter, fact: NodeFact, started_at: datetime, stopped_at: datetime, *, sign: int) -> Line:
    line = _line(meter, derived_uuid(meter.line_id, "correction", fact.event_id), started_at, stopped_at)
    return replace(line, sign=sign, correction_of=meter.line_id, booked_at=whole(fact.learnt_at))
