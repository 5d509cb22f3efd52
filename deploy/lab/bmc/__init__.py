"""Emulated BMCs: one Redfish service with one system per machine of the fleet, on loopback.

The service is sushy-tools' emulator, so the protocol is real Redfish as Ironic's own tests use it; what it
tells about each machine comes from `fleet.yaml`. Public: `BmcLab` (start, stop, where things are).
"""

from deploy.lab.bmc.lab import BmcLab

__all__ = ["BmcLab"]
