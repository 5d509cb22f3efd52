"""Settings every process has, from the environment (prefix SLIPWAY_). Secrets never appear in logs or repr."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

# At 20,000 messages a second the soft limit is five seconds of a broker's absence, at the usual rate of a fleet
# minutes to hours. With the mean size of our messages (2 KiB) the hard limit is half a GiB of disk.
OUTBOX_SOFT_LIMIT = 100_000
OUTBOX_HARD_LIMIT = 250_000


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
    accept_restore: str = Field(
        default="",
        pattern=r"^$|^\d{1,9}:.{1,500}$",
        description="EPOCH:REASON of a restore to go on after, for when nobody can sign in to say so over the API",
    )
    outbox_soft_limit: int = Field(
        default=OUTBOX_SOFT_LIMIT, ge=1, description="Messages waiting before it is not ready"
    )
    outbox_hard_limit: int = Field(
        default=OUTBOX_HARD_LIMIT, ge=2, description="Messages waiting before work is refused"
    )
    outbox_keep_days: float = Field(default=7, ge=0, description="Acknowledged messages stay so long")
    inbox_memory_days: float = Field(
        default=14, ge=8, description="Handled messages are known so long; more than a stream keeps (7 days)"
    )
