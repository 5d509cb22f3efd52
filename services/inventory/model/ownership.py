"""Who decides each field that NetBox and Slipway both show: one row a field, and nothing else decides it.

Identity passes from NetBox to Slipway when a machine is enrolled: from then on it is what was inspected, and a record
that says otherwise is drift. Slipway writes only its own custom fields, and `status` only to complete an intent that
people stated there. The page docs/architecture/generated/netbox-fields.md is drawn from this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Owner(StrEnum):
    """Who decides what a field's value is."""

    NETBOX = "netbox"
    SLIPWAY = "slipway"


@dataclass(frozen=True)
class Ownership:
    """`field` is ours, `netbox` where NetBox keeps it; `owner` before the machine's first enrolment, `enrolled` after.

    `conflict`: what happens when the side that does not own it says otherwise; `repair`: how the two agree again.
    """

    field: str
    netbox: str
    owner: Owner
    enrolled: Owner
    conflict: str
    repair: str

    def owner_of(self, *, enrolled: bool) -> Owner:
        return self.enrolled if enrolled else self.owner


_TAKEN = "taken at the next reading"
_CORRECT_IN_NETBOX = "correct it in NetBox; Slipway takes it"
_HELD = "drift event and hold; Slipway's value stays"
_WRITTEN_AGAIN = "drift event; Slipway writes its own value again"
_THROUGH_SLIPWAY = "nothing to do: it is written again; change the machine through Slipway instead"


def _theirs(field: str, netbox: str) -> Ownership:
    return Ownership(field, netbox, Owner.NETBOX, Owner.NETBOX, _TAKEN, _CORRECT_IN_NETBOX)


def _identity(field: str, netbox: str, words: str) -> Ownership:
    repair = (
        f"correct {words} in NetBox; or, if the hardware was replaced, remove the hold: the machine is then "
        "inspected, wiped and validated again"
    )
    return Ownership(field, netbox, Owner.NETBOX, Owner.SLIPWAY, _HELD, repair)


def _ours(field: str, custom_field: str) -> Ownership:
    path = f"custom_fields.{custom_field}"
    return Ownership(field, path, Owner.SLIPWAY, Owner.SLIPWAY, _WRITTEN_AGAIN, _THROUGH_SLIPWAY)


FIELDS = (
    _theirs("name", "name"),
    _theirs("rack", "rack"),
    _theirs("position", "position"),
    _theirs("role", "role"),
    _theirs("asset_tag", "asset_tag"),
    _theirs("bmc_address", "oob_ip"),
    _theirs("bmc_mac", "interfaces[bmc].mac_address"),
    _theirs("nic_macs", "interfaces[].mac_address"),
    _theirs("nic_addresses", "ip_addresses[].address"),
    _identity("serial", "serial", "the serial number"),
    _identity("site", "site.slug", "the site"),
    _identity("device_type", "device_type.slug", "the device type"),
    Ownership(
        "status",
        "status",
        Owner.NETBOX,
        Owner.NETBOX,
        "starts its workflow; a drift event and a hold where that can't begin now",
        "set the status in NetBox to what is meant, or wait until what the drift names has ended",
    ),
    Ownership(
        "presence",
        "(the device itself)",
        Owner.NETBOX,
        Owner.NETBOX,
        "drift event and hold; the machine is kept, never removed",
        "add the device to NetBox again with its slipway_machine_id, or decommission the machine",
    ),
    _ours("id", "slipway_machine_id"),
    _ours("state", "slipway_state"),
    _ours("health", "slipway_health"),
    _ours("validated_at", "slipway_validated_at"),
)
_BY_FIELD = {row.field: row for row in FIELDS}
_BY_CUSTOM_FIELD = {
    row.netbox.removeprefix("custom_fields."): row for row in FIELDS if row.netbox.startswith("custom_fields.")
}
IDENTITY = tuple(row.field for row in FIELDS if row.owner is not row.enrolled)
WRITABLE = tuple(_BY_CUSTOM_FIELD)
# The only words that Slipway writes into `status`: the end of what people asked for there.
COMPLETIONS = ("active", "offline")


def ownership(name: str) -> Ownership:
    """The row of a field of ours or of a custom field in NetBox. Raises KeyError for one that is not declared."""
    return _BY_FIELD.get(name) or _BY_CUSTOM_FIELD[name]


def require_ours(fields: Iterable[str], status: str | None) -> None:
    """Raises ValueError for a write that touches what NetBox owns."""
    foreign = sorted(set(fields) - set(WRITABLE))
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: NetBox owns it; Slipway writes only {', '.join(WRITABLE)}")
    if status is not None and status not in COMPLETIONS:
        raise ValueError(
            f"status {status!r}: NetBox owns it; Slipway only completes it with {' or '.join(COMPLETIONS)}"
        )
