"""The architecture page shows the tables as they are."""

from __future__ import annotations

from pathlib import Path

from services.reservation.states import CLAIM, RESERVATION


def test_the_page_shows_both_lives_as_the_code_has_them(repository: Path) -> None:
    page = (repository / "docs" / "architecture" / "reservation.md").read_text()
    assert CLAIM.mermaid() in page and RESERVATION.mermaid() in page
