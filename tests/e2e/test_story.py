"""The whole story, end to end: on real NetBox and real Ironic, and on the simulated site."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STORY_LIMIT_SECONDS = 1500


def tell(repository: Path, site: str, port_base: int) -> dict[str, object]:
    """Play the demo in a folder of its own; returns its summary."""
    out = repository / "var" / "e2e"
    done = subprocess.run(
        [sys.executable, "-m", "deploy.demo", "--site", site, "--out", str(out)],
        cwd=repository,
        env={**os.environ, "SLIPWAY_PORT_BASE": str(port_base)},
        capture_output=True,
        text=True,
        timeout=STORY_LIMIT_SECONDS,
        check=False,
    )
    print(done.stdout[-12000:], done.stderr[-4000:])
    summary: dict[str, object] = json.loads((out / "summary.json").read_text())
    return summary


@pytest.mark.lab
@pytest.mark.timeout(STORY_LIMIT_SECONDS + 60)
def test_a_netbox_row_becomes_a_ready_cluster_and_comes_back_on_real_parts(repository: Path) -> None:
    summary = tell(repository, "real", 27000)
    assert summary["wrong"] == []
    assert summary["ok"] is True


@pytest.mark.timeout(STORY_LIMIT_SECONDS + 60)
def test_the_simulated_site_tells_the_same_story(repository: Path) -> None:
    summary = tell(repository, "sim", 28000)
    assert summary["wrong"] == []
    assert summary["ok"] is True
