"""What a satellite is told from outside, by environment variables SLIPWAY_…; secrets come by file only."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from libs.runtime.settings import ProcessSettings


def _ipv4_network(text: str) -> str:
    return str(IPv4Network(text))


class SatelliteSettings(ProcessSettings):
    """One satellite's configuration; a file that is needed by the chosen adapters is checked at the start."""

    model_config = SettingsConfigDict(env_prefix="SLIPWAY_", frozen=True, extra="ignore")

    site: str = Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")
    leaf_nats_url: str = "nats://127.0.0.1:4222"
    leaf_nats_user: str | None = None
    leaf_nats_password: SecretStr | None = None
    hub_domain: str = "hub"
    site_adapters: Literal["real", "simulated"] = "real"
    state_dir: Path

    max_running_commands: int = Field(default=16, ge=1)
    lease_ttl_seconds: float = Field(default=15.0, ge=3.0)
    poll_seconds: float = Field(default=2.0, gt=0)
    repeat_seconds: float = Field(default=60.0, gt=0)
    heartbeat_seconds: float = Field(default=10.0, gt=0)

    ironic_url: str = "http://127.0.0.1:6385"
    ironic_credentials_file: Path | None = None  # {"username": …, "password": …}, mode 600
    ironic_driver: str = "redfish"
    # Ironic's names of the manual clean steps that a sanitise runs, in order, as interface.step.
    sanitise_steps: tuple[str, ...] = ("deploy.erase_devices",)
    endpoints_file: Path | None = None  # {BMC address: URL of the system's Redfish resource}
    hosts_file: Path | None = None  # {machine name: {address, ssh_port}}: where the deployed hosts listen
    redfish_ca_file: Path | None = None
    ssh_user: str = "ubuntu"  # The default user of the site's images.

    secret_store: Literal["file", "environment", "openbao", "1password"] = "file"
    secrets_dir: Path | None = None
    secrets_key_file: Path | None = None
    secret_store_url: str = ""  # Of OpenBao, Vault or 1Password Connect.
    secret_store_ca_file: Path | None = None
    secret_store_timeout_seconds: float = Field(default=10.0, gt=0)
    openbao_namespace: str = ""
    openbao_mount: str = "secret"  # A KV engine, version 2.
    openbao_prefix: str = "slipway"
    openbao_role_id: str = ""
    openbao_secret_id_file: Path | None = None  # mode 600
    connect_vault_id: str = ""
    connect_token_file: Path | None = None  # mode 600

    dhcp: Literal["none", "kea", "dnsmasq"] = "none"  # dnsmasq is only read.
    kea_url: str = "http://127.0.0.1:8000"  # Of Kea's control agent.
    kea_credentials_file: Path | None = None  # {"username": …, "password": …}, mode 600
    dnsmasq_leases_file: Path | None = None
    dnsmasq_hosts_dir: Path | None = None
    dhcp_poll_seconds: float = Field(default=10.0, gt=0)
    # Networks of the site's BMCs. Only they are ever scanned; an unknown lease in them is an unknown BMC.
    bmc_ranges: tuple[Annotated[str, AfterValidator(_ipv4_network)], ...] = ()

    placement_url: str = ""  # Of the site's OpenStack Placement; blank: it has none.
    # {"auth_type": "v3password", "auth_url": …, …} as keystoneauth names the options; mode 600.
    placement_credentials_file: Path | None = None
    placement_poll_seconds: float = Field(default=10.0, gt=0)

    fleet_file: Path | None = None
    faults_file: Path | None = None
    simulated_step_seconds: float = Field(default=0.3, ge=0)
