"""Cost's settings, from the environment."""

from __future__ import annotations

from pathlib import Path

from libs.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """`bootstrap_prices` names a YAML file of first prices (README.md)."""

    bootstrap_prices: Path | None = None
    announce_every_seconds: float = 5.0
