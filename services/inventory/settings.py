"""What inventory is told from outside, by environment variables SLIPWAY_…"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from libs.runtime.settings import ServiceSettings


class InventorySettings(ServiceSettings):
    """Where machines come from: a NetBox (`netbox_url`), else a manifest file, else nowhere."""

    netbox_url: str = ""
    netbox_token: SecretStr = SecretStr("")
    netbox_token_file: Path | None = None
    # Slugs of the device roles that are machines of ours. A slug that NetBox has not is an error, never "no machines".
    netbox_roles: tuple[str, ...] = ("gpu-node", "cpu-node")
    netbox_timeout_seconds: float = Field(default=20.0, gt=0)
    netbox_poll_seconds: float = Field(default=10.0, gt=0)
    netbox_full_walk_seconds: float = Field(default=600.0, gt=0)
    # How far a poll reaches back before the moment of the one before: a change of many devices becomes visible when it
    # ends, under the times at which its parts were made.
    netbox_overlap_seconds: float = Field(default=60.0, ge=0)
    # Machines that leave at the same time because NetBox says decommissioning; a change of hundreds by mistake can be
    # taken back there before most of it has begun. 0: none, an operator decommissions each.
    netbox_decommission_at_once: int = Field(default=8, ge=0)
    manifest_file: Path | None = None
    profiles_file: Path = Path(__file__).with_name("profiles.yaml")
    # A reference that only the site's satellite can resolve; {name} is the machine's name.
    bmc_credentials_ref: str = "bmc/{name}"
    revalidate_after_days: float = Field(default=30.0, gt=0)
    revalidate_at_once: int = Field(default=4, ge=0, description="How many machines may be re-validated per round")

    def token(self) -> str:
        """The NetBox token, from its file when one is named. Raises OSError when the file can't be read."""
        if self.netbox_token_file is not None:
            return self.netbox_token_file.read_text().strip()
        return self.netbox_token.get_secret_value()
