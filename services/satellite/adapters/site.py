"""Chooses a site's adapters by the settings. Each set is imported only when it is chosen."""

from __future__ import annotations

from pathlib import Path

from services.satellite.adapters.keys import make_management_key, public_line
from services.satellite.adapters.secret_environment import EnvironmentSecrets
from services.satellite.adapters.secret_file import FileSecrets
from services.satellite.ports import Secrets, Site
from services.satellite.settings import SatelliteSettings


class SettingMissing(ValueError):
    """A setting that the chosen adapters need is not set; the message names it."""


def open_site(settings: SatelliteSettings) -> Site:
    """The site's adapters. Raises SettingMissing or SiteError for settings that can't work."""
    if settings.site_adapters == "simulated":
        return _simulated(settings)
    raise SettingMissing("SLIPWAY_SITE_ADAPTERS=real")


def open_secrets(settings: SatelliteSettings) -> Secrets:
    """The site's secret store."""
    if settings.secret_store == "environment":
        return EnvironmentSecrets()
    return FileSecrets(
        _needed(settings.secrets_dir, "SLIPWAY_SECRETS_DIR"),
        _needed(settings.secrets_key_file, "SLIPWAY_SECRETS_KEY_FILE"),
    )


def _simulated(settings: SatelliteSettings) -> Site:
    from services.satellite.adapters.simulated import SimulatedBareMetal
    from services.satellite.adapters.simulated_access import SimulatedAccess, SimulatedRunner, host_key
    from services.satellite.adapters.simulated_fleet import load_hardware
    from services.satellite.adapters.simulated_store import SimulatedStore

    store = SimulatedStore(
        settings.state_dir / "simulated-site.sqlite",
        load_hardware(_needed(settings.fleet_file, "SLIPWAY_FLEET_FILE")),
        settings.faults_file,
        settings.simulated_step_seconds,
    )
    access = SimulatedAccess(store, public_line(_management_key(settings)))
    return Site(SimulatedBareMetal(store, host_key), access, SimulatedRunner(store, access))


def _management_key(settings: SatelliteSettings) -> Path:
    path = settings.state_dir / "management_key"
    make_management_key(path)
    return path


def _needed(path: Path | None, name: str) -> Path:
    if path is None:
        raise SettingMissing(f"{name} is not set; the {name.removeprefix('SLIPWAY_').lower()} is needed by this site")
    return path
