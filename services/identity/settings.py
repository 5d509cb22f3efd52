"""Identity's settings, from the environment."""

from __future__ import annotations

from pathlib import Path

from libs.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """`bootstrap_grants` names a YAML file of first organizations, tenants and grants (README.md)."""

    bootstrap_grants: Path | None = None
