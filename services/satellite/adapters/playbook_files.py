"""The site's playbooks: one file for each, named as templates name them."""

from __future__ import annotations

import re
from pathlib import Path

from services.satellite.errors import Failure

PLAYBOOKS = Path(__file__).resolve().parent.parent / "playbooks"


def playbook_file(name: str, folder: Path = PLAYBOOKS) -> Path:
    """The file of playbook `name`. Raises Failure "playbook_unknown" when the site has none of that name."""
    path = folder / f"{name}.yml"
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or not path.is_file():
        there = ", ".join(sorted(file.stem for file in folder.glob("*.yml")))
        raise Failure(
            "playbook_unknown", f"This site's runner has no playbook {name!r}; it has: {there}.", "Name one of these."
        )
    return path
