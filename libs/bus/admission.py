"""What is let into the inbox: readable, of its own subject and sender, neither from the future nor forgotten.

The broker authenticates by subjects: who may publish on one (decision 0017). An envelope is what its sender wrote, so
the sender that it names must be one that may speak on the subject it came on.

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
SATELLITE = "/slipway/satellite"
_SERVICE = re.compile(r"^/slipway/[a-z][a-z0-9_-]*$")
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
        return Cause.WRONG_SUBJECT, _misplaced(subject, envelope)
    objection = sender_objection(subject, envelope)
    if objection is not None:
        return Cause.WRONG_SENDER, objection
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


def _misplaced(subject: str, envelope: Envelope) -> str:
    return f"{envelope.type} of site {envelope.site} does not belong on {subject}"


def sender_objection(subject: str, envelope: Envelope) -> str | None:
    """Why the sender that the message names can't be the one who spoke on its subject; None when it can.

    A site's words come from its satellite and are about that site; an event comes from its owner; a command, also one
    to a site, from a service. Which service it was that sent a command, no subject tells.
    """
    kind, *tokens = subject.split(".")
    source = envelope.source
    if kind == "obs":
        site = tokens[0] if tokens else ""
        fits = source == SATELLITE and envelope.site == site
        wanted = f"the satellite of {site}"
    elif kind == "evt":
        owner = tokens[2] if len(tokens) > 2 else ""
        fits, wanted = source == f"/slipway/{owner}", f"/slipway/{owner}"
    elif kind == "cmd" and envelope.type == EPOCH_TYPE:
        fits, wanted = source == f"/slipway/{envelope.subject}", "the service whose epoch it is"
    else:
        fits, wanted = source != SATELLITE and _SERVICE.match(source) is not None, "a service"
    return None if fits else f"{source} of site {envelope.site} can't have spoken on {subject}: {wanted} does"


def event_objection(subject: str, position: int, envelope: Envelope) -> str | None:
    """Why what lies at `position` of an event stream is no event of its owner; None when it is.

    The owner's sequencer puts event number N at position N (decision 0009).
    """
    if envelope.sequence is None or int(envelope.sequence) != position:
        return f"it says that it is event {envelope.sequence}, and lies at {position}"
    return sender_objection(subject, envelope) or (
        None if subject_fits(subject, envelope) else _misplaced(subject, envelope)
    )


def site_command_objection(subject: str, envelope: Envelope) -> str | None:
    """Why what came on a site's command subject is no command for that site; None when it is."""
    kind, _, rest = subject.partition(".")
    if kind != "site" or envelope.site != rest.partition(".")[0]:
        return _misplaced(subject, envelope)
    return sender_objection(subject, envelope) or (
        None if subject_fits(subject, envelope) else _misplaced(subject, envelope)
    )


def epoch_counts(envelope: Envelope) -> bool:
    """Whether the sender's epoch is to be remembered: satellites have no database that could be restored, and all of
    them are one sender, so that one of them could silence the others."""
    return envelope.source != SATELLITE


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
