"""A NetBox in memory for tests: holds the REST API's documents, and fails on request as the real one does.

It passes the contract suite of the real one. Not for production.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from services.inventory.adapters.records import (
    Document,
    device_records,
    rack_records,
    site_records,
    type_records,
)
from services.inventory.adapters.source import SourceMisconfigured, SourceUnavailable, Walk, Write
from services.inventory.model.source import DeviceProblem


class NetBoxTwin:
    """`failure`: what every call raises, None for none. `refused`: devices whose writes are refused."""

    def __init__(self, roles: Sequence[str] = ("gpu-node", "cpu-node")) -> None:
        self.roles = tuple(roles)
        self.role_slugs = set(roles)
        self.failure: SourceUnavailable | None = None
        self.refused: set[int] = set()
        self.sites: list[Document] = [{"id": 1, "name": "Frankfurt 1", "slug": "fra1"}]
        self.racks: list[Document] = [{"id": 1, "name": "r1", "site": self._nested(self.sites[0])}]
        self.types: list[Document] = [
            {"id": 1, "slug": "nvidia-dgx-h100", "model": "DGX H100", "manufacturer": {"id": 1, "name": "NVIDIA"}}
        ]
        self.devices: dict[int, Document] = {}
        self.interfaces: list[Document] = []
        self.addresses: list[Document] = []
        self.writes: list[Write] = []
        self.looked_at: list[tuple[int, ...]] = []
        self._clock = datetime(2026, 3, 1, tzinfo=UTC)

    @staticmethod
    def _nested(document: Document) -> Document:
        return {name: document[name] for name in ("id", "name", "slug") if name in document}

    def _now(self) -> str:
        self._clock += timedelta(seconds=1)
        return self._clock.isoformat().replace("+00:00", "Z")

    def pass_time(self) -> None:
        """A second goes by in which nothing changes."""
        self._now()

    def add(self, number: int, **changes: Any) -> Document:
        """Add a device with a BMC port and one other; `changes` replace fields of its document."""
        document: Document = {
            "id": number,
            "name": f"fra1-r1-gpu-{number:02}",
            "site": self._nested(self.sites[0]),
            "rack": self._nested(self.racks[0]),
            "position": float(number),
            "device_type": {"id": 1, "slug": "nvidia-dgx-h100", "model": "DGX H100"},
            "role": {"id": 1, "name": "GPU node", "slug": "gpu-node"},
            "serial": f"16602239699{number:02}",
            "asset_tag": f"SLW-{number}",
            "status": {"value": "staged", "label": "Staged"},
            "oob_ip": {"id": number, "address": f"10.20.1.{number}/24"},
            "custom_fields": {},
            "last_updated": self._now(),
        }
        self.devices[number] = {**document, **changes}
        device = {"id": number, "name": document["name"]}
        mac = f"00:00:5E:00:53:{number:02X}"
        other = f"00:00:5E:00:54:{number:02X}"
        self.interfaces += [
            {"id": number * 10, "device": device, "name": "bmc", "mgmt_only": True, "mac_address": mac},
            {"id": number * 10 + 1, "device": device, "name": "eno1", "mgmt_only": False, "mac_address": other},
        ]
        return self.devices[number]

    def change(self, number: int, **changes: Any) -> None:
        """People edit a device."""
        self.devices[number] = {**self.devices[number], **changes, "last_updated": self._now()}

    async def read(self, since: datetime | None) -> Walk:
        if self.failure is not None:
            raise self.failure
        if since is None:
            self._check_roles()
        devices = [copy.deepcopy(d) for d in self.devices.values() if self._listed(d, since)]
        return self._walk(devices, full=since is None)

    async def look_at(self, netbox_ids: Sequence[int]) -> Walk:
        if self.failure is not None:
            raise self.failure
        self.looked_at.append(tuple(netbox_ids))
        ids = sorted(set(netbox_ids))
        found = [
            copy.deepcopy(self.devices[n]) for n in ids if n in self.devices and self._listed(self.devices[n], None)
        ]
        absent = tuple(sorted(set(ids) - {device["id"] for device in found}))
        if absent:
            self._check_roles()
        return self._walk(found, full=False, absent=absent)

    def _check_roles(self) -> None:
        lost = [role for role in self.roles if role not in self.role_slugs]
        if lost:
            raise SourceMisconfigured(f"NetBox has no device role {', '.join(lost)}; was it renamed?")

    def _walk(self, devices: list[Document], *, full: bool, absent: tuple[int, ...] = ()) -> Walk:
        sites, bad_sites = site_records(self.sites)
        slugs = {site.slug for site in sites}
        good, bad = device_records(devices, self.interfaces, self.addresses, slugs)
        return Walk(
            full=full,
            sites=sites,
            racks=rack_records(self.racks, slugs),
            device_types=type_records(self.types),
            devices=good,
            problems=(*bad, *(DeviceProblem(f"site:{text}", None, "", text) for text in bad_sites)),
            newest=self._clock,
            absent=absent,
        )

    def _listed(self, document: Document, since: datetime | None) -> bool:
        role = (document.get("role") or document.get("device_role") or {}).get("slug")
        changed = datetime.fromisoformat(document["last_updated"])
        return role in self.roles and (since is None or changed >= since)

    async def write(self, writes: Sequence[Write]) -> list[str]:
        if self.failure is not None:
            raise self.failure
        results = []
        for write in writes:
            if write.netbox_id in self.refused or write.netbox_id not in self.devices:
                results.append("NetBox answered 400 to PATCH /api/dcim/devices/")
                continue
            device = self.devices[write.netbox_id]
            fields = {**device["custom_fields"], **write.fields}
            status = {"value": write.status} if write.status else device["status"]
            self.change(write.netbox_id, custom_fields=fields, status=status)
            self.writes.append(write)
            results.append("")
        return results
