"""Why a message becomes a dead letter, as the API, the metrics and the history name it."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why a message became a dead letter. Permanent codes."""

    HANDLER_FAILED = "handler_failed"  # Its handler failed at every attempt.
    UNKNOWN_TYPE = "unknown_type"  # No running version of the service handles its type and version.
    UNREADABLE = "unreadable"  # Not JSON, or a field of the envelope is missing or wrong.
    OVERSIZED = "oversized"  # More bytes than a message of ours may have.
    WRONG_SUBJECT = "wrong_subject"  # It came on a subject that is not its type's.
    WRONG_SENDER = "wrong_sender"  # Its sender has nothing to say on that subject.
    FUTURE_DATED = "future_dated"  # Sent later than now: its sender's clock, or its sender, is wrong.
    FORGOTTEN = "older_than_memory"  # So old that nobody can tell whether it was handled before.
    STALE_EPOCH = "stale_epoch"  # Sent before its sender's database was restored from a backup.
    BEFORE_RESTORE = "before_restore"  # Waited in the backup that this database was restored from.
