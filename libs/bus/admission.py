"""What is let into the inbox: readable, of its own subject, neither from the future nor from before what we remember.

Pure, so that every kind of bad message is one case in a test. What is refused becomes a dead letter with its cause
at once; nothing that somebody sends can crash or stop a consumer. Whether a type is known is not asked here: while
versions are rolled out, another replica may know it (`UnknownMessage`, after its attempts).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache

from libs.contracts.causes import Cause
from libs.contracts.envelope import MAX_MESSAGE_BYTES, BadMessage, Envelope, decode
from libs.contracts.message import Message
from libs.contracts.replies import REPLY_TYPE
from libs.contracts.versions import known_class

# Services' clocks may differ by this much before their messages are refused; satellites stop at 30 s (hub_clock.py).
FUTURE_TOLERANCE = timedelta(minutes=5)
EPOCH_TYPE = "slipway.epoch"  # Announces that a service's database was restored; see restore.py.
_REPLY_SUBJECT = re.compile(r"^(?:cmd|obs\.[^.]+\.reply)\.[^.]+(?:\.reply)?\.v\d+$")
_EPOCH_SUBJECT = re.compile(r"^cmd\.[^.]+\.epoch\.v1$")


@dataclass(frozen=True)
class Known:
    """What a service remembers: no id of a message sent before `forgotten_before`; the highest epoch of each source."""

    forgotten_before: datetime
    epochs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """Why a message is not let in. `envelope` is None when it can't be read."""

    cause: Cause
    error: str
    envelope: Envelope | None = None


def admit(subject: str, payload: bytes, known: Known, now: datetime) -> Envelope | Refused:
    """The message when it may be worked, else why not."""
    if len(payload) > MAX_MESSAGE_BYTES:
        return Refused(Cause.OVERSIZED, f"{len(payload)} bytes; at most {MAX_MESSAGE_BYTES} go on the bus")
    try:
        envelope = decode(payload)
    except BadMessage as error:
        return Refused(Cause.UNREADABLE, str(error))
    objection = _objection(subject, envelope, known, now)
    return Refused(*objection, envelope) if objection else envelope


def _objection(subject: str, envelope: Envelope, known: Known, now: datetime) -> tuple[Cause, str] | None:
    if not subject_fits(subject, envelope):
        return Cause.WRONG_SUBJECT, f"{envelope.type} of site {envelope.site} does not belong on {subject}"
    if envelope.time > now + FUTURE_TOLERANCE:
        return (
            Cause.FUTURE_DATED,
            f"sent at {envelope.time.isoformat()}, {(envelope.time - now).total_seconds():.0f} s from now; "
            f"is the clock of {envelope.source} right?",
        )
    if envelope.time < known.forgotten_before:
        return (
            Cause.FORGOTTEN,
            f"sent at {envelope.time.isoformat()}; what was handled before {known.forgotten_before.isoformat()} "
            "is not remembered, so this may be a repeat",
        )
    newest = known.epochs.get(envelope.source, 0)
    if envelope.epoch < newest:
        return (
            Cause.STALE_EPOCH,
            f"sent in epoch {envelope.epoch} of {envelope.source}, which is in epoch {newest}: "
            "its database was restored from a backup meanwhile",
        )
    return None


def subject_fits(subject: str, envelope: Envelope) -> bool:
    """Whether the message came on its type's subject; true for types that are not known here."""
    if envelope.type == REPLY_TYPE:
        return _REPLY_SUBJECT.match(subject) is not None
    if envelope.type == EPOCH_TYPE:
        return _EPOCH_SUBJECT.match(subject) is not None
    cls = known_class(envelope)
    return cls is None or subject == _subject(cls, envelope.site, envelope.tenant)


@lru_cache(maxsize=4096)
def _subject(cls: type[Message], site: str, tenant: str) -> str:
    return cls.message_type.subject(site=site, tenant=tenant)
