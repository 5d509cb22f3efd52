"""Files of exported events: written page by page so that a broken export goes on where it stopped, and read again.

A line is a CloudEvent as it was published, with its `chaindigest` as last attribute. Beside the file lies its manifest:
what was asked for, how many events of which numbers, the file's SHA-256, and what is needed to check it alone
(checkpoints, removals, public keys). Nothing is at the file's place before it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from slipway.errors import SlipwayError

FORMAT = "slipway-export/1"
Kind = Literal["jsonl", "parquet"]
READ_BYTES = 1 << 20
ROW_GROUP = 10_000
PARQUET_REMEDY = "Install it with: pip install 'slipway-fleet[parquet]', or use JSON Lines."


class UnreadableExport(SlipwayError):
    """A file is no export, or is not whole."""


def manifest_path(path: Path) -> Path:
    return path.with_name(path.name + ".manifest.json")


def service_of(type_: str) -> str:
    """The service in a CloudEvents type of ours."""
    return type_.removeprefix("slipway.").split(".", 1)[0]


def sha256_of(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            total.update(piece)
    return total.hexdigest()


@dataclass(frozen=True)
class ExportFile:
    """An export on disk, JSON Lines or (by its name's end) Parquet."""

    path: Path

    def lines(self) -> Iterator[str]:
        """The lines, one by one. Raises UnreadableExport."""
        try:
            yield from _parquet_lines(self.path) if self.path.suffix == ".parquet" else _text_lines(self.path)
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableExport(f"{self.path} can't be read: {error}.", "Give an export's file.") from None

    def manifest(self) -> dict[str, Any] | None:
        """The manifest beside the file, None when there is none. Raises UnreadableExport."""
        path = manifest_path(self.path)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UnreadableExport(f"{path} can't be read: {error}.", "Export again.") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UnreadableExport(f"{path} is no manifest of the form {FORMAT}.", "Use the client that wrote it.")
        return found


def _text_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                raise UnreadableExport(f"{path} ends in the middle of line {number}.", "Export again.")
            yield line[:-1]


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UnreadableExport("Parquet needs pyarrow, which is not installed here.", PARQUET_REMEDY) from None
    return pyarrow


def _parquet_lines(path: Path) -> Iterator[str]:
    arrow = _pyarrow()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        with arrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROW_GROUP, columns=["line"]):
                yield from batch.column(0).to_pylist()
    except (arrow.ArrowInvalid, KeyError) as error:
        raise UnreadableExport(f"{path} is no export in Parquet: {error}.", "Give an export's file.") from None


def check_format(kind: Kind) -> None:
    """Say early that Parquet can't be written here. Raises UnreadableExport."""
    if kind == "parquet":
        _pyarrow()


# -- writing ----------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What there is of one service in the file."""

    events: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    digest: str | None = None

    def count(self, sequence: int, digest: str | None) -> None:
        self.events += 1
        self.first_sequence = self.first_sequence or sequence
        self.last_sequence, self.digest = sequence, digest


@dataclass
class Draft:
    """A half-written export beside its target: the lines so far, and a note of where to go on."""

    target: Path
    filters: Mapping[str, Any]
    cursor: str | None = None
    length: int = 0
    services: dict[str, Tally] = field(default_factory=dict)

    @property
    def part(self) -> Path:
        return self.target.with_name(f".{self.target.name}.part")

    @property
    def note(self) -> Path:
        return self.target.with_name(f".{self.target.name}.part.json")

    @property
    def known(self) -> Path:
        """What was known when the export began; see `begin`."""
        return self.target.with_name(f".{self.target.name}.part.known.json")

    @property
    def events(self) -> int:
        return sum(tally.events for tally in self.services.values())

    def resume(self) -> bool:
        """Go on with what an earlier run left; false (and from the start) when it left nothing that fits."""
        try:
            noted = json.loads(self.note.read_text(encoding="utf-8"))
            usable = noted["filters"] == dict(self.filters) and self.part.stat().st_size >= noted["length"]
            usable = usable and self.known.exists()
        except (OSError, ValueError, KeyError, TypeError):
            usable = False
        if not usable:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.part.write_bytes(b"")
            self.note.unlink(missing_ok=True)
            return False
        self.cursor, self.length = noted["cursor"], noted["length"]
        self.services = {name: Tally(**tally) for name, tally in noted["services"].items()}
        os.truncate(self.part, self.length)
        return True

    def add(self, lines: Sequence[str], cursor: str | None) -> None:
        """Write one page and note where the next begins."""
        payload = "".join(f"{line}\n" for line in lines).encode()
        with self.part.open("ab") as file:
            file.write(payload)
        for line in lines:
            event = json.loads(line)
            tally = self.services.setdefault(service_of(event["type"]), Tally())
            tally.count(int(event.get("sequence") or 0), event.get("chaindigest"))
        self.cursor, self.length = cursor, self.length + len(payload)
        noted = {
            "filters": dict(self.filters),
            "cursor": cursor,
            "length": self.length,
            "services": {name: vars(tally) for name, tally in self.services.items()},
        }
        _replace(self.note, json.dumps(noted).encode())

    def begin(self, known: Mapping[str, Any]) -> None:
        """Keep what is known before the first page (began_at, keys, checkpoints): the file must reach up to it."""
        _replace(self.known, json.dumps(dict(known)).encode())

    def finish(self, kind: Kind, removals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Put the file and its manifest in place; returns the manifest."""
        whole = self.part
        if kind == "parquet":
            whole = self.target.with_name(f".{self.target.name}.parquet")
            _write_parquet(self.part, whole)
        manifest = {
            "format": FORMAT,
            "file": {"name": self.target.name, "kind": kind, "bytes": whole.stat().st_size, "sha256": sha256_of(whole)},
            "filters": dict(self.filters),
            "events": self.events,
            "services": {name: vars(tally) for name, tally in sorted(self.services.items())},
            **json.loads(self.known.read_text(encoding="utf-8")),
            "removals": list(removals),
        }
        _replace(manifest_path(self.target), (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        whole.replace(self.target)
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self.known.unlink(missing_ok=True)
        return manifest


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


def _write_parquet(source: Path, target: Path) -> None:
    arrow = _pyarrow()
    text, number = arrow.string(), arrow.int64()
    columns = {
        "service": text,
        "sequence": number,
        "id": text,
        "type": text,
        "subject": text,
        "entityversion": number,
        "time": arrow.timestamp("us", tz="UTC"),
        "tenant": text,
        "site": text,
        "actor": text,
        "correlationid": text,
        "causationid": text,
        "line": text,  # The whole event, to the byte: what is checked and restored.
    }
    schema = arrow.schema(list(columns.items()))
    with arrow.parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for line in _text_lines(source):
            rows.append(_parquet_row(line))
            if len(rows) == ROW_GROUP:
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
                rows = []
        writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def _parquet_row(line: str) -> dict[str, Any]:
    event = json.loads(line)
    same = ("id", "type", "subject", "tenant", "site", "actor", "correlationid", "causationid")
    return {
        **{name: event.get(name) for name in same},
        "service": service_of(event["type"]),
        "sequence": int(event.get("sequence") or 0),
        "entityversion": event.get("entityversion", 0),
        "time": datetime.fromisoformat(event["time"].replace("Z", "+00:00")),
        "line": line,
    }
