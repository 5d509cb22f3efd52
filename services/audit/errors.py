"""Permanent codes of audit's refusals."""

from __future__ import annotations

NO_SIGNING_KEY = "audit.no_signing_key"
NOTHING_TO_SIGN = "checkpoint.nothing_new"
RETENTION_CHANGED = "retention.changed_meanwhile"
HOLD_RELEASED = "hold.released_already"
IN_THE_FUTURE = "history.in_the_future"
NOT_YET = "history.not_yet"
REMOVED = "history.removed"
AMBIGUOUS = "history.ambiguous_name"
