"""What can go wrong on the bus, told apart by what happens next."""

from __future__ import annotations

from libs.contracts.causes import Cause


class Transient(Exception):
    """Not now: the message is tried again later, as often as needed (a lock, a peer that is away)."""


class Oversize(ValueError):
    """A message is larger than the bus carries; its content belongs in the object store."""


class UnknownMessage(LookupError):
    """No handler for a message's type and version. Another replica may be newer, so it is tried again for a while."""


def cause_of(error: BaseException) -> Cause:
    """Why a message whose handling raised `error` ends as a dead letter."""
    return Cause.UNKNOWN_TYPE if isinstance(error, UnknownMessage) else Cause.HANDLER_FAILED
