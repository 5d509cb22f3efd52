"""Validation's settings, from the environment."""

from __future__ import annotations

from libs.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """None of its own: what is checked is in the catalogue."""
