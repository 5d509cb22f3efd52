"""Machines from a file, where there is no NetBox."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.lab.fleet import FLEET_FILE, load_fleet
from services.inventory.adapters.manifest import ManifestFile
from services.inventory.adapters.source import SourceUnavailable


async def test_the_whole_file_is_read_every_time_and_is_a_full_walk_only_when_asked() -> None:
    source = ManifestFile(FLEET_FILE)
    walk = await source.read(None)
    assert walk.full and {device.name for device in walk.devices} == {m.name for m in load_fleet().machines}
    assert len({device.key for device in walk.devices}) == len(walk.devices) and walk.newest is not None
    later = await source.read(datetime.now(UTC))
    assert not later.full and later.devices == walk.devices


async def test_a_changed_file_is_seen_at_the_next_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET_FILE.read_text())
    source = ManifestFile(path)
    before = await source.read(None)
    assert (await source.read(None)).devices == before.devices
    path.write_text(FLEET_FILE.read_text().replace("fra1-r1-gpu-01", "fra1-r1-gpu-99"))
    assert "fra1-r1-gpu-99" in {device.name for device in (await source.read(datetime.now(UTC))).devices}


@pytest.mark.parametrize(
    "content", ["", "[]", "site: fra1", "a: [", "site: {slug: x, name: y}\nracks: []\nmachines: 7"]
)
async def test_a_file_that_is_no_manifest_is_an_unavailable_source(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(content)
    with pytest.raises(SourceUnavailable, match=r"fleet\.yaml"):
        await ManifestFile(path).read(None)


async def test_a_file_that_is_gone_is_an_unavailable_source(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable):
        await ManifestFile(tmp_path / "gone.yaml").read(None)
