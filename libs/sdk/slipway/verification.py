"""Check what is kept: online, page by page through the API, or offline, an export's file with its manifest.

Whoever checks believes signatures and nobody's word: what a checkpoint says counts only with a key that is trusted.
Keys that came with the data prove that it fits together; only a key that was kept elsewhere proves who signed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from slipway.client import Client
from slipway.doors import Door
from slipway.exports import ExportFile, UnreadableExport, service_of, sha256_of
from slipway.proof import (
    CHECKPOINT,
    REMOVAL,
    ChainWalk,
    Keys,
    Problem,
    checkpoint_gaps,
    read_statements,
    trusted_keys,
    unpadded,
    without_digest,
)

PAGE = 500
MAX_LEFT_OUT = 20
MAX_PROBLEMS = 1000  # Beyond that the answer is "everything"; counting goes on.
# Filters with which an export has gaps by its nature, so that only neighbours can be compared.
SELECTING = ("type", "entity_id", "tenant", "actor", "correlation_id", "from", "to")
KEY_NOTE = "The public key came with the data; check against one that you hold with --key."
OnProgress = Callable[[str, int], None]
Documents = Sequence[Mapping[str, Any]]


@dataclass
class Report:
    """What was found. `services` are documents: service, checked, last_sequence, signed_up_to, problems."""

    services: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    count: int = 0

    @property
    def intact(self) -> bool:
        return self.count == 0

    def add(self, problems: Iterable[Problem]) -> int:
        """Take problems in; answers how many."""
        before = self.count
        for problem in problems:
            self.count += 1
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(problem)
        return self.count - before

    def walked(self, walk: ChainWalk, problems: int) -> None:
        self.services.append(
            {
                "service": walk.service,
                "checked": walk.checked,
                "last_sequence": walk.sequence,
                "signed_up_to": walk.confirmed,
                "problems": problems,
            }
        )

    def document(self) -> dict[str, Any]:
        return {
            "intact": self.intact,
            "services": self.services,
            "problems": [problem.document() for problem in self.problems],
            "problem_count": self.count,
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Held:
    """What the caller holds already: public keys, and checkpoints from elsewhere."""

    keys: Documents = ()
    checkpoints: Documents = ()


# -- online -----------------------------------------------------------------------------------------


async def verify_online(client: Client, held: Held, services: Sequence[str], progress: OnProgress) -> Report:
    """Have audit walk its chains page by page, and compare with checkpoints whose signatures are checked here."""
    report = Report()
    keys = trusted_keys(held.keys or (await client.audit.keys(door=Door.OPERATOR))["keys"])
    if not held.keys:
        report.notes.append(KEY_NOTE)
    kept = [item.raw async for page in client.audit.checkpoints() for item in page.items]
    removed = [item.raw async for page in client.audit.removals() for item in page.items]
    checkpoints = _signed(report, [*held.checkpoints, *kept], keys)
    _replaced(report, held.checkpoints, kept)
    report.add(read_statements(REMOVAL, removed, keys).problems)
    for chain in await client.audit.chains():
        if services and chain["service"] not in services:
            continue
        walk = ChainWalk(chain["service"], checkpoints=checkpoints.get(chain["service"], {}))
        await _walk_online(client, walk, report, progress)
    _note_unsigned(report)
    return report


async def _walk_online(client: Client, walk: ChainWalk, report: Report, progress: OnProgress) -> None:
    found = 0
    for until in (*sorted(walk.checkpoints), None):
        more = True
        while more:
            if until is not None and until <= walk.sequence:
                break
            page = await client.audit.chain_page(walk.service, walk.sequence, walk.digest, until, PAGE)
            found += report.add(Problem(**problem) for problem in page["problems"])
            more = bool(page["more"])
            if page["sequence"] > walk.sequence:
                found += report.add(walk.reach(page["sequence"], page["digest"], page["checked"]))
                progress(walk.service, walk.sequence)
    found += report.add(walk.finish())
    report.walked(walk, found)


def _replaced(report: Report, held: Documents, kept: Documents) -> None:
    """Checkpoints that the caller holds and the store has no more, or has otherwise."""
    there = {(each["service"], each["number"]): each for each in kept}
    for mine in held:
        theirs = there.get((mine.get("service"), mine.get("number")))
        if theirs is None or theirs["statement"] != mine.get("statement"):
            report.add(
                [
                    Problem(
                        "missing_checkpoint" if theirs is None else "replaced_checkpoint",
                        str(mine.get("service")),
                        int(mine.get("last_sequence") or 0),
                        f"checkpoint {mine.get('number')} as you hold it",
                        "nothing" if theirs is None else "another one under its number",
                        "The store's checkpoints are not those that it once gave out.",
                    )
                ]
            )


def _signed(report: Report, documents: Documents, keys: Keys) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Checkpoints that are believed, by service and sequence; the others are problems."""
    seen: dict[Any, Mapping[str, Any]] = {}
    for document in documents:
        seen.setdefault((document.get("statement"), document.get("signature")), document)
    read = read_statements(CHECKPOINT, seen.values(), keys)
    report.add(read.problems)
    report.add(checkpoint_gaps(read.good))
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for checkpoint in read.good:
        found.setdefault(str(checkpoint["service"]), {})[int(checkpoint["last_sequence"])] = checkpoint
    return found


def _note_unsigned(report: Report) -> None:
    for line in report.services:
        if line["last_sequence"] > line["signed_up_to"]:
            unsigned = line["last_sequence"] - line["signed_up_to"]
            report.notes.append(
                f"{line['service']}: the last {unsigned} are not signed yet; the next checkpoint covers them "
                "(now: slipway audit checkpoint)."
            )


# -- offline ----------------------------------------------------------------------------------------


def verify_file(file: ExportFile, held: Held, progress: OnProgress) -> Report:
    """Check an export by itself. Raises UnreadableExport when it is none."""
    report = Report()
    manifest = file.manifest()
    if manifest is None:
        manifest = {}
        report.notes.append("There is no manifest beside the file: it is checked as a whole export of its services.")
    keys = trusted_keys(held.keys or manifest.get("keys") or ())
    if not held.keys and keys:
        report.notes.append(KEY_NOTE)
    filters = manifest.get("filters") or {}
    whole = not any(filters.get(name) for name in SELECTING) and filters.get("door") != "tenant"
    if not whole:
        report.notes.append("The export has filters: events that follow one another are compared, the rest alone.")
    checkpoints = _signed(report, [*held.checkpoints, *(manifest.get("checkpoints") or ())], keys)
    removals = read_statements(REMOVAL, manifest.get("removals") or (), keys)
    report.add(removals.problems)
    _check_bytes(report, file, manifest)
    walks = _Walks(report, whole, checkpoints, removals.good)
    for number, line in enumerate(file.lines(), 1):
        walks.take(number, line)
        if number % PAGE == 0:
            progress("", number)
    if filters.get("door") == "tenant" and not any(filters.get(name) for name in SELECTING):
        report.notes += walks.left_out
    walks.finish(_expected(manifest, held.checkpoints), manifest.get("services"), filters.get("service") or ())
    if whole:
        _note_unsigned(report)
    return report


def _check_bytes(report: Report, file: ExportFile, manifest: Mapping[str, Any]) -> None:
    said = manifest.get("file")
    if not isinstance(said, Mapping):
        return
    found = sha256_of(file.path)
    if found != said.get("sha256"):
        report.add(
            [
                Problem(
                    "file_changed",
                    "",
                    0,
                    f"SHA-256 {said.get('sha256')}, as the manifest says",
                    f"SHA-256 {found}",
                    "The file is not the one that was exported.",
                )
            ]
        )


class _Walks:
    """One walk a service, and what each tenant's own numbers say."""

    def __init__(self, report: Report, whole: bool, checkpoints: Mapping[str, Any], removals: Documents) -> None:
        self._report, self._whole, self._checkpoints, self._removals = report, whole, checkpoints, removals
        self._walks: dict[str, ChainWalk] = {}
        self._found: dict[str, int] = {}
        self._own_numbers: dict[tuple[str, str], int] = {}
        self.left_out: list[str] = []

    def _walk(self, service: str) -> ChainWalk:
        if service not in self._walks:
            mine = [removal for removal in self._removals if removal["service"] == service]
            self._walks[service] = ChainWalk(
                service, removals=mine, checkpoints=self._checkpoints.get(service, {}), whole=self._whole
            )
        return self._walks[service]

    def take(self, number: int, line: str) -> None:
        text, digest = without_digest(line)
        try:
            event = json.loads(text)
            service, sequence = service_of(event["type"]), int(event["sequence"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._report.add(
                [Problem("altered", "", 0, "an event", f"line {number}: {error}", "A line of the file is no event.")]
            )
            return
        self._count(service, self._walk(service).take(sequence, text, digest))
        self._number(service, event)

    def _number(self, service: str, event: Mapping[str, Any]) -> None:
        """A tenant's events of a service have gapless numbers of their own: what is left out of them is told."""
        tenant, number = str(event.get("tenant")), event.get("tenantsequence")
        if not isinstance(number, str) or not number.isdecimal():
            return
        last = self._own_numbers.get((service, tenant), 0)
        self._own_numbers[service, tenant] = int(number)
        if int(number) > last + 1 and len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(
                f"{service}: {tenant}'s own numbers {last + 1} to {int(number) - 1} are not in it: "
                "retention removed these events, or somebody left them out."
            )

    def finish(self, expected: Mapping[str, int] | None, said: Any, asked: Sequence[str]) -> None:
        """`expected`: up to where checkpoints count for each service; None: all of them."""
        tallies: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
        # Services of which not a single event is left must be missed, too.
        signed = {name for name in self._checkpoints if not asked or name in asked} if self._whole else set()
        for service in sorted({*self._walks, *tallies, *signed}):
            walk = self._walk(service)
            if self._whole:
                self._count(service, walk.finish(expected.get(service, 0) if expected is not None else None))
            self._count(service, _miscounted(walk, tallies.get(service)))
            self._report.walked(walk, self._found.get(service, 0))

    def _count(self, service: str, problems: Iterable[Problem]) -> None:
        self._found[service] = self._found.get(service, 0) + self._report.add(problems)


def _expected(manifest: Mapping[str, Any], held: Documents) -> dict[str, int] | None:
    """Up to where checkpoints count: those known when the export began, and held ones that are older than it."""
    if "began_at" not in manifest:
        return None
    began = _instant(manifest["began_at"], "began_at of the manifest")
    older = [each for each in held if _instant(each.get("made_at"), "made_at of a checkpoint") <= began]
    expected: dict[str, int] = {}
    for each in (*older, *(manifest.get("checkpoints") or ())):
        service = str(each.get("service"))
        expected[service] = max(expected.get(service, 0), int(each.get("last_sequence") or 0))
    return expected


def _instant(text: Any, what: str) -> datetime:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        raise UnreadableExport(f"The {what} is no instant: {text!r}.", "Use the files as they were written.") from None


def _miscounted(walk: ChainWalk, tally: Any) -> list[Problem]:
    if not isinstance(tally, Mapping) or tally.get("events") == walk.checked:
        return []
    return [
        Problem(
            "miscounted",
            walk.service,
            walk.sequence,
            f"{tally.get('events')} events, as the manifest says",
            f"{walk.checked} events",
            "Lines were taken out of the export or put into it.",
        )
    ]


# -- what the caller holds --------------------------------------------------------------------------


def read_keys(path: Path) -> list[dict[str, Any]]:
    """Public keys from a file: a JWK Set, one JWK, or PEM. Raises UnreadableExport."""
    text = _read(path)
    if "-----BEGIN" in text:
        return [_from_pem(path, text)]
    document = _json(path, text)
    keys = document.get("keys", [document]) if isinstance(document, dict) else document
    if not isinstance(keys, list) or not all(isinstance(key, dict) and key.get("crv") == "Ed25519" for key in keys):
        raise UnreadableExport(
            f"{path} has no Ed25519 public key.", "Write one with: slipway audit keys --out keys.json"
        )
    return keys


def _from_pem(path: Path, text: str) -> dict[str, Any]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except ValueError as error:
        raise UnreadableExport(f"{path} is no public key: {error}.", "Give the public key, never a private.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UnreadableExport(f"{path} is no Ed25519 key.", "Give the key that signs checkpoints.")
    return {"kty": "OKP", "crv": "Ed25519", "x": unpadded(key.public_bytes_raw())}


def read_checkpoints(path: Path) -> list[dict[str, Any]]:
    """Checkpoints from a file: a list, a page, or a manifest. Raises UnreadableExport."""
    document = _json(path, _read(path))
    if isinstance(document, dict):
        document = document.get("items", document.get("checkpoints"))
    if not isinstance(document, list) or not all(isinstance(each, dict) for each in document):
        raise UnreadableExport(
            f"{path} has no checkpoints.", "Write them with: slipway audit checkpoints --out checkpoints.json"
        )
    return document


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableExport(f"{path} can't be read: {error}.", "Check the path.") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnreadableExport(f"{path} is not JSON: {error}.", "Check the path.") from None
