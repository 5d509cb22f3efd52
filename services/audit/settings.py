"""Audit's settings, from the environment."""

from __future__ import annotations

from libs.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """None of its own: it keeps everything, for good."""
