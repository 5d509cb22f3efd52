"""Subscription's settings, from the environment."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from libs.runtime.settings import ServiceSettings

DAY = 86_400


class Settings(ServiceSettings):
    """Without `subscribers_issuer_seed` there are no subscribers, without `webhook_key` no webhooks."""

    subscribers_issuer_seed: SecretStr = Field(
        default=SecretStr(""), description="NATS account seed whose public key is auth_callout's issuer"
    )
    subscribers_server: str = Field(default="", description="Address of the broker as subscribers reach it")
    subscribers_per_tenant: int = Field(default=20, ge=0, le=1000)
    webhook_key: SecretStr = Field(
        default=SecretStr(""), description="Secrets of webhooks are derived from it; at least 32 characters"
    )
    webhooks_per_tenant: int = Field(default=20, ge=0, le=1000)
    webhook_plain_http: bool = Field(default=False, description="Allow http:// besides https://")
    webhook_allow_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = Field(
        default=(), description="Private networks that webhooks may reach, with commas: 10.1.0.0/16,fd00::/8"
    )
    webhook_timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    webhook_first_retry_seconds: float = Field(default=5.0, gt=0)
    webhook_longest_retry_seconds: float = Field(default=3600.0, gt=0)
    webhook_attempts: int = Field(default=12, ge=1, description="Then an event is given up, if others get through")
    webhook_disable_after_seconds: float = Field(default=3 * DAY, gt=0)

    @field_validator("webhook_allow_networks", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
