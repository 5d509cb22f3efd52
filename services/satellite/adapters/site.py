"""Chooses a site's adapters by the settings. Each set is imported only when it is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.satellite.adapters.dhcp import open_dhcp
from services.satellite.adapters.keys import make_management_key, public_line
from services.satellite.adapters.secret_environment import EnvironmentSecrets
from services.satellite.adapters.secret_file import FileSecrets, create_key
from services.satellite.placement import Placement
from services.satellite.ports import Secrets, Site
from services.satellite.settings import SatelliteSettings


class SettingMissing(ValueError):
    """A setting that the chosen adapters need is not set; the message names it."""


def open_site(settings: SatelliteSettings) -> Site:
    """The site's adapters. Raises SettingMissing or SiteError for settings that can't work."""
    if settings.site_adapters == "simulated":
        return _simulated(settings)
    return _real(settings)


def open_secrets(settings: SatelliteSettings) -> Secrets:
    """The site's secret store."""
    if settings.secret_store == "environment":
        return EnvironmentSecrets()
    if settings.secret_store == "openbao":
        return _openbao(settings)
    if settings.secret_store == "1password":
        return _onepassword(settings)
    return FileSecrets(
        _needed(settings.secrets_dir, "SLIPWAY_SECRETS_DIR"),
        _needed(settings.secrets_key_file, "SLIPWAY_SECRETS_KEY_FILE"),
    )


def _openbao(settings: SatelliteSettings) -> Secrets:
    from services.satellite.adapters.secret_openbao import BaoAddress, OpenBaoSecrets

    return OpenBaoSecrets(
        BaoAddress(
            url=_text(settings.secret_store_url, "SLIPWAY_SECRET_STORE_URL"),
            role_id=_text(settings.openbao_role_id, "SLIPWAY_OPENBAO_ROLE_ID"),
            secret_id_file=_needed(settings.openbao_secret_id_file, "SLIPWAY_OPENBAO_SECRET_ID_FILE"),
            mount=settings.openbao_mount,
            prefix=settings.openbao_prefix,
            namespace=settings.openbao_namespace,
            ca_file=settings.secret_store_ca_file,
            timeout_seconds=settings.secret_store_timeout_seconds,
        )
    )


def _onepassword(settings: SatelliteSettings) -> Secrets:
    from services.satellite.adapters.secret_connect import ConnectAddress, ConnectSecrets

    return ConnectSecrets(
        ConnectAddress(
            url=_text(settings.secret_store_url, "SLIPWAY_SECRET_STORE_URL"),
            vault_id=_text(settings.connect_vault_id, "SLIPWAY_CONNECT_VAULT_ID"),
            token_file=_needed(settings.connect_token_file, "SLIPWAY_CONNECT_TOKEN_FILE"),
            ca_file=settings.secret_store_ca_file,
            timeout_seconds=settings.secret_store_timeout_seconds,
        )
    )


def _text(value: str, name: str) -> str:
    if not value:
        raise SettingMissing(f"{name} is not set; it is needed by this site's secret store")
    return value


def _real(settings: SatelliteSettings) -> Site:
    from services.satellite.adapters.ironic import IronicBareMetal
    from services.satellite.adapters.ironic_client import IronicClient
    from services.satellite.adapters.ironic_loop import IronicSite
    from services.satellite.adapters.machine_reads import MachineReads
    from services.satellite.adapters.redfish_accounts import RedfishAccounts
    from services.satellite.adapters.redfish_scan import RedfishScan, base_urls
    from services.satellite.adapters.runner import AnsibleRunner
    from services.satellite.adapters.ssh import SshAccess

    file = _needed(settings.ironic_credentials_file, "SLIPWAY_IRONIC_CREDENTIALS_FILE")
    secrets = open_secrets(settings)
    ironic = IronicSite(
        client=IronicClient(settings.ironic_url, settings.site, lambda: _user_and_password(file)),
        reads=MachineReads(
            secrets,
            _endpoints(settings.endpoints_file),
            verify=str(settings.redfish_ca_file) if settings.redfish_ca_file else True,
        ),
        driver=settings.ironic_driver,
        clean_steps=settings.sanitise_steps,
        hosts=_hosts(settings.hosts_file),
    )
    key_file = _management_key(settings)
    return Site(
        IronicBareMetal(ironic),
        SshAccess(key_file, settings.ssh_user),
        AnsibleRunner(settings.state_dir / "runs", key_file, settings.ssh_user),
        open_dhcp(settings, _needed, _user_and_password),
        RedfishScan(base_urls(_endpoints(settings.endpoints_file))),
        secrets=secrets,
        accounts=RedfishAccounts(ironic),
        placement=_placement(settings),
    )


def _placement(settings: SatelliteSettings) -> Placement | None:
    """The site's Placement, None where it has none."""
    if not settings.placement_url:
        return None
    from services.satellite.adapters.placement import RestPlacement

    name = "SLIPWAY_PLACEMENT_CREDENTIALS_FILE"
    file = _needed(settings.placement_credentials_file, name)
    return RestPlacement(settings.placement_url, settings.site, lambda: _read_object(file, name))


def _read_object(path: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingMissing(f"{name}: {path} can't be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise SettingMissing(f"{name}: {path} does not hold a JSON object")
    return found


def _user_and_password(path: Path) -> tuple[str, str]:
    found = _read_object(path, "SLIPWAY_IRONIC_CREDENTIALS_FILE")
    return str(found.get("username", "")), str(found.get("password", ""))


def _endpoints(path: Path | None) -> dict[str, str]:
    """BMC address → URL of the system's Redfish resource."""
    found = _read_object(path, "SLIPWAY_ENDPOINTS_FILE") if path else {}
    return {str(address): str(url) for address, url in found.items()}


def _hosts(path: Path | None) -> dict[str, tuple[str, int]]:
    """Machine name → where its host listens."""
    found = _read_object(path, "SLIPWAY_HOSTS_FILE") if path else {}
    try:
        return {str(name): (str(at["address"]), int(at["ssh_port"])) for name, at in found.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise SettingMissing(
            f"SLIPWAY_HOSTS_FILE: {path}: every machine needs address and ssh_port ({error})"
        ) from error


def _simulated(settings: SatelliteSettings) -> Site:
    from services.satellite.adapters.dhcp_twin import DhcpTwin
    from services.satellite.adapters.redfish_scan import simulated_bmcs
    from services.satellite.adapters.simulated import SimulatedBareMetal
    from services.satellite.adapters.simulated_access import SimulatedAccess, SimulatedRunner, host_key
    from services.satellite.adapters.simulated_accounts import SimulatedAccounts, fill_store
    from services.satellite.adapters.simulated_fleet import load_hardware
    from services.satellite.adapters.simulated_store import SimulatedStore

    store = SimulatedStore(
        settings.state_dir / "simulated-site.sqlite",
        load_hardware(_needed(settings.fleet_file, "SLIPWAY_FLEET_FILE")),
        settings.faults_file,
        settings.simulated_step_seconds,
    )
    kept = _simulated_secrets(settings)
    fill_store(store, kept)
    access = SimulatedAccess(store, public_line(_management_key(settings)))
    return Site(
        SimulatedBareMetal(store, host_key),
        access,
        SimulatedRunner(store, access),
        DhcpTwin(),
        simulated_bmcs(store),
        secrets=kept,
        accounts=SimulatedAccounts(store),
    )


def _simulated_secrets(settings: SatelliteSettings) -> FileSecrets:
    """The simulated BMCs' passwords, in the store that is configured or one beside the site's state."""
    folder = settings.secrets_dir or settings.state_dir / "secrets"
    key = settings.secrets_key_file or settings.state_dir / "secret-store.key"
    if not key.exists():
        create_key(key)
    return FileSecrets(folder, key)


def _management_key(settings: SatelliteSettings) -> Path:
    path = settings.state_dir / "management_key"
    make_management_key(path)
    return path


def _needed(path: Path | None, name: str) -> Path:
    if path is None:
        raise SettingMissing(f"{name} is not set; the {name.removeprefix('SLIPWAY_').lower()} is needed by this site")
    return path
