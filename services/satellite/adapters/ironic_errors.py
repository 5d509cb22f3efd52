"""Ironic's refusals told apart. Its 409 means at least five things and only one of them is "later".

Ironic gives no machine-readable code, so its words are read here, in one table and nowhere else. Words nobody
knows are a conflict that is not retried. Source: openstack/ironic ironic/common/exception.py (39).
"""

from __future__ import annotations

import re
from enum import StrEnum


class Why(StrEnum):
    """Why Ironic did not do what it was asked."""

    BUSY = "busy"  # Locked, in transition or overloaded: the same request may work in a moment.
    WRONG_STATE = "wrong_state"  # Not from this state: read the node again and decide anew.
    NODE_ASSOCIATED = "node_associated"  # The node carries an instance; read which.
    INSTANCE_ELSEWHERE = "instance_elsewhere"  # Our instance sits on another node.
    MAC_EXISTS = "mac_exists"
    NODE_EXISTS = "node_exists"
    ALLOCATION_EXISTS = "allocation_exists"  # Our own retry, most likely: fetch it by its name.
    PROTECTED = "protected"  # Somebody protects the node against undeploy, rebuild and deletion.
    RETIRED = "retired"  # Somebody retired the node: it is never made available again.
    CONFLICT = "conflict"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    DENIED = "denied"
    UNREACHABLE = "unreachable"  # No answer: it may have been done all the same.


_WORDS: tuple[tuple[int, str, Why], ...] = (
    (409, r"is locked by host", Why.BUSY),
    (409, r"can not be updated while a state transition", Why.BUSY),
    (409, r"[Ii]nstance \S+ is already associated with a node", Why.INSTANCE_ELSEWHERE),
    (409, r"is associated with instance", Why.NODE_ASSOCIATED),
    (409, r"[Pp]ort with MAC address", Why.MAC_EXISTS),
    (409, r"[Nn]ode with (UUID|name)", Why.NODE_EXISTS),
    (409, r"[Aa]llocation with (UUID|name)", Why.ALLOCATION_EXISTS),
    (403, r"is protected and cannot be", Why.PROTECTED),
    (400, r"because it is retired", Why.RETIRED),
    (400, r"can not be performed on node", Why.WRONG_STATE),
    (400, r"in maintenance mode", Why.WRONG_STATE),
)
_BY_STATUS = {
    400: Why.INVALID,
    401: Why.DENIED,
    403: Why.DENIED,
    404: Why.NOT_FOUND,
    409: Why.CONFLICT,
    503: Why.BUSY,
}


class IronicRefusal(Exception):
    """One refused or unanswered request. `message` is Ironic's own and never holds a secret of ours."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why = why
        self.message = message


def refusal(status: int | None, message: str) -> IronicRefusal:
    """What an answer with HTTP `status` means; None: there was no answer."""
    text = message.strip() or f"HTTP {status}"
    if status is None:
        return IronicRefusal(Why.UNREACHABLE, text)
    for known, words, why in _WORDS:
        if status == known and re.search(words, text):
            return IronicRefusal(why, text)
    if status >= 500 and status != 503:
        # A gateway that lost Ironic, or a bug in it: the request may have been done.
        return IronicRefusal(Why.UNREACHABLE, text)
    return IronicRefusal(_BY_STATUS.get(status, Why.INVALID), text)
