"""Machines from a YAML file instead of NetBox: for an installation that has none.

The file has `site`, `racks`, `device_types` and `machines`. It is parsed again when it has changed; one that can't be
read or is not of that form is an unavailable source, so nothing is concluded from it. Nothing is written back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from libs.contracts.ids import derived_uuid
from services.inventory.adapters.source import DeviceTypeRecord, RackRecord, SiteRecord, SourceUnavailable, Walk, Write
from services.inventory.model.source import SourceDevice


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Site(_Entry):
    slug: str
    name: str


class _Rack(_Entry):
    name: str


class _Kind(_Entry):
    slug: str
    manufacturer: str
    model: str


class _Machine(_Entry):
    name: str
    rack: str
    position: float | None = None
    device_type: str
    role: str
    serial: str
    asset_tag: str = ""
    bmc_mac: str = ""
    bmc_ip: str
    nic_macs: tuple[str, ...] = ()


class _Manifest(_Entry):
    site: _Site
    racks: tuple[_Rack, ...]
    device_types: tuple[_Kind, ...]
    machines: tuple[_Machine, ...]


@dataclass
class ManifestFile:
    """The file at `path`."""

    path: Path
    _last: tuple[tuple[int, int], Walk] | None = field(default=None, init=False)  # By time and size of the file.

    async def read(self, since: datetime | None) -> Walk:
        """Everything, every time; the file's own time stands for its newest change."""
        return await asyncio.to_thread(self._read, since is None)

    async def write(self, writes: Sequence[Write]) -> list[str]:
        return ["" for _ in writes]

    def _read(self, full: bool) -> Walk:
        try:
            status = self.path.stat()
            changed, looks = datetime.fromtimestamp(status.st_mtime, UTC), (status.st_mtime_ns, status.st_size)
            if self._last is not None and self._last[0] == looks:
                return replace(self._last[1], full=full)
            manifest = _Manifest.model_validate(yaml.safe_load(self.path.read_text()))
        except (OSError, yaml.YAMLError, ValidationError) as error:
            raise SourceUnavailable(f"the manifest {self.path} can't be read: {error}") from error
        site = manifest.site.slug
        walk = Walk(
            full=full,
            sites=(SiteRecord(site, manifest.site.name, None),),
            racks=tuple(RackRecord(_rack_id(site, rack.name), rack.name, site, None) for rack in manifest.racks),
            device_types=tuple(DeviceTypeRecord(k.slug, k.manufacturer, k.model, None) for k in manifest.device_types),
            devices=tuple(_device(site, machine) for machine in manifest.machines),
            newest=changed,
        )
        self._last = looks, walk
        return walk


def _rack_id(site: str, name: str) -> str:
    return derived_uuid("manifest", "rack", site, name)


def _device(site: str, machine: _Machine) -> SourceDevice:
    return SourceDevice(
        key=f"manifest:{site}/{machine.name}",
        netbox_id=None,
        name=machine.name,
        site=site,
        rack=machine.rack,
        rack_id=_rack_id(site, machine.rack),
        position=machine.position,
        device_type=machine.device_type,
        role=machine.role,
        serial=machine.serial,
        asset_tag=machine.asset_tag,
        status="staged",
        bmc_address=machine.bmc_ip,
        bmc_mac=machine.bmc_mac,
        nic_macs=machine.nic_macs,
    )
