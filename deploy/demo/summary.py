"""What the demo found, as data, and whether it is right: `ok` is computed from the figures, never set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any


@dataclass
class Summary:
    """Everything that `var/demo/summary.json` holds. Figures are None until they were measured."""

    site: str
    machines: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    crash: dict[str, Any] = field(default_factory=dict)
    release: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    topics = ("machines", "cluster", "crash", "release", "cost", "audit")
    file = "summary.json"

    def wrong(self) -> list[str]:
        """What is not as it must be; empty when all is well. A figure that is missing is wrong."""
        checks = {**self._machine_checks(), **self._work_checks(), **self._book_checks()}
        found = [name for name, good in checks.items() if not good]
        return [f"stopped: {self.error}", *found] if self.error else found

    def _machine_checks(self) -> dict[str, bool]:
        m = self.machines
        return {
            "13 machines expected": m.get("expected") == 13,
            "12 machines enrolled": m.get("enrolled") == 12,
            "1 machine refused, with a reason that names the part": m.get("refused") == 1
            and "GPU" in str(m.get("refused_reason")),
            "the failed machine is in quarantine with its reason": bool(self.cluster.get("quarantined_reason")),
            "all other machines AVAILABLE at the end": m.get("available_at_end") == 11,
        }

    def _work_checks(self) -> dict[str, bool]:
        c, k, r = self.cluster, self.crash, self.release
        return {
            "cluster of 4 nodes READY": c.get("nodes") == 4 and (c.get("ready_seconds") or 0) > 0,
            "one node swapped": c.get("swapped") == 1,
            "log-in works on every node": c.get("logged_in") == 4,
            "another tenant sees nothing": c.get("hidden_from_others") is True,
            "the operation went on after kill -9": k.get("resumed") is True,
            "no machine deployed twice": k.get("double_deploys") == 0,
            "every returned machine sanitized": r.get("sanitized") == r.get("returned") == 6,
            "every returned machine validated again": r.get("revalidated") == r.get("returned"),
        }

    def _book_checks(self) -> dict[str, bool]:
        metered, recomputed = self.cost.get("metered"), self.cost.get("recomputed")
        a = self.audit
        return {
            "cost recomputed from the log alone is equal": bool(metered) and metered == recomputed,
            "something was billed": _positive(self.cost.get("total")),
            "no gap in any service's sequence": a.get("gaps") == 0 and (a.get("events") or 0) > 0,
            "no event altered, removed or put in": a.get("altered") == 0 and (a.get("verified") or 0) > 0,
            "projections rebuilt with equal digests": (a.get("projections_rebuilt") or 0) > 0
            and a.get("digests_equal") is True,
            "a machine's life can be read": (a.get("timeline_entries") or 0) > 0,
        }

    def document(self) -> dict[str, Any]:
        """The summary as JSON-ready data, `ok` first."""
        wrong = self.wrong()
        body: Mapping[str, Any] = asdict(self)
        return {"ok": not wrong, "wrong": wrong, **body}


def _positive(amount: Any) -> bool:
    try:
        return Decimal(str(amount)) > 0
    except ArithmeticError:
        return False
