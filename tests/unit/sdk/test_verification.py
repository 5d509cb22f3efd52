"""An export is checked by itself: what was done to it is found, and where."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from slipway.cli import app
from slipway.exports import ExportFile, UnreadableExport, manifest_path
from slipway.proof import (
    CHECKPOINT,
    REMOVAL,
    ChainWalk,
    chained,
    key_id,
    statement,
    unpadded,
    with_digest,
    without_digest,
)
from slipway.verification import Held, Report, read_checkpoints, read_keys, verify_file
from typer.testing import CliRunner

EVENTS = 12
SIGNED_AT = (5, 10)


def new_key() -> tuple[Ed25519PrivateKey, dict[str, Any]]:
    key = Ed25519PrivateKey.generate()
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return key, {"kty": "OKP", "crv": "Ed25519", "x": unpadded(raw)}


KEY, PUBLIC = new_key()


def text_of(sequence: int, name: str = "m1", service: str = "inventory") -> str:
    event = {"id": f"e{sequence}", "type": f"slipway.{service}.machine.updated", "sequence": f"{sequence:020d}"}
    return json.dumps({**event, "data": {"name": name}}, separators=(",", ":"))


def chain(texts: list[str]) -> list[str]:
    lines, digest = [], ""
    for text in texts:
        digest = chained(digest, text)
        lines.append(with_digest(text, digest))
    return lines


def signed(kind: str, facts: dict[str, Any], key: Ed25519PrivateKey = KEY, public: Any = None) -> dict[str, Any]:
    text = statement(kind, facts)
    return {
        **facts,
        "statement": text,
        "key_id": key_id(public or PUBLIC),
        "signature": unpadded(key.sign(text.encode())),
    }


def checkpoints(lines: list[str]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number, last in enumerate(SIGNED_AT, 1):
        facts = {
            "service": "inventory",
            "number": number,
            "last_sequence": last,
            "events": last,
            "digest": without_digest(lines[last - 1])[1],
            "made_at": f"2026-03-0{number}T00:00:00Z",
            "previous": hashlib.sha256(made[-1]["statement"].encode()).hexdigest() if made else "",
        }
        made.append(signed(CHECKPOINT, facts))
    return made


class Export:
    """A file and its manifest, to be written after something was done to them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"
        self.texts = [text_of(n) for n in range(1, EVENTS + 1)]
        self.lines = chain(self.texts)
        self.honest = list(self.lines)
        self.manifest: dict[str, Any] | None = {
            "format": "slipway-export/1",
            "filters": {"door": "operator"},
            "began_at": "2026-03-03T00:00:00+00:00",
            "events": EVENTS,
            "services": {"inventory": {"events": EVENTS}},
            "keys": [PUBLIC],
            "checkpoints": checkpoints(self.lines),
            "removals": [],
        }

    def rechain(self, texts: list[str]) -> None:
        """What somebody does who knows how chains are made."""
        self.lines = chain(texts)

    def check(self, held: Held | None = None) -> Report:
        content = "".join(f"{line}\n" for line in self.lines).encode()
        self.path.write_bytes(content)
        if self.manifest is not None:
            manifest_path(self.path).write_text(json.dumps(self.manifest))
        return verify_file(ExportFile(self.path), held or Held(keys=[PUBLIC]), lambda *_: None)

    def found(self, held: Held | None = None) -> list[tuple[str, int]]:
        return [(problem.kind, problem.sequence) for problem in self.check(held).problems]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path)


def test_an_honest_export_is_intact_and_says_what_is_not_signed_yet(export: Export) -> None:
    report = export.check()
    assert (report.intact, report.services[0]["checked"], report.services[0]["signed_up_to"]) == (True, EVENTS, 10)
    assert any("the last 2 are not signed yet" in note for note in report.notes)


def _alter(export: Export) -> None:
    export.lines[3] = export.lines[3].replace("m1", "m2")


def _remove(export: Export) -> None:
    del export.lines[3]


def _insert(export: Export) -> None:
    export.lines.insert(4, export.lines[3])


def _truncate(export: Export) -> None:
    del export.lines[8:]


def _rewrite(export: Export) -> None:
    export.rechain([text.replace("m1", "m2") if n == 6 else text for n, text in enumerate(export.texts)])


def _empty(export: Export) -> None:
    export.lines = []


def _no_json(export: Export) -> None:
    export.lines[3] = "nothing"


def _forged_checkpoint(export: Export) -> None:
    """Events and checkpoint are rewritten together, by a key of one's own that calls itself the genuine one."""
    _rewrite(export)
    key, _ = new_key()
    assert export.manifest is not None
    facts = {**json.loads(export.manifest["checkpoints"][1]["statement"])}
    del facts["kind"]
    facts["digest"] = without_digest(export.lines[9])[1]
    export.manifest["checkpoints"][1] = signed(CHECKPOINT, facts, key)


def _own_key(export: Export) -> None:
    """The same, with the forger's public key put beside the genuine one into the manifest."""
    _rewrite(export)
    key, public = new_key()
    assert export.manifest is not None
    export.manifest["keys"] = [public]
    genuine = json.loads(export.manifest["checkpoints"][1]["statement"])
    facts = {name: value for name, value in genuine.items() if name != "kind"}
    facts |= {"digest": without_digest(export.lines[9])[1], "number": 1, "previous": ""}
    export.manifest["checkpoints"] = [signed(CHECKPOINT, facts, key, public)]


def _talkative_checkpoint(export: Export) -> None:
    """The signature holds, but what stands beside it says something else."""
    assert export.manifest is not None
    export.manifest["checkpoints"][0]["last_sequence"] = 4


def _lost_checkpoint(export: Export) -> None:
    assert export.manifest is not None
    del export.manifest["checkpoints"][0]
    again = json.loads(export.manifest["checkpoints"][0]["statement"])
    later = {**{n: v for n, v in again.items() if n != "kind"}, "number": 4, "last_sequence": 12}
    later["digest"] = without_digest(export.lines[11])[1]
    export.manifest["checkpoints"].append(signed(CHECKPOINT, later))


DONE: dict[Callable[[Export], None], tuple[str, int]] = {
    _alter: ("altered", 4),
    _remove: ("removed", 4),
    _insert: ("inserted", 4),
    _truncate: ("truncated", 10),
    _rewrite: ("rewritten", 10),
    _empty: ("truncated", 5),
    _no_json: ("altered", 0),
    _forged_checkpoint: ("forged_checkpoint", 10),
    _own_key: ("forged_checkpoint", 10),
    _talkative_checkpoint: ("forged_checkpoint", 4),
    _lost_checkpoint: ("missing_checkpoint", 12),
}


@pytest.mark.parametrize("deed", DONE, ids=lambda deed: deed.__name__.strip("_"))
def test_what_was_done_to_an_export_is_found_at_its_place(export: Export, deed: Callable[[Export], None]) -> None:
    deed(export)
    assert DONE[deed] in export.found()


def test_a_key_that_came_with_the_data_says_only_that_it_fits_together(export: Export) -> None:
    _own_key(export)
    report = export.check(Held())
    assert report.intact
    assert any("--key" in note for note in report.notes)


def test_checkpoints_that_were_kept_find_a_whole_history_that_was_made_anew(export: Export) -> None:
    kept = checkpoints(export.honest)
    _rewrite(export)
    assert export.manifest is not None
    export.manifest["checkpoints"] = []
    assert export.found() == []
    assert export.found(Held([PUBLIC], kept)) == [("rewritten", 10)]


def test_a_checkpoint_from_after_the_export_is_not_missed_in_it(export: Export) -> None:
    later = checkpoints(export.honest)
    assert export.manifest is not None
    export.manifest |= {"checkpoints": [], "began_at": "2026-03-01T12:00:00+00:00"}
    export.manifest["services"]["inventory"]["events"] = 7
    export.lines = export.lines[:7]
    assert export.found(Held([PUBLIC], later)) == []
    export.manifest["began_at"] = "2026-03-03T12:00:00+00:00"
    assert export.found(Held([PUBLIC], later)) == [("truncated", 10)]


def test_removed_events_are_vouched_for_by_a_signature_only(export: Export) -> None:
    digests = [without_digest(line)[1] for line in export.lines]
    facts = {"service": "inventory", "first_sequence": 3, "last_sequence": 6, "events": 4}
    facts |= {"digest_before": digests[1], "digest": digests[5]}
    del export.lines[2:6]
    assert export.manifest is not None
    export.manifest["services"]["inventory"]["events"] = EVENTS - 4
    assert export.found() == [("removed", 3)]
    export.manifest["removals"] = [signed(REMOVAL, facts)]
    assert export.found() == []
    export.manifest["removals"] = [signed(REMOVAL, facts, new_key()[0])]
    assert export.found() == [("forged_removal", 6), ("removed", 3)]


def test_of_a_selection_neighbours_and_the_count_are_checked(export: Export) -> None:
    assert export.manifest is not None
    export.manifest["filters"]["entity_id"] = ["m1"]
    export.lines = [line for n, line in enumerate(export.lines, 1) if n not in (3, 4, 8)]
    export.manifest["services"]["inventory"]["events"] = EVENTS - 3
    assert export.found() == []
    export.lines[3] = export.lines[3].replace("m1", "m2")
    assert export.found() == [("altered", 6)]
    del export.lines[5]
    assert ("miscounted", 12) in export.found()


def test_without_a_manifest_it_counts_as_a_whole_export(export: Export) -> None:
    export.manifest = None
    assert export.check().intact
    assert any("no manifest" in note for note in export.check().notes)
    del export.lines[0]
    assert export.found() == [("removed", 1)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_single_change_of_a_signed_chain_goes_unseen(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 12))
    lines = chain([text_of(n) for n in range(1, size + 1)])
    last = without_digest(lines[-1])[1]
    place = data.draw(st.integers(0, size - 1))
    deed = data.draw(st.sampled_from(["alter", "remove", "repeat", "swap", "rewrite"]))
    changed = list(lines)
    if deed == "alter":
        changed[place] = changed[place].replace("m1", "m2")
    elif deed == "remove":
        del changed[place]
    elif deed == "repeat":
        changed.insert(place, changed[place])
    elif deed == "swap":
        changed[place], changed[place - 1] = changed[place - 1], changed[place]
    else:
        changed = chain([text_of(n, "m2" if n == place + 1 else "m1") for n in range(1, size + 1)])
    walk = ChainWalk("inventory", checkpoints={size: {"digest": last, "number": 1, "made_at": "2026-03-01T00:00:00Z"}})
    found = []
    for line in changed:
        text, digest = without_digest(line)
        found += list(walk.take(int(json.loads(text)["sequence"]), text, digest))
    assert [*found, *walk.finish()] != []


# -- the command ------------------------------------------------------------------------------------


def test_the_command_ends_with_1_and_names_the_place(export: Export, tmp_path: Path) -> None:
    export.check()
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [PUBLIC]}))
    arguments = ["events", "verify", "--file", str(export.path), "--key", str(keys)]
    good = CliRunner().invoke(app, arguments)
    assert (good.exit_code, "nothing altered" in good.stdout) == (0, True), good.output
    _alter(export)
    export.check()
    bad = CliRunner().invoke(app, arguments)
    assert bad.exit_code == 1
    assert "altered  inventory 4" in bad.stdout
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert (told["intact"], told["problems"][0]["sequence"]) == (False, 4)


@pytest.mark.parametrize(
    ("content", "words"), [("", "not JSON"), ('{"keys": [{"kty": "RSA"}]}', "no Ed25519"), ("[7]", "no Ed25519")]
)
def test_a_key_file_that_is_none_is_refused_by_name(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(UnreadableExport, match=words):
        read_keys(path)


def test_keys_come_as_a_set_alone_or_in_pem_form(tmp_path: Path) -> None:
    path = tmp_path / "key"
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for content in (json.dumps({"keys": [PUBLIC]}), json.dumps(PUBLIC), json.dumps([PUBLIC]), pem):
        path.write_text(content)
        assert [key["x"] for key in read_keys(path)] == [PUBLIC["x"]]


def test_checkpoints_come_as_a_page_a_list_or_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.json"
    for content in ({"items": [{"number": 1}]}, [{"number": 1}], {"checkpoints": [{"number": 1}]}):
        path.write_text(json.dumps(content))
        assert read_checkpoints(path) == [{"number": 1}]
    path.write_text("7")
    with pytest.raises(UnreadableExport, match="no checkpoints"):
        read_checkpoints(path)


def test_a_file_that_ends_in_the_middle_of_a_line_is_no_export(export: Export) -> None:
    export.check()
    export.path.write_bytes(export.path.read_bytes()[:-5])
    with pytest.raises(UnreadableExport, match="middle of line 12"):
        list(ExportFile(export.path).lines())
