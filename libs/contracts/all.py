"""Import this to have every message type registered."""

from libs.contracts import (
    audit,
    cost,
    dhcp,
    discovery,
    identity,
    inventory,
    operations,
    placement,
    provisioning,
    replies,
    reservation,
    site,
    subscription,
    validation,
    violation,
)

__all__ = [
    "audit",
    "cost",
    "dhcp",
    "discovery",
    "identity",
    "inventory",
    "operations",
    "placement",
    "provisioning",
    "replies",
    "reservation",
    "site",
    "subscription",
    "validation",
    "violation",
]
