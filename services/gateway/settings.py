"""What a deployment sets for the gateway, from the environment (SLIPWAY_…)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from libs.runtime.settings import ProcessSettings
from services.gateway.routes import Door

AUDIENCES = {Door.TENANT: "slipway-api", Door.OPERATOR: "slipway-operator"}


class Settings(ProcessSettings):
    """`host` stays on the loopback address unless a deployment's network says otherwise."""

    host: str = "127.0.0.1"
    tenant_port: int = Field(default=8080, ge=1, le=65535)
    operator_port: int = Field(default=8081, ge=1, le=65535)
    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str = ""
    nats_password: SecretStr = SecretStr("")
    oidc_issuer: str = Field(description="The only identity provider that is trusted")
    tenant_audience: str = AUDIENCES[Door.TENANT]
    operator_audience: str = AUDIENCES[Door.OPERATOR]
    oidc_keys_file: Path | None = Field(default=None, description="Keeps the provider's public keys over a restart")
    oidc_plain_jwt: bool = Field(default=False, description="For providers that cannot mark access tokens as at+jwt")
    oidc_plain_http: bool = Field(default=False, description="For a provider on a private network without TLS")
    netbox_hook_secret_file: Path | None = Field(
        default=None,
        description="Secrets that NetBox signs webhooks with, one a line; without it there is no such route",
    )
    answer_within_seconds: float = Field(default=10.0, gt=0, le=60)
    stream_heartbeat_seconds: float = Field(default=15.0, gt=0, le=60)
    stream_stall_seconds: float = Field(default=30.0, gt=0, le=600, description="Cut who takes nothing for so long")
    streams_per_caller: int = Field(default=10, ge=1, le=1000)
    streams: int = Field(default=200, ge=1, le=10_000, description="Open at once in one gateway")
