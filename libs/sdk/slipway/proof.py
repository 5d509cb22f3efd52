"""What proves that history was not altered: digest chains, signed statements, and the walk that compares them. Pure.

Every service's events form a chain: an event's digest is SHA-256 over the digest before it and its own text. A
checkpoint is a signed word on where a chain stood; a removal is a signed word on what retention took out of it. Whoever
holds a copy of the events, the checkpoints and the public key can check all of it without asking anybody.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FIRST_DIGEST = ""
CHECKPOINT, REMOVAL = "slipway.audit.checkpoint/1", "slipway.audit.removal/1"
_DIGEST_KEY = ',"chaindigest":"'
_HEX_DIGITS = 64


def chained(previous: str, text: str) -> str:
    """SHA-256 over the digest before and the event's text, in hex."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def with_digest(text: str, digest: str) -> str:
    """The line of an export: the event's text with its digest as its last attribute, `chaindigest`."""
    return f'{text[:-1]}{_DIGEST_KEY}{digest}"}}'


def without_digest(line: str) -> tuple[str, str | None]:
    """The event's own text and its digest; None when the line has none."""
    start = len(line) - len(_DIGEST_KEY) - _HEX_DIGITS - 2
    if start > 0 and line.startswith(_DIGEST_KEY, start) and line.endswith('"}'):
        return line[:start] + "}", line[start + len(_DIGEST_KEY) : -2]
    return line, None


# -- signed statements ------------------------------------------------------------------------------


def statement(kind: str, facts: Mapping[str, Any]) -> str:
    """What is signed: JSON with sorted keys and no blanks, its kind named so that one can't pass for another."""
    return json.dumps({"kind": kind, **facts}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def key_id(public_key: Mapping[str, Any]) -> str:
    """The RFC 7638 thumbprint of an Ed25519 key (RFC 8037)."""
    members = {name: public_key.get(name) for name in ("crv", "kty", "x")}
    return unpadded(hashlib.sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).digest())


def unpadded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def padded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def is_signed(public_key: Mapping[str, Any], text: str, signature: str) -> bool:
    """Whether `signature` is the key's Ed25519 signature of `text`; a malformed key or signature is none."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(padded(str(public_key["x"]))).verify(padded(signature), text.encode())
    except (InvalidSignature, ValueError, KeyError, TypeError):
        return False
    return True


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it must be. `sequence` is 0 when it is about a service's chain as a whole."""

    kind: str
    service: str
    sequence: int
    expected: str
    found: str
    message: str

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


Keys = Mapping[str, Mapping[str, Any]]


def trusted_keys(documents: Iterable[Mapping[str, Any]]) -> Keys:
    """Keys by their thumbprint: what a key calls itself proves nothing."""
    return {key_id(key): key for key in documents}


@dataclass(frozen=True)
class Statements:
    """Statements of one kind whose signatures hold, and what is wrong with the others."""

    good: tuple[Mapping[str, Any], ...]
    problems: tuple[Problem, ...]


def read_statements(kind: str, signed: Iterable[Mapping[str, Any]], keys: Keys) -> Statements:
    """Take signed documents ({statement, key_id, signature}) apart. Only what was signed is believed."""
    good, problems = [], []
    for document in signed:
        facts, why = _believed(kind, document, keys)
        if facts is not None:
            good.append(facts)
            continue
        place = document.get("last_sequence", document.get("first_sequence", 0))
        what = "checkpoint" if kind == CHECKPOINT else "removal"
        problems.append(
            Problem(
                f"forged_{what}",
                str(document.get("service", "")),
                place if isinstance(place, int) else 0,
                f"a signature by one of the keys {', '.join(sorted(keys)) or '(none is known)'}",
                f"key {document.get('key_id')!r}",
                f"The {what} is not to be believed: {why}.",
            )
        )
    return Statements(tuple(good), tuple(problems))


def _believed(kind: str, document: Mapping[str, Any], keys: Keys) -> tuple[dict[str, Any] | None, str]:
    text, signature = document.get("statement"), document.get("signature")
    key = keys.get(str(document.get("key_id")))
    if key is None:
        return None, "it names a key that is not among the trusted ones"
    if not isinstance(text, str) or not isinstance(signature, str) or not is_signed(key, text, signature):
        return None, "its signature does not fit what it says"
    try:
        facts = json.loads(text)
    except ValueError:
        return None, "what was signed is not JSON"
    if not isinstance(facts, dict) or facts.get("kind") != kind:
        return None, f"what was signed is not a {kind}"
    differing = [name for name in facts if name in document and document[name] != facts[name]]
    if differing:
        return None, f"it says another {', '.join(differing)} than what was signed"
    return facts, ""


def checkpoint_gaps(checkpoints: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Checkpoints that are missing between others of their service: each names the digest of the one before."""
    before: dict[str, Mapping[str, Any]] = {}
    for checkpoint in sorted(checkpoints, key=lambda each: (each["service"], each["number"])):
        service, number = str(checkpoint["service"]), int(checkpoint["number"])
        last = before.get(service)
        before[service] = checkpoint
        if last is not None and number == last["number"]:
            continue  # The same one from two places.
        wanted = hashlib.sha256(statement_of(last).encode()).hexdigest() if last is not None else None
        expected_number = last["number"] + 1 if last is not None else number
        if number != expected_number or (wanted is not None and checkpoint["previous"] != wanted):
            yield Problem(
                "missing_checkpoint",
                service,
                int(checkpoint["last_sequence"]),
                f"number {expected_number} after number {last['number'] if last else 0}",
                f"number {number}",
                "A checkpoint between two others is missing or was replaced.",
            )


def statement_of(facts: Mapping[str, Any]) -> str:
    """The signed text again, from what was parsed of it."""
    return statement(str(facts["kind"]), {name: value for name, value in facts.items() if name != "kind"})


# -- the walk along a chain -------------------------------------------------------------------------


@dataclass
class ChainWalk:
    """Goes along one service's events in order and says what is not as it must be.

    `sequence` and `digest` are where it stands. `removals` and `checkpoints` are signed facts of this service.
    `whole`: every number is expected; else (an export with a filter) only neighbours are compared.
    """

    service: str
    sequence: int = 0
    digest: str = FIRST_DIGEST
    removals: Sequence[Mapping[str, Any]] = ()
    checkpoints: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    whole: bool = True
    checked: int = 0
    confirmed: int = 0  # The last checkpoint that agreed.

    def __post_init__(self) -> None:
        self.removals = sorted(self.removals, key=lambda each: int(each["first_sequence"]))

    def take(self, sequence: int, text: str, digest: str | None) -> Iterator[Problem]:
        """The next event; `digest` is what it was kept with, None when that is not known."""
        self.checked += 1
        if sequence <= self.sequence:
            yield self._problem(
                "inserted",
                sequence,
                f"a number above {self.sequence}",
                f"number {sequence} again",
                "A number stands twice; only one event can have it.",
            )
            return
        yield from self._pass_removals(sequence)
        computed = chained(self.digest, text)
        linked = self.sequence == sequence - 1 or self.whole
        if self.sequence < sequence - 1 and self.whole:
            yield from self._absent(sequence, computed, digest)
        elif linked and digest is not None and computed != digest:
            yield self._problem(
                "altered",
                sequence,
                f"digest {digest}",
                f"digest {computed}",
                "The event's text, its digest, or the digest before it was changed.",
            )
        self.sequence, self.digest = sequence, digest if digest is not None else computed
        yield from self._compare(sequence)

    def reach(self, sequence: int, digest: str, checked: int) -> Iterator[Problem]:
        """Stand at `sequence`: somebody else has walked there over `checked` events and says what the digest is."""
        self.checked += checked
        self.sequence, self.digest = sequence, digest
        yield from self._compare(sequence)

    def finish(self, expected_up_to: int | None = None) -> Iterator[Problem]:
        """What must still follow: removed events at the end, and what checkpoints say was there.

        `expected_up_to`: checkpoints of later numbers were made after the copy that is looked at.
        """
        yield from self._pass_removals(None)
        for last in sorted(self.checkpoints):
            checkpoint = self.checkpoints[last]
            if last > self.sequence and (expected_up_to is None or last <= expected_up_to):
                yield self._problem(
                    "truncated",
                    last,
                    f"events up to {last}, as checkpoint {checkpoint['number']} of {checkpoint['made_at']} says",
                    f"nothing after {self.sequence}",
                    "The end of the chain is missing.",
                )

    def _pass_removals(self, until: int | None) -> Iterator[Problem]:
        for removal in self.removals:
            first, last = int(removal["first_sequence"]), int(removal["last_sequence"])
            if first <= self.sequence:
                continue
            if until is not None and last >= until:
                return
            if not self.whole:
                # Between two neighbours of a selection nothing can be said about what is not selected.
                self.sequence, self.digest = last, str(removal["digest"])
                continue
            if first > self.sequence + 1:
                yield self._gap(self.sequence + 1, first - 1, removal["digest_before"] == self.digest)
            elif removal["digest_before"] != self.digest:
                yield self._problem(
                    "altered",
                    self.sequence,
                    f"digest {removal['digest_before']}, as the removal after it says",
                    f"digest {self.digest}",
                    "The event before removed ones is not what it was when they were removed.",
                )
            self.sequence, self.digest = last, str(removal["digest"])
            yield from self._compare(last)

    def _absent(self, sequence: int, computed: str, digest: str | None) -> Iterator[Problem]:
        yield self._gap(self.sequence + 1, sequence - 1, digest is not None and computed == digest)

    def _gap(self, first: int, last: int, never_kept: bool) -> Problem:
        numbers = f"number {first}" if first == last else f"numbers {first} to {last}"
        if never_kept:
            return self._problem(
                "missing", first, numbers, "nothing", "These events had not come when the next one was kept."
            )
        return self._problem("removed", first, numbers, "nothing", "These events were kept once and are gone.")

    def _compare(self, sequence: int) -> Iterator[Problem]:
        checkpoint = self.checkpoints.get(sequence)
        if checkpoint is None:
            return
        if checkpoint["digest"] != self.digest:
            yield self._problem(
                "rewritten",
                sequence,
                f"digest {checkpoint['digest']}, as checkpoint {checkpoint['number']} of {checkpoint['made_at']} says",
                f"digest {self.digest}",
                f"The chain was changed somewhere after {self.confirmed} and up to {sequence}, digests and all.",
            )
        else:
            self.confirmed = sequence

    def _problem(self, kind: str, sequence: int, expected: str, found: str, message: str) -> Problem:
        return Problem(kind, self.service, sequence, expected, found, message)
