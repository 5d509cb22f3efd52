"""Audit's settings, from the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from libs.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """Without a signing key no checkpoint is made and nothing is ever removed."""

    audit_signing_key: Path | None = Field(
        default=None, description="File of the private key; make it with python -m services.audit.signing FILE"
    )
    audit_checkpoint_every_seconds: float = Field(default=300.0, gt=0, description="How often the day is looked at")
    audit_retention_every_seconds: float = Field(default=3600.0, gt=0)
