"""The architecture page shows the table and the sagas as they are."""

from __future__ import annotations

from pathlib import Path

from libs.saga.diagram import mermaid
from services.provisioning.sagas import SAGAS
from services.provisioning.states import CLUSTER


def test_the_page_shows_the_clusters_life_and_every_saga_as_the_code_has_them(repository: Path) -> None:
    page = (repository / "docs" / "architecture" / "provisioning.md").read_text()
    assert CLUSTER.mermaid() in page
    assert all(mermaid(saga) in page for saga in SAGAS)
