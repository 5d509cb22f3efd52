"""Chooses the site's DHCP adapter by the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.satellite.dhcp import Dhcp
from services.satellite.settings import SatelliteSettings


def open_dhcp(
    settings: SatelliteSettings,
    needed: Callable[[Path | None, str], Path],
    user_and_password: Callable[[Path], tuple[str, str]],
) -> Dhcp | None:
    """The adapter, None when the site's addresses are none of ours. `needed` raises for a file that is not set."""
    match settings.dhcp:
        case "none":
            return None
        case "dnsmasq":
            from services.satellite.adapters.dnsmasq import DnsmasqDhcp

            leases = needed(settings.dnsmasq_leases_file, "SLIPWAY_DNSMASQ_LEASES_FILE")
            return DnsmasqDhcp(leases, settings.dnsmasq_hosts_dir)
        case "kea":
            from services.satellite.adapters.kea import KeaDhcp
            from services.satellite.adapters.kea_control import KeaControl

            file = settings.kea_credentials_file
            control = KeaControl(settings.kea_url, user_and_password(file) if file else None)
            return KeaDhcp(control, settings.state_dir / "dhcp")
