"""NetBox's JSON as typed records. Pure: what a document means is decided here, fetching is elsewhere.

Field names are those of the REST API of NetBox 3.6 to 4.7. A value of the wrong type makes a DeviceProblem
that names the field; it is never guessed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from ipaddress import ip_interface
from typing import Any

from libs.contracts.hardware_ids import BadHardwareId, port_address
from libs.contracts.ids import derived_uuid, is_slug
from libs.contracts.text import display_name
from services.inventory.adapters.source import DeviceTypeRecord, RackRecord, SiteRecord, SourceUnavailable
from services.inventory.model.source import DeviceProblem, SourceDevice

Document = dict[str, Any]

OWNED_FIELDS = ("slipway_state", "slipway_health", "slipway_validated_at", "slipway_machine_id")
# Names that vendors give the host's own BMC port, best first. A DPU's BMC ("bmc-bf3") is another machine's.
BMC_NAMES = ("bmc", "idrac", "ipmi", "ilo", "xcc", "imm", "cimc", "irmc", "oob", "mgmt")
# Ironic takes node names that are host names.
_HOST_NAME = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?\Z")


class BadRecord(ValueError):
    """A record can't be used; the message names field and value."""


def device_key(netbox_id: int) -> str:
    return f"netbox:{netbox_id}"


def rack_id_of(netbox_id: int) -> str:
    return derived_uuid("netbox", "rack", str(netbox_id))


def site_records(documents: Iterable[Document]) -> tuple[tuple[SiteRecord, ...], tuple[str, ...]]:
    """Sites, and what is wrong with those that can't be used."""
    sites, problems = [], []
    for document in documents:
        slug = str(document.get("slug"))
        if is_slug(slug):
            sites.append(SiteRecord(slug, str(document.get("name") or slug), document.get("id")))
        else:
            problems.append(f"site {document.get('name')!r}: slug {slug!r} is not made of a-z, 0-9 and dashes")
    return tuple(sites), tuple(problems)


def rack_records(documents: Iterable[Document], sites: set[str]) -> tuple[RackRecord, ...]:
    found = []
    for document in documents:
        site = _slug_of(document.get("site"))
        number, name = document.get("id"), document.get("name")
        if isinstance(number, int) and isinstance(name, str) and site in sites:
            found.append(RackRecord(rack_id_of(number), name, site, number))
    return tuple(found)


def type_records(documents: Iterable[Document]) -> tuple[DeviceTypeRecord, ...]:
    found = []
    for document in documents:
        slug, maker = document.get("slug"), document.get("manufacturer")
        if isinstance(slug, str) and slug:
            name = str(maker.get("name") or "") if isinstance(maker, dict) else ""
            found.append(DeviceTypeRecord(slug, name, str(document.get("model") or slug), document.get("id")))
    return tuple(found)


def device_records(
    devices: Sequence[Document], interfaces: Iterable[Document], addresses: Iterable[Document], sites: set[str]
) -> tuple[tuple[SourceDevice, ...], tuple[DeviceProblem, ...]]:
    """Devices with their BMC and ports; each bad one is a problem of its own."""
    ports: dict[Any, list[Document]] = defaultdict(list)
    for port in interfaces:
        ports[_id_of(port.get("device"))].append(port)
    port_addresses = {
        address.get("assigned_object_id"): address.get("address")
        for address in addresses
        if address.get("assigned_object_type") == "dcim.interface"
    }
    good, bad = [], []
    for document in devices:
        number = document.get("id")
        if not isinstance(number, int):
            raise SourceUnavailable(f"NetBox listed a device without an id: {str(document)[:200]}")
        try:
            good.append(_device(document, number, ports[number], port_addresses, sites))
        except BadRecord as error:
            bad.append(DeviceProblem(device_key(number), number, str(document.get("name")), str(error)))
    return tuple(good), tuple(bad)


def _device(
    document: Document, number: int, ports: Sequence[Document], addresses: dict[Any, Any], sites: set[str]
) -> SourceDevice:
    site = _slug_of(document.get("site"))
    if site not in sites:
        raise BadRecord(f"site: {site or document.get('site')!r} is no site that can be used")
    kind = _slug_of(document.get("device_type"))
    if not kind:
        raise BadRecord(f"device_type: {document.get('device_type')!r} has no slug")
    # The key was renamed from device_role in NetBox 3.6; both may be there.
    role = _slug_of(document.get("role")) or _slug_of(document.get("device_role"))
    rack = document.get("rack")
    fields = document.get("custom_fields") or {}
    if not isinstance(fields, dict):
        raise BadRecord(f"custom_fields: {fields!r} is no object")
    bmc = bmc_port(ports)
    return SourceDevice(
        key=device_key(number),
        netbox_id=number,
        name=_name(document.get("name")),
        site=site,
        rack=str(rack.get("name") or "") if isinstance(rack, dict) else "",
        rack_id=rack_id_of(rack["id"]) if isinstance(rack, dict) and isinstance(rack.get("id"), int) else "",
        position=_position(document.get("position")),
        device_type=kind,
        role=role,
        serial=_text(document, "serial").strip(),
        asset_tag=_text(document, "asset_tag").strip(),
        status=_status(document.get("status")),
        bmc_address=_bmc_address(document.get("oob_ip"), bmc, addresses),
        bmc_mac=_mac(bmc) if bmc else "",
        nic_macs=tuple(sorted({mac for port in ports if not port.get("mgmt_only") and (mac := _mac(port))})),
        machine_id=_optional(fields.get("slipway_machine_id")),
        owned={name: _optional(fields.get(name)) for name in OWNED_FIELDS},
        nic_addresses=_nic_addresses(ports, addresses),
    )


def _nic_addresses(ports: Sequence[Document], addresses: dict[Any, Any]) -> dict[str, str]:
    """MAC → the address that IPAM gives the port; what is no address is none."""
    found = {}
    for port in ports:
        mac = "" if port.get("mgmt_only") else _mac(port)
        given = addresses.get(port.get("id"))
        try:
            address = str(ip_interface(str(given)).ip) if given else ""
        except ValueError:
            continue
        if mac and address:
            found[mac] = address
    return found


def bmc_port(ports: Sequence[Document]) -> Document | None:
    """The host's own BMC among the management-only ports; None when none has a name that says so."""
    managed = {str(port.get("name") or "").lower(): port for port in ports if port.get("mgmt_only") is True}
    for name in BMC_NAMES:
        for found in (name, f"{name}0", f"{name}1"):
            if found in managed:
                return managed[found]
    return next(iter(managed.values())) if len(managed) == 1 and not _of_dpu(next(iter(managed))) else None


def _of_dpu(name: str) -> bool:
    return "bf" in name or "dpu" in name


def _bmc_address(oob: object, bmc: Document | None, addresses: dict[Any, Any]) -> str:
    text = oob.get("address") if isinstance(oob, dict) else None
    if text is None and bmc is not None:
        text = addresses.get(bmc.get("id"))
    if text is None:
        return ""
    try:
        return str(ip_interface(str(text)).ip)
    except ValueError:
        raise BadRecord(f"oob_ip: {text!r} is no IP address") from None


def _mac(port: Document) -> str:
    """NetBox 4.2 moved MACs into objects of their own; `mac_address` still shows the primary one."""
    primary = port.get("primary_mac_address")
    text = port.get("mac_address") or (primary.get("mac_address") if isinstance(primary, dict) else None)
    if not text:
        return ""
    try:
        return port_address(str(text))
    except BadHardwareId as error:
        raise BadRecord(f"interface {port.get('name')}: mac_address {error}") from None


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadRecord("name: it is blank; a machine needs a name")
    try:
        name = display_name(value, max_length=63)
    except ValueError as error:
        raise BadRecord(f"name: {error}") from None
    if not _HOST_NAME.match(name):
        raise BadRecord(f"name: {name!r} can't be a host name (letters, digits, dots and dashes)")
    return name


def _text(document: Document, field: str) -> str:
    value = document.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRecord(f"{field}: {value!r} is no text")
    return value


def _optional(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _status(value: object) -> str:
    status = value.get("value") if isinstance(value, dict) else value
    if not isinstance(status, str):
        raise BadRecord(f"status: {value!r} is no status")
    return status


def _position(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRecord(f"position: {value!r} is no number of rack units")
    return float(value)


def _slug_of(value: object) -> str:
    slug = value.get("slug") if isinstance(value, dict) else None
    return slug if isinstance(slug, str) else ""


def _id_of(value: object) -> object:
    return value.get("id") if isinstance(value, dict) else None


def newest_change(documents: Iterable[Document]) -> datetime | None:
    """The latest `last_updated`. Raises SourceUnavailable for one that is no time: a poll could miss changes."""
    newest: datetime | None = None
    for document in documents:
        text = document.get("last_updated")
        if text is None:
            continue
        try:
            moment = datetime.fromisoformat(str(text))
        except ValueError:
            raise SourceUnavailable(f"NetBox gave last_updated {text!r}, which is no time") from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        newest = moment if newest is None or moment > newest else newest
    return newest
