"""What can go wrong on the bus, told apart by what happens next."""

from __future__ import annotations


class Transient(Exception):
    """Not now: the message is tried again later, as often as needed (a lock, a peer that is away)."""


class Oversize(ValueError):
    """A message is larger than the bus carries; its content belongs in the object store."""
