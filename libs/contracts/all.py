"""Import this to have every message type registered."""

from libs.contracts import cost, identity, inventory, operations, provisioning, replies, reservation, site, validation

__all__ = [
    "cost",
    "identity",
    "inventory",
    "operations",
    "provisioning",
    "replies",
    "reservation",
    "site",
    "validation",
]
