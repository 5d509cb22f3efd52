"""Settings every process has, from the environment (prefix SLIPWAY_). Secrets never appear in logs or repr."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ProcessSettings(BaseSettings):
    """What every process needs."""

    model_config = SettingsConfigDict(env_prefix="SLIPWAY_", extra="ignore")

    log_format: Literal["pretty", "json"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: int = Field(default=0, description="Port of /metrics, /healthz and /readyz; 0 takes a free one")
    metrics_host: str = "127.0.0.1"


class ServiceSettings(ProcessSettings):
    """What every hub service needs. `owner_database_url` (the migrations' role) is optional: without it the service
    expects a migrated schema and never changes one."""

    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str = ""
    nats_password: SecretStr = SecretStr("")
    database_url: SecretStr = SecretStr("")
    owner_database_url: SecretStr = SecretStr("")
    inbox_workers: int = Field(default=1, ge=1, le=16)
