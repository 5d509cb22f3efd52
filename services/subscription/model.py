"""Decisions about subscribers and webhooks: what may be subscribed to, when to try again, when to give up. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import combinations
from typing import Any
from urllib.parse import urlsplit

import libs.contracts.all  # noqa: F401  (so that every event is declared)
from libs.contracts.envelope import NONE_TOKEN
from libs.contracts.message import Kind, registry

STREAM = "EVT"  # All events of all services.
MAX_SUBJECTS = 8
_TOKEN = re.compile(r"^(?:[a-zA-Z0-9_-]{1,63}|\*)$")
TENANT_TOKEN = 2
CIRCUIT_FAILURES = 3  # So many failures in a row, and only one event is tried at a time until one gets through.
GONE = 410  # RFC 9110: the receiver says that it will not come back.


def subject_problems(subjects: Sequence[str], tenant: str) -> list[str]:
    """What is wrong with the subjects for a subscriber of `tenant` ("-": of the installation); empty when nothing."""
    if not subjects:
        return ["name at least one subject"]
    if len(subjects) > MAX_SUBJECTS:
        return [f"at most {MAX_SUBJECTS} subjects are allowed"]
    found = [problem for subject in subjects if (problem := _subject_problem(subject, tenant))]
    if not found:
        pairs = combinations(subjects, 2)
        found = [f"{one!r} and {other!r} overlap; keep the wider one" for one, other in pairs if overlap(one, other)]
    return found


def _subject_problem(subject: str, tenant: str) -> str:
    tokens = subject.split(".")
    inner = tokens[:-1] if tokens[-1] == ">" else tokens
    if not inner or not all(_TOKEN.match(token) for token in inner):
        return (
            f"{subject!r} is no subject: tokens of letters, digits, - and _, or *, with dots between; > only at the end"
        )
    if inner[0] != "evt":
        return f"{subject!r} does not begin with 'evt.'; only events can be subscribed to"
    if tenant != NONE_TOKEN and (len(inner) <= TENANT_TOKEN or inner[TENANT_TOKEN] != tenant):
        return f"{subject!r} reaches beyond tenant {tenant!r}; begin with 'evt.*.{tenant}.'"
    if not any(overlap(subject, known) for known in _known_subjects()):
        return (
            f"{subject!r} matches no event that there is: evt.<site>.<tenant>.<service>.<entity>.<event>.v<N>, "
            "the last of them may be left out for '>'; the catalogue lists all"
        )
    return ""


@cache
def _known_subjects() -> frozenset[str]:
    """The subject of every event that is declared, of any site and tenant."""
    kinds = (message.message_type for message in registry().values())
    return frozenset(kind.subject(site="*", tenant="*") for kind in kinds if kind.kind is Kind.EVENT)


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns (a consumer refuses such filters)."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)  # A longer one wants more tokens than the other has, also with > at its end.


def url_problem(url: str, *, plain_http: bool) -> str:
    """What is wrong with a webhook's URL, "" when nothing. Where its name leads is looked at when it is used."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if url != url.strip() or any(char.isspace() or not char.isprintable() for char in url):
        return "contains blanks or control characters"
    if parts.scheme != "https" and not (parts.scheme == "http" and plain_http):
        return "must begin with https://"
    if not host:
        return "names no host"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user or a password; requests are signed instead"
    return "must not contain a fragment (#)" if parts.fragment else ""


@dataclass(frozen=True)
class Interest:
    """Which events a webhook wants; empty means all."""

    services: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    entities: frozenset[str] = frozenset()

    def matches(self, envelope: Mapping[str, Any]) -> bool:
        service = str(envelope["source"]).rpartition("/")[2]
        return (
            (not self.services or service in self.services)
            and (not self.types or envelope["type"] in self.types)
            and (not self.entities or envelope["subject"] in self.entities)
        )


@dataclass(frozen=True)
class Patience:
    """How long failures are borne. Seconds."""

    first_retry: float
    longest_retry: float
    attempts: int
    disable_after: float

    def wait(self, attempts: int, asked: float | None = None) -> timedelta:
        """How long to wait after so many attempts: doubling, or what the receiver asked for, within the longest."""
        doubling = self.first_retry * 2.0 ** min(attempts - 1, 30)
        return timedelta(seconds=min(max(doubling, asked or 0.0), self.longest_retry))


@dataclass(frozen=True)
class Streak:
    """A webhook's failures in a row; both empty while it works."""

    failures: int = 0
    since: datetime | None = None

    def after(self, succeeded: bool, now: datetime) -> Streak:
        return Streak() if succeeded else Streak(self.failures + 1, self.since or now)

    @property
    def open(self) -> bool:
        """Whether the receiver as a whole seems to be away: then nothing new is read, and one event is tried."""
        return self.failures >= CIRCUIT_FAILURES


def disable_reason(streak: Streak, status: int | None, now: datetime, patience: Patience) -> str:
    """Why the webhook must be disabled now; "" while it need not be."""
    if status == GONE:
        return "the receiver answered 410 Gone"
    if streak.open and streak.since is not None and (now - streak.since).total_seconds() >= patience.disable_after:
        return f"nothing got through since {streak.since.isoformat(timespec='seconds')} ({streak.failures} failures)"
    return ""


def gives_up(attempts: int, streak: Streak, patience: Patience) -> bool:
    """Whether one event is given up: it was tried often while others got through."""
    return attempts >= patience.attempts and not streak.open


def consumer_name(subscriber_id: str, generation: int) -> str:
    """The durable's name. With a new generation the old one goes, and with it whatever old credentials could do."""
    return f"{subscriber_id}_g{generation}"
