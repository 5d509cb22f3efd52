"""What a run does to a machine's findings. Pure: raise, see again, clear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.validation import CheckResult, FindingFacts
from services.validation.model import FindingKey, Severity, cleared_by, raised_by


@dataclass(frozen=True)
class FindingChanges:
    raised: tuple[FindingFacts, ...] = ()
    seen_again: tuple[FindingFacts, ...] = ()
    cleared: tuple[FindingFacts, ...] = ()


def changes(
    known: Sequence[FindingFacts],
    results: Sequence[CheckResult],
    *,
    run_id: str,
    machine_id: str,
    now: datetime,
    severity_of: Callable[[str], Severity],
    new_id: Callable[[], str],
) -> FindingChanges:
    """`known` are the machine's open findings. What a run says nothing about stays as it is."""
    open_by_key = {FindingKey(finding.check, finding.component): finding for finding in known}
    raised, again = [], []
    for key, result in raised_by(results).items():
        said = {"message": result.message, "expected": result.expected, "found": result.found, "run_id": run_id}
        old = open_by_key.get(key)
        if old is not None:
            more = {"last_seen_at": now, "seen_count": old.seen_count + 1, "version": old.version + 1}
            again.append(old.model_copy(update={**said, **more}))
            continue
        raised.append(
            FindingFacts(
                id=new_id(),
                machine_id=machine_id,
                check=key.check,
                component=key.component,
                severity=severity_of(key.check),
                message=result.message,
                expected=result.expected,
                found=result.found,
                run_id=run_id,
                first_seen_at=now,
                last_seen_at=now,
                version=1,
            )
        )
    cleared = [
        open_by_key[key].model_copy(update={"open": False, "run_id": run_id, "version": open_by_key[key].version + 1})
        for key in sorted(cleared_by(results), key=lambda key: (key.check, key.component))
        if key in open_by_key
    ]
    return FindingChanges(tuple(raised), tuple(again), tuple(cleared))
