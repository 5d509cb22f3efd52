"""Where everything of a local deployment is: folders below `var`, one block of loopback ports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_PORT_BASE = 24100
# From 32768 on Linux gives ports to outgoing connections; a server there finds its port taken now and then.
HIGHEST_BASE = 32000
SITE = "fra1"
SERVICES = ("identity", "inventory", "reservation", "provisioning", "validation", "cost", "audit", "subscription")


@dataclass(frozen=True)
class Ports:
    """Every port is 127.0.0.1:`base` + a fixed offset, so that two deployments need only two bases."""

    base: int

    @classmethod
    def from_environment(cls) -> Ports:
        """SLIPWAY_PORT_BASE, default 24100. Raises ValueError when it is no usable number."""
        given = os.environ.get("SLIPWAY_PORT_BASE", str(DEFAULT_PORT_BASE))
        if not given.isdigit() or not 1024 <= int(given) <= HIGHEST_BASE:
            raise ValueError(f"SLIPWAY_PORT_BASE={given!r}: give a number from 1024 to {HIGHEST_BASE}")
        return cls(int(given))

    @property
    def tenant_door(self) -> int:
        return self.base

    @property
    def operator_door(self) -> int:
        return self.base + 1

    @property
    def postgres(self) -> int:
        return self.base + 2

    @property
    def hub(self) -> int:
        return self.base + 3

    @property
    def hub_leaf_listen(self) -> int:
        return self.base + 4

    @property
    def leaf(self) -> int:
        return self.base + 5

    @property
    def oidc(self) -> int:
        return self.base + 6

    @property
    def netbox(self) -> int:
        return self.base + 7

    @property
    def netbox_postgres(self) -> int:
        return self.base + 8

    @property
    def netbox_redis(self) -> int:
        return self.base + 9

    @property
    def ironic(self) -> int:
        return self.base + 10

    @property
    def bmc(self) -> int:
        return self.base + 11

    @property
    def hub_monitor(self) -> int:
        return self.base + 12

    @property
    def first_host(self) -> int:
        """SSH hosts: one port a machine from here on."""
        return self.base + 20

    def metrics(self, process: str) -> int:
        """/metrics, /healthz and /readyz of a process."""
        return self.base + 50 + [*SERVICES, "gateway", "satellite"].index(process)
