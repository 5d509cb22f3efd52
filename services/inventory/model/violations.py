"""From judgements to violations: a contradiction becomes one when it has lasted longer than its grace period.

How long contradictions last in normal work is learned for each invariant and site from those that went by
themselves, so that a slow site is not alarmed about and a quick one is told early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.contracts.ids import derived_uuid
from services.inventory.model.invariants import BY_ID, LONGEST_GRACE, Invariant
from services.inventory.model.subject import Contradiction, Judgement, Subject, Unknown

# A contradiction may last this much longer than the longest that went by itself.
MARGIN = 1.5
# What was once slow is forgotten over some dozens of normal transitions.
FADING = 0.98
_NEVER_SEEN = timedelta(0)

Key = tuple[str, str]  # Invariant id, subject id.


@dataclass(frozen=True)
class Violation:
    """A contradiction that lasts. `opened_at` None: still within its grace period, and told to nobody."""

    id: str
    invariant: str
    subject: str
    name: str
    site: str
    ours: str
    theirs: str
    first_seen_at: datetime
    last_seen_at: datetime
    opened_at: datetime | None = None
    cleared_at: datetime | None = None
    repaired_by: str = ""
    repair_operation_id: str | None = None
    version: int = 0

    @property
    def rule(self) -> Invariant:
        return BY_ID[self.invariant]


@dataclass(slots=True)
class Coverage:
    """Of one invariant at one site: how many subjects were judged, how many could not be, and why not."""

    judged: int = 0
    unknown: int = 0
    why: str = ""


@dataclass
class Round:
    """What one look at everything found: rows to write, rows to forget, and what was learned."""

    changed: list[Violation] = field(default_factory=list)
    forgotten: list[Violation] = field(default_factory=list)
    coverage: defaultdict[Key, Coverage] = field(default_factory=lambda: defaultdict(Coverage))
    lasted: dict[Key, timedelta] = field(default_factory=dict)


def grace_of(invariant: Invariant, longest: timedelta) -> timedelta:
    """The declared grace, or more when contradictions of this kind have gone by themselves later than that."""
    return max(invariant.grace, min(longest * MARGIN, LONGEST_GRACE))


def learned(before: timedelta, lasted: timedelta) -> timedelta:
    """The longest that a contradiction lasted in normal work, fading."""
    return max(lasted, before * FADING)


def look(
    subjects: Iterable[Subject],
    known: Mapping[Key, Violation],
    longest: Mapping[Key, timedelta],
    now: datetime,
    into: Round | None = None,
) -> Round:
    """Judge every subject by every invariant. `known`: violations not cleared; `longest` by (invariant, site)."""
    found = into or Round()
    for subject in subjects:
        for invariant in BY_ID.values():
            judgement = invariant.judge(subject, now)
            before = known.get((invariant.id, subject.id))
            if judgement is not None or before is not None:
                _note(found, invariant, subject, judgement, before, longest, now)
            else:
                found.coverage[invariant.id, subject.site].judged += 1
    return found


def _note(
    found: Round,
    invariant: Invariant,
    subject: Subject,
    judgement: Judgement,
    before: Violation | None,
    longest: Mapping[Key, timedelta],
    now: datetime,
) -> None:
    coverage = found.coverage[invariant.id, subject.site]
    if isinstance(judgement, Unknown):
        coverage.unknown += 1
        coverage.why = judgement.why
        _keep(found, before)
        return
    coverage.judged += 1
    if judgement is None:
        if before is not None:
            _clear(found, before, now)
        return
    grace = grace_of(invariant, longest.get((invariant.id, subject.site), _NEVER_SEEN))
    _contradicted(found, invariant, subject, judgement, before, grace, now)


def _keep(found: Round, before: Violation | None) -> None:
    """Silence clears nothing; but what was never told must be seen without a break, so it begins anew."""
    if before is not None and before.opened_at is None:
        found.forgotten.append(before)


def _clear(found: Round, before: Violation, now: datetime) -> None:
    if before.opened_at is None:
        key = (before.invariant, before.site)
        found.lasted[key] = max(found.lasted.get(key, _NEVER_SEEN), now - before.first_seen_at)
        found.forgotten.append(before)
        return
    found.changed.append(replace(before, cleared_at=now, version=before.version + 1))


def _contradicted(
    found: Round,
    invariant: Invariant,
    subject: Subject,
    judgement: Contradiction,
    before: Violation | None,
    grace: timedelta,
    now: datetime,
) -> None:
    if before is None:
        before = Violation(
            id=derived_uuid("violation", invariant.id, subject.id, now.isoformat()),
            invariant=invariant.id,
            subject=subject.id,
            name=subject.name,
            site=subject.site,
            ours=judgement.ours,
            theirs=judgement.theirs,
            first_seen_at=now,
            last_seen_at=now,
        )
    seen = replace(before, ours=judgement.ours, theirs=judgement.theirs, last_seen_at=now)
    if seen.opened_at is None and now - seen.first_seen_at >= grace:
        seen = replace(seen, opened_at=now, version=1)
    found.changed.append(seen)


def gone(known: Mapping[Key, Violation], seen: set[str], now: datetime) -> Round:
    """What no subject stands for any more (a node without a machine that was removed) has ended."""
    found = Round()
    for violation in known.values():
        if violation.subject not in seen:
            _clear(found, violation, now)
    return found
