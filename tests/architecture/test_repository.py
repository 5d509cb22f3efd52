"""The repository stands alone: nothing tracked points at the computer that it was written on, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Put together here, so that this file does not find itself.
_FOREIGN = [re.compile("/" + "work/"), re.compile(r"\.\./" + "shared/"), re.compile(r"\." + "library/")]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_tracked_file_points_at_the_computer_it_was_written_on() -> None:
    found = []
    for path in _tracked():
        text = path.read_bytes().decode(errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {word.pattern}" for word in _FOREIGN if word.search(text)]
    assert found == []


def test_every_relative_link_of_a_page_leads_to_a_file() -> None:
    broken = []
    for page in (path for path in _tracked() if path.suffix == ".md"):
        for target in _LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
