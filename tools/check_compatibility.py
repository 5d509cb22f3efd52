"""Compare today's messages with every release kept in schemas/released: `python -m tools.check_compatibility`.

Exit status 1 when a program of a release and one of today could not read each other, with what to do about it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import libs.contracts.all  # noqa: F401  registers every message
from libs.contracts.upcasters import UPCASTERS, Upcasters
from tools.generation.compatibility import changes, new_values
from tools.generation.consumers import outside
from tools.generation.messages import COMPATIBILITY, SHARED, all_messages, schema_path, schemas

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "schemas/released"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)\Z")
# What only people read of a schema.
_FOR_PEOPLE = ("title", "description", "$comment", "$schema", "$id")

Release = Mapping[str, Any]  # {"messages": {"<type>.v<N>": schema}, "shapes": {"envelope": schema, …}}


@dataclass(frozen=True)
class Finding:
    """`what` is wrong with `message` compared with `release`; `remedy` says what to do. `allowed`: only to know."""

    release: str
    message: str
    what: str
    remedy: str
    allowed: bool = False


def today() -> dict[str, Any]:
    """Today's schemas as a release keeps them."""
    files = {path: json.loads(text) for path, text in schemas().items()}
    messages = {_name(message.message_type): files[schema_path(message.message_type)] for message in all_messages()}
    shapes = {name: files[f"schemas/{name}.json"] for name in SHARED}
    return {"messages": _bare(messages), "shapes": _bare(shapes)}


def releases(root: Path = ROOT) -> dict[str, Release]:
    """Every release that was kept, oldest first."""
    files = [file for file in (root / FOLDER).glob("*.json") if _VERSION.match(file.stem)]
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(files, key=_order)}


@dataclass(frozen=True)
class Accepted:
    """A refused change of one field that is made all the same, with the reason."""

    message: str
    field: str
    why: str


def accepted(root: Path = ROOT) -> list[Accepted]:
    """schemas/released/accepted.yaml. Raises ValueError naming an entry without message, fields or reason."""
    file = root / FOLDER / "accepted.yaml"
    entries = yaml.safe_load(file.read_text(encoding="utf-8"))["accepted"] if file.exists() else []
    for entry in entries:
        if not all(entry.get(part) for part in ("message", "fields", "why")):
            raise ValueError(f"{file.name}: an entry needs message, fields and why: {entry}")
    return [Accepted(entry["message"], field, entry["why"]) for entry in entries for field in entry["fields"]]


def settled(found: Sequence[Finding], exceptions: Sequence[Accepted]) -> list[Finding]:
    """The findings with accepted ones allowed, and one more for each exception that nothing needs."""
    by_place = {(each.message, each.field): each for each in exceptions}
    used = {_place(finding) for finding in found if not finding.allowed}
    result = []
    for finding in found:
        exception = None if finding.allowed else by_place.get(_place(finding))
        result.append(replace(finding, allowed=True, remedy=f"Accepted: {exception.why}") if exception else finding)
    for message, field in by_place.keys() - used:
        what = f"{field}: accepted.yaml accepts a change that is not there"
        result.append(Finding("accepted.yaml", message, what, "Remove the entry."))
    return result


def _place(finding: Finding) -> tuple[str, str]:
    return finding.message, finding.what.partition(":")[0]


def findings(kept: Mapping[str, Release], now: Release, upcasters: Upcasters = UPCASTERS) -> list[Finding]:
    """What differs and matters. Events and observations are compared with all releases, the rest with the last one."""
    found: list[Finding] = []
    last = next(reversed(list(kept)), "")
    for release, content in kept.items():
        for name, schema in content["messages"].items():
            if release == last or _read_for_ever(name):
                found += _of_message(release, name, schema, now["messages"], upcasters)
        for name, schema in content["shapes"].items() if release == last else ():
            found += _of_shape(release, name, schema, now["shapes"].get(name))
    return found


def _of_message(release: str, name: str, schema: Any, now: Mapping[str, Any], upcasters: Upcasters) -> list[Finding]:
    type_, version = split_name(name)
    if name not in now:
        readers = [each.who for each in outside() if each.message == name]
        if readers:
            what = f"the message is gone, and consumers.yaml says that {', '.join(readers)} still reads it"
            return [Finding(release, name, what, "Publish it until they have moved, then remove them there.")]
        if upcasters.leads_on(type_, version):
            return []
        what = "the message is gone, and nothing brings what was sent to a newer version"
        remedy = f"Put its model back, or register an upcaster from version {version} (libs/contracts/upcasters.py)."
        return [Finding(release, name, what, remedy)]
    remedy = (
        f"Leave version {version} as it was and declare version {version + 1} beside it, with an upcaster from "
        f"{version}; see docs/architecture/schemas.md."
    )
    return [Finding(release, name, what, remedy) for what in changes(schema, now[name])] + _allowed(
        release, name, schema, now[name]
    )


def _of_shape(release: str, name: str, schema: Any, now: Any) -> list[Finding]:
    if now is None:
        return [Finding(release, name, "the shape is gone", "Put it back: programs of the release speak it.")]
    remedy = "Every program speaks this shape and it has no versions: only add fields with defaults."
    found = [Finding(release, name, what, remedy) for what in changes(schema, now)]
    return found + _allowed(release, name, schema, now)


def _allowed(release: str, name: str, schema: Any, now: Any) -> list[Finding]:
    remedy = "Upgrade whoever reads it before whoever says it: a reader of the release does not know it."
    return [Finding(release, name, f"{what} is new", remedy, allowed=True) for what in new_values(schema, now)]


def keep(root: Path, version: str) -> Path:
    """Keep today's schemas as a release. Raises ValueError for a bad, known or older version."""
    if not _VERSION.match(version):
        raise ValueError(f"{version!r} is no version; give it as in 1.2.3")
    known = list(releases(root))
    target = root / FOLDER / f"{version}.json"
    if known and _numbers(version) <= _numbers(known[-1]):
        raise ValueError(f"{version} is not newer than the last kept release {known[-1]}; a release is never changed")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(release_text(today()), encoding="utf-8")
    return target


def release_text(release: Release) -> str:
    """A release as its file has it: one line a message, so that two releases can be read side by side."""
    parts = []
    for group, entries in release.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(schema)}" for name, schema in sorted(entries.items()))
        parts.append(f" {json.dumps(group)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def split_name(name: str) -> tuple[str, int]:
    """("slipway.inventory.machine.updated", 1) of "slipway.inventory.machine.updated.v1"."""
    type_, _, version = name.rpartition(".v")
    return type_, int(version)


@cache
def _read_for_ever(name: str) -> bool:
    kinds = {_name(message.message_type): message.message_type.kind for message in all_messages()}
    return name not in kinds or COMPATIBILITY[kinds[name]] == "backward_transitive"


def _name(kind: Any) -> str:
    return f"{kind.type}.v{kind.version}"


def _bare(value: Any, *, names: bool = True) -> Any:
    """A schema without what only people read. `names`: the keys here are field names, not words of JSON Schema."""
    if isinstance(value, list):
        return [_bare(item, names=False) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if names or key not in _FOR_PEOPLE}
    return {key: _bare(item, names=not names and key in ("properties", "$defs")) for key, item in kept.items()}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _order(file: Path) -> tuple[int, ...]:
    return _numbers(file.stem)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_compatibility", description=__doc__)
    parser.add_argument("--release", metavar="VERSION", help="keep today's schemas as this release")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    arguments = parser.parse_args()
    found = settled(findings(releases(), today()), accepted())
    bad = [finding for finding in found if not finding.allowed]
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        for finding in bad:
            print(f"REFUSED {finding.message} since {finding.release}: {finding.what}", file=sys.stderr)
            print(f"        {finding.remedy}", file=sys.stderr)
        for finding in found:
            if finding.allowed:
                print(f"note    {finding.message} since {finding.release}: {finding.what}")
    if bad or arguments.release is None:
        return 1 if bad else 0
    try:
        print(keep(ROOT, arguments.release).relative_to(ROOT))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
