"""NetBox as a source of record: what is asked of it for a walk, a poll or a look at single devices, and writing back.

pynetbox blocks, so each call runs in a thread. A poll asks for what changed by `last_updated`, of devices and of all
that makes up a device (ports, addresses, places, types), because NetBox does not touch the device itself for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from pynetbox.core.query import RequestError

from services.inventory.adapters.netbox_fields import field_problems, unusable_fields
from services.inventory.adapters.netbox_rest import Rest, guarded, translated
from services.inventory.adapters.records import (
    Document,
    device_records,
    newest_change,
    rack_records,
    site_records,
    type_records,
)
from services.inventory.adapters.source import SourceMisconfigured, SourceUnavailable, Walk, Write
from services.inventory.model.source import DeviceProblem

T = TypeVar("T")

DEVICES, INTERFACES, ADDRESSES = "dcim/devices", "dcim/interfaces", "ipam/ip-addresses"
MAC_ADDRESSES = "dcim/mac-addresses"
# What is read of each; without it NetBox works out counts, configuration contexts and more for every device.
DEVICE_FIELDS = (
    *("id", "name", "site", "rack", "position", "device_type", "role", "device_role", "serial", "asset_tag", "status"),
    *("oob_ip", "custom_fields", "last_updated", "parent_device"),
)
PORT_FIELDS = ("id", "device", "name", "mgmt_only", "mac_address", "primary_mac_address", "last_updated")
ADDRESS_FIELDS = ("id", "address", "assigned_object_type", "assigned_object_id", "assigned_object", "last_updated")
MAC_FIELDS = ("id", "assigned_object", "last_updated")
# What a device shows of others: list → the filter for the devices that show it.
SHOWN_BY_DEVICES = (("dcim/sites", "site_id"), ("dcim/racks", "rack_id"), ("dcim/device-types", "device_type_id"))


@dataclass
class RestNetBox:
    """A real NetBox. `token` is asked for at every call, so that a renewed one is used without a restart."""

    url: str
    token: Callable[[], str]
    roles: Sequence[str]
    timeout_seconds: float = 20.0
    _unusable: dict[str, str] | None = field(default=None, init=False)

    async def read(self, since: datetime | None) -> Walk:
        return await self._threaded(lambda rest: self._poll(rest, since) if since else self._everything(rest))

    async def look_at(self, netbox_ids: Sequence[int]) -> Walk:
        return await self._threaded(lambda rest: self._look_at(rest, netbox_ids))

    async def write(self, writes: Sequence[Write]) -> list[str]:
        return await self._threaded(lambda rest: self._write(rest, writes))

    async def _threaded(self, work: Callable[[Rest], T]) -> T:
        def in_thread() -> T:
            return guarded(self.url, lambda: work(Rest(self.url, self.token(), self.timeout_seconds)))

        return await asyncio.to_thread(in_thread)

    # -- reading, in the thread -------------------------------------------------------------------

    def _everything(self, rest: Rest) -> Walk:
        self._unusable = unusable_fields(rest)
        self._check_roles(rest)
        devices = rest.every(DEVICES, DEVICE_FIELDS, role=list(self.roles), **_LEAN)
        # All ports of these roles at once: asked for by device, ten thousand devices take a hundred requests.
        ports = rest.every(INTERFACES, PORT_FIELDS, device_role=list(self.roles)) if devices else []
        return self._walk(rest, devices, ports, full=True)

    def _poll(self, rest: Rest, since: datetime) -> Walk:
        moment = since.isoformat().replace("+00:00", "Z")
        common = {"role": list(self.roles), **_LEAN}
        changed = {d["id"]: d for d in rest.every(DEVICES, DEVICE_FIELDS, last_updated__gte=moment, **common)}
        ids = self._touched(rest, moment) - set(changed)
        changed |= {d["id"]: d for d in rest.of(DEVICES, "id", sorted(ids), DEVICE_FIELDS, **common)}
        for path, shown_by in SHOWN_BY_DEVICES:
            others = [one["id"] for one in rest.every(path, ("id", "last_updated"), last_updated__gte=moment)]
            changed |= {d["id"]: d for d in rest.of(DEVICES, shown_by, others, DEVICE_FIELDS, **common)}
        if not changed:
            # It concludes nothing from what it did not see.
            return Walk(full=False, newest=rest.clock)
        return self._with_ports(rest, list(changed.values()))

    def _touched(self, rest: Rest, moment: str) -> set[int]:
        """Devices whose ports, addresses or MACs changed."""
        ports = rest.every(INTERFACES, ("id", "device", "last_updated"), last_updated__gte=moment)
        assigned = rest.every(ADDRESSES, ADDRESS_FIELDS, last_updated__gte=moment)
        try:
            assigned += rest.every(MAC_ADDRESSES, MAC_FIELDS, last_updated__gte=moment)
        except RequestError as error:
            if error.req.status_code != 404:
                raise
            # Before NetBox 4.2 a MAC is a field of its port.
        owners = [port.get("device") for port in ports]
        owners += [one["assigned_object"].get("device") for one in assigned if isinstance(one["assigned_object"], dict)]
        return {owner["id"] for owner in owners if isinstance(owner, dict)}

    def _look_at(self, rest: Rest, netbox_ids: Sequence[int]) -> Walk:
        devices = rest.of(DEVICES, "id", sorted(set(netbox_ids)), DEVICE_FIELDS, role=list(self.roles), **_LEAN)
        absent = tuple(sorted(set(netbox_ids) - {device["id"] for device in devices}))
        if absent:
            # Before anything is concluded from not seeing it: a renamed role hides every device.
            self._check_roles(rest)
        if not devices:
            return Walk(full=False, absent=absent)
        return self._with_ports(rest, devices, absent)

    def _with_ports(self, rest: Rest, devices: list[Document], absent: tuple[int, ...] = ()) -> Walk:
        ports = rest.of(INTERFACES, "device_id", [device["id"] for device in devices], PORT_FIELDS)
        return self._walk(rest, devices, ports, absent=absent)

    def _walk(
        self,
        rest: Rest,
        devices: list[Document],
        ports: list[Document],
        *,
        full: bool = False,
        absent: tuple[int, ...] = (),
    ) -> Walk:
        sites, bad_sites = site_records(rest.every("dcim/sites", ("id", "name", "slug")))
        slugs = {site.slug for site in sites}
        lacking = [device["id"] for device in devices if not device.get("oob_ip")]
        addresses = rest.of(ADDRESSES, "device_id", lacking, ADDRESS_FIELDS)
        good, bad = device_records(self._placed(rest, devices), ports, addresses, slugs)
        newest = rest.clock or newest_change(devices)
        return Walk(
            full=full,
            sites=sites,
            racks=rack_records(rest.every("dcim/racks", ("id", "name", "site")), slugs),
            device_types=type_records(rest.every("dcim/device-types", ("id", "slug", "model", "manufacturer"))),
            devices=good,
            problems=(*bad, *_site_problems(bad_sites), *field_problems(self._unusable or {})),
            newest=newest,
            absent=absent,
        )

    def _placed(self, rest: Rest, devices: list[Document]) -> list[Document]:
        """Devices with their rack; one that sits in a bay of a chassis is where the chassis is."""
        inner = {d["id"]: d["parent_device"]["id"] for d in devices if not d.get("rack") and d.get("parent_device")}
        if not inner:
            return devices
        chassis = {d["id"]: d for d in rest.of(DEVICES, "id", sorted(set(inner.values())), ("id", "rack", "position"))}
        return [
            {**device, **{name: chassis.get(inner[device["id"]], {}).get(name) for name in ("rack", "position")}}
            if device["id"] in inner
            else device
            for device in devices
        ]

    def _check_roles(self, rest: Rest) -> None:
        """A role that was renamed would make its machines vanish from every list: stop instead."""
        known = {str(role.get("slug")) for role in rest.every("dcim/device-roles", ("id", "slug"))}
        lost = [role for role in self.roles if role not in known]
        if lost:
            raise SourceMisconfigured(
                f"NetBox has no device role {', '.join(lost)} (it has: {', '.join(sorted(known)) or 'none'}); "
                "was it renamed? Rename it back, or set SLIPWAY_NETBOX_ROLES. Nothing was changed."
            )

    # -- writing, in the thread -------------------------------------------------------------------

    def _write(self, rest: Rest, writes: Sequence[Write]) -> list[str]:
        """All in one request; when NetBox refuses it, one by one, so that one bad device does not stop the others."""
        if self._unusable is None:
            self._unusable = unusable_fields(rest)
        bodies = [self._body(write) for write in writes]
        try:
            rest.patch_devices(bodies)
        except RequestError as error:
            if not _refused(error):
                raise
            return [self._write_one(rest, body) for body in bodies]
        return ["" for _ in bodies]

    def _body(self, write: Write) -> Document:
        """Only what is ours and what NetBox can hold: fields of others are not sent at all."""
        fields = {name: value for name, value in write.fields.items() if name not in (self._unusable or {})}
        body: Document = {"id": write.netbox_id, "custom_fields": fields}
        if write.status is not None:
            body["status"] = write.status
        return body

    def _write_one(self, rest: Rest, body: Document) -> str:
        """Everything of one device, else what of it NetBox takes; "" or what it refused."""
        refusal = _patched(rest, body)
        pieces = [{"id": body["id"], "custom_fields": {name: value}} for name, value in body["custom_fields"].items()]
        pieces += [{"id": body["id"], "status": body["status"]}] if "status" in body else []
        if not refusal or len(pieces) < 2:
            return refusal
        refused = {next(iter(piece.get("custom_fields", {"status": ""}))): _patched(rest, piece) for piece in pieces}
        named = [f"{name}: {words}" for name, words in refused.items() if words]
        return refusal if len(named) in (0, len(pieces)) else f"the rest was written, but not {'; '.join(named)}"


_LEAN = {"exclude": "config_context"}


def _patched(rest: Rest, body: Document) -> str:
    try:
        rest.patch_devices([body])
    except RequestError as error:
        if not _refused(error):
            raise
        return str(translated(error))
    return ""


def _refused(error: RequestError) -> bool:
    """Whether NetBox understood and said no, to this body and not to us."""
    status = error.req.status_code
    return 400 <= status < 500 and status not in (401, 403, 429)


def _site_problems(texts: Iterable[str]) -> list[DeviceProblem]:
    return [DeviceProblem(f"site:{text}", None, "", text) for text in texts]


__all__ = ["RestNetBox", "SourceUnavailable"]
